"""Which model is served, in which precision, and how its experts are chosen."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from steelyard.scenario.base import NonNegative, Spec, kind_required


class UniformRouting(Spec):
    """All experts are chosen alike."""

    kind: Literal["uniform"] = Field(description="Every expert is as likely as any other.")


class ZipfRouting(Spec):
    """Some experts are chosen more often than others, by a law."""

    kind: Literal["zipf"] = Field(description="The k-th most popular expert is chosen in proportion to k ** -exponent.")
    exponent: NonNegative = Field(description="0: all alike; the higher, the more goes to few experts.")


class FileRouting(Spec):
    """Experts are chosen as often as they were counted to be."""

    kind: Literal["file"] = Field(description="In proportion to counts in a file.")
    path: str = Field(
        min_length=1,
        description="Tokens (or any measure) of each expert, the first expert's first: a JSON list of numbers, or a "
        "CSV file with a column `load` or one number to a line. Relative to the scenario's folder.",
    )


_AnyRouting = Annotated[UniformRouting | ZipfRouting | FileRouting, Field(discriminator="kind")]
RoutingSpec = Annotated[_AnyRouting, BeforeValidator(kind_required(UniformRouting, ZipfRouting, FileRouting))]


class ModelRef(Spec):
    """Which model. Short form: the bare name or path."""

    config: str = Field(
        min_length=1, description="Catalog name (`steelyard models`), or path of a config.json or folder."
    )
    dtype: Literal["auto", "bfloat16", "float16", "fp8"] = Field(
        default="auto", description="Type of the weights; auto is what the config says."
    )
    quantization: Literal["none", "fp8", "fp8_block", "int8", "int4", "awq", "nvfp4", "mxfp4"] | None = Field(
        default=None, description="Weight quantization; what the config says if not given, 16 bits if 'none'."
    )
    name: str | None = Field(
        default=None,
        min_length=1,
        description="What requests call it, where pools serve several models; `config` if not given.",
    )
    routing: RoutingSpec | None = Field(
        default=None,
        description="How often each routed expert is chosen, the same in all layers; all alike if not given.",
    )

    @property
    def called(self) -> str:
        """What requests call it."""
        return self.name or self.config


def expand_model(value: Any) -> Any:
    """A bare name or path."""
    return {"config": value} if isinstance(value, str) else value


Model = Annotated[ModelRef, BeforeValidator(expand_model, json_schema_input_type=str | ModelRef)]
