"""The served model: architecture, precision, expert routing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from steelyard.scenario.base import Spec, kind_required
from steelyard.scenario.numbers import Exponent


class UniformRouting(Spec):
    """All experts are equally likely."""

    kind: Literal["uniform"] = Field(description="Every expert is as likely as any other.")


class ZipfRouting(Spec):
    """Expert popularity follows a power law."""

    kind: Literal["zipf"] = Field(description="The k-th most popular expert is chosen in proportion to k ** -exponent.")
    exponent: Exponent = Field(description="0: all equally likely; higher values concentrate tokens on few experts.")


class FileRouting(Spec):
    """Expert popularity from measured counts."""

    kind: Literal["file"] = Field(description="Experts are chosen in proportion to counts in a file.")
    path: str = Field(
        min_length=1,
        description="Load of each expert in order, in tokens or any other unit: a JSON list of numbers, or a CSV file "
        "with a column `load` or one number per line. Relative to the scenario's folder.",
    )


_AnyRouting = Annotated[UniformRouting | ZipfRouting | FileRouting, Field(discriminator="kind")]
RoutingSpec = Annotated[_AnyRouting, BeforeValidator(kind_required(UniformRouting, ZipfRouting, FileRouting))]


class ModelRef(Spec):
    """A model. Short form: its name or path."""

    config: str = Field(
        min_length=1, description="Catalog name (`steelyard models`), or path of a config.json or folder."
    )
    dtype: Literal["auto", "bfloat16", "float16", "fp8"] = Field(
        default="auto", description="Data type of the weights; auto: as in the config."
    )
    quantization: Literal["none", "fp8", "fp8_block", "int8", "int4", "awq", "nvfp4", "mxfp4"] | None = Field(
        default=None, description="Weight quantization; as in the config if not given, 16 bits if 'none'."
    )
    name: str | None = Field(
        default=None,
        min_length=1,
        description="Name that requests use, in a fleet of several models; `config` if not given.",
    )
    routing: RoutingSpec | None = Field(
        default=None,
        description="Popularity of routed experts, the same in all layers; uniform if not given.",
    )

    @property
    def called(self) -> str:
        """The name that requests use."""
        return self.name or self.config


def expand_model(value: Any) -> Any:
    """A bare name or path."""
    return {"config": value} if isinstance(value, str) else value


Model = Annotated[ModelRef, BeforeValidator(expand_model, json_schema_input_type=str | ModelRef)]
