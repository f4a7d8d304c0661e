"""What every part of a scenario has in common: strict keys, and errors that know their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

from steelyard.errors import did_you_mean
from steelyard.scenario.checking import checked
from steelyard.scenario.problems import Path as KeyPath


def mistake(message: str, *path: str | int) -> PydanticCustomError:
    """A validation error in our own words; ``path`` leads from the raising model to the key at fault."""
    return PydanticCustomError("mistake", "{message}", {"message": message, "path": path})


class Spec(BaseModel):
    """A part of a scenario. Immutable; an unknown key is an error that offers the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, data: Any) -> Any:
        return refuse_unknown_keys(data, cls.model_fields)


class Written(Spec):
    """A whole file's worth: it has a name, and knows where it came from."""

    name: str = Field(default="scenario", min_length=1, description="Name of the run; the file's name if not given.")

    _base_dir: Path = PrivateAttr(default_factory=Path)
    _source: str = PrivateAttr(default="scenario")

    @property
    def base_dir(self) -> Path:
        """The folder that relative paths start from."""
        return self._base_dir

    @property
    def source(self) -> str:
        """What messages call it: its file, if it came from one."""
        return self._source

    def based_in(self, folder: Path, source: str | None = None) -> Self:
        """The same with its relative paths starting from another folder, and told to be from ``source``."""
        copy = self.model_copy()
        copy._base_dir = folder
        copy._source = source or self._source
        return copy

    def replace(self, **changes: Any) -> Self:
        """The same with some of its keys given anew, in plain data or as parts of a scenario; checked like a file."""
        given = {key: _plain(value) for key, value in changes.items()}
        data = {**self.model_dump(exclude_unset=True), **given}

        def place(path: KeyPath) -> str:
            replaced = str(path[0]) if path else ""
            return f"{self._source} with {replaced} replaced" if replaced in changes else self._source

        return checked(type(self), data, place).based_in(self._base_dir, self._source)

    @model_validator(mode="after")
    def _names_a_folder(self) -> Self:
        if {"/", "\\"} & set(self.name) or self.name in (".", ".."):
            raise mistake("must be usable as a folder's name: no slashes", "name")
        return self


def _plain(value: Any) -> Any:
    """A part of a scenario as a user would write it."""
    return value.model_dump(exclude_unset=True) if isinstance(value, Spec) else value


def refuse_unknown_keys(data: Any, known: Mapping[str, Any]) -> Any:
    """Data as given, unless it is a mapping with a key that is not among the known ones."""
    if isinstance(data, Mapping):
        for key in data:
            if key not in known:
                raise mistake(f"unknown key; {did_you_mean(str(key), known)}", key)
    return data


def _refuse_bool(value: Any) -> Any:
    """YAML's ``yes`` and ``on`` are booleans, which Python would quietly count as 1."""
    if isinstance(value, bool):
        raise mistake("must be a number")
    return value


MOST = 1_000_000_000  # of anything that is counted; far beyond sense, well within 64 bits

_Number = BeforeValidator(_refuse_bool)
Count = Annotated[int, Field(ge=1, le=MOST), _Number]
# What a machine with 32 GB can simulate: measured, an idle replica takes 12 kB and a request 2.4 kB.
MOST_REPLICAS, MOST_REQUESTS = 65_536, 10_000_000
Replicas = Annotated[int, Field(ge=1, le=MOST_REPLICAS), _Number]
Requests = Annotated[int, Field(ge=1, le=MOST_REQUESTS), _Number]
Whole = Annotated[int, Field(ge=0), _Number]
Integer = Annotated[int, Field(ge=-MOST, le=MOST), _Number]
Positive = Annotated[float, Field(gt=0), _Number]
NonNegative = Annotated[float, Field(ge=0), _Number]
Share = Annotated[float, Field(ge=0, le=1), _Number]


def kinds_of(*specs: type[Spec]) -> list[str]:
    """The ``kind`` each member of a union answers to."""
    return [kind for spec in specs for kind in get_args(spec.model_fields["kind"].annotation)]


def number_or_kind(key: str, *specs: type[Spec]) -> Callable[[Any], Any]:
    """A short form: a bare number N stands for ``{kind: fixed, key: N}``; all else must name its kind."""
    kinds = kinds_of(*specs)

    def expand(value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {"kind": "fixed", key: value}
        if isinstance(value, Mapping):
            if "kind" not in value:
                raise mistake(f"missing; choose one of {', '.join(kinds)}", "kind")
            return value
        if isinstance(value, specs):
            return value
        raise mistake(f"must be a number, or a mapping whose `kind` is one of {', '.join(kinds)}")

    return expand


def kind_required(*specs: type[Spec]) -> Callable[[Any], Any]:
    """A union without a short form: a mapping must name its kind."""
    kinds = kinds_of(*specs)

    def check(value: Any) -> Any:
        if isinstance(value, specs):
            return value
        if not isinstance(value, Mapping):
            raise mistake(f"must be a mapping whose `kind` is one of {', '.join(kinds)}")
        if "kind" not in value:
            raise mistake(f"missing; choose one of {', '.join(kinds)}", "kind")
        return value

    return check
