"""Base of all parts of a scenario: strict keys, and errors with the path of their key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

from steelyard.errors import did_you_mean
from steelyard.scenario.checking import checked
from steelyard.scenario.problems import Path as KeyPath


def mistake(message: str, *path: str | int) -> PydanticCustomError:
    """A validation error with our own message. ``path`` leads from the raising model to the wrong key."""
    return PydanticCustomError("mistake", "{message}", {"message": message, "path": path})


class Spec(BaseModel):
    """A part of a scenario. Immutable. An unknown key is an error that suggests the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, data: Any) -> Any:
        return refuse_unknown_keys(data, cls.model_fields)

    def replace(self, **changes: Any) -> Self:
        """A copy with some keys replaced, by plain data or parts of a scenario. It is validated like a file."""
        given = {key: _plain(value) for key, value in changes.items()}
        data = {**self.model_dump(exclude_unset=True), **given}

        def place(path: KeyPath) -> str:
            replaced = str(path[0]) if path else ""
            return f"{self._place} with {replaced} replaced" if replaced in changes else self._place

        return checked(type(self), data, place)

    @property
    def _place(self) -> str:
        """Its name in messages."""
        return type(self).__name__


class Written(Spec):
    """A whole scenario file: it has a name and knows its source."""

    name: str = Field(default="scenario", min_length=1, description="Name of the run; the file's name if not given.")

    _base_dir: Path = PrivateAttr(default_factory=Path)
    _source: str = PrivateAttr(default="scenario")

    @property
    def base_dir(self) -> Path:
        """The folder that relative paths start from."""
        return self._base_dir

    @property
    def source(self) -> str:
        """Its name in messages: its file, if it came from one."""
        return self._source

    def based_in(self, folder: Path, source: str | None = None) -> Self:
        """A copy whose relative paths start from another folder, with another ``source`` for messages."""
        copy = self.model_copy()
        copy._base_dir = folder
        copy._source = source or self._source
        return copy

    def replace(self, **changes: Any) -> Self:
        """A copy with some keys replaced, by plain data or parts of a scenario. It is validated like a file."""
        return super().replace(**changes).based_in(self._base_dir, self._source)

    @property
    def _place(self) -> str:
        return self._source

    @model_validator(mode="after")
    def _names_a_folder(self) -> Self:
        if {"/", "\\"} & set(self.name) or self.name in (".", ".."):
            raise mistake("must be usable as a folder's name: no slashes", "name")
        return self


def _plain(value: Any) -> Any:
    """A part of a scenario as a user would write it."""
    return value.model_dump(exclude_unset=True) if isinstance(value, Spec) else value


def refuse_unknown_keys(data: Any, known: Mapping[str, Any]) -> Any:
    """The data, unchanged. Raises if it is a mapping with an unknown key."""
    if isinstance(data, Mapping):
        for key in data:
            if key not in known:
                raise mistake(f"unknown key; {did_you_mean(str(key), known)}", key)
    return data


def kinds_of(*specs: type[Spec]) -> list[str]:
    """The ``kind`` of each member of a union."""
    return [kind for spec in specs for kind in get_args(spec.model_fields["kind"].annotation)]


def number_or_kind(key: str, *specs: type[Spec]) -> Callable[[Any], Any]:
    """A short form: a number N stands for ``{kind: fixed, key: N}``. A mapping must name its kind."""
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
