"""Figures as frozen dataclasses that can be written to JSON and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from steelyard.errors import quoted


class Record:
    """Base class of all parts of a summary. Subclasses are frozen dataclasses."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, keys in the order of the fields. Fields with their default value are left out."""
        assert is_dataclass(self)
        own = [(each, getattr(self, each.name)) for each in fields(self)]
        return {each.name: _plain(value) for each, value in own if value != _default(each)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The record that ``to_dict`` wrote."""
        hints = get_type_hints(cls)
        return cls(**{name: _typed(hints[name], value, name) for name, value in data.items()})


def _default(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _typed(hint: Any, value: Any, name: str) -> Any:
    """The value as the type hint says: a record, a mapping or tuple of records, or a plain value."""
    options = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    if value is None and NoneType in options:
        return None
    hint = next(each for each in options if each is not NoneType)
    origin, of = get_origin(hint), get_args(hint)
    if isinstance(value, Mapping):
        if isinstance(hint, type) and issubclass(hint, Record):
            return hint.from_dict(value)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {key: _typed(of[1], each, key) for key, each in value.items()}
    elif isinstance(value, list) and origin is tuple:
        inner = of if len(of) == len(value) and of[-1] is not Ellipsis else (of[0],) * len(value)
        return tuple(_typed(each, one, name) for each, one in zip(inner, value, strict=True))
    elif type(value) is hint or (hint is float and type(value) is int) or origin is Literal:
        return value
    raise TypeError(f"{name} is {quoted(value)}")
