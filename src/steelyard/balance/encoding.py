"""Dataclasses as JSON and back: numbers bit for bit, and mistakes named by their key.

Events, commands and settings are plain dataclasses, so their annotations say all that is needed to read them. A value
whose class is not given by the annotation alone (one of several) carries its class as ``kind``.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from math import inf, isinf
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from steelyard.errors import UserError, did_you_mean

_NUMBERS = {"inf": inf, "-inf": -inf}
_LATER = "added later"
ADDED_LATER = {_LATER: True}
"""Metadata of a field that logs of earlier versions do not have. Its default is what they decided by."""


def encode(value: Any, kind: bool = False) -> Any:
    """A value as JSON takes it; dataclasses with their kind first, if asked for."""
    cls: type = type(value)
    if is_dataclass(cls):
        named = {"kind": cls.__name__} if kind else {}
        hints = _hints(cls)
        return named | {name: encode(getattr(value, name), _several(hints[name])) for name in hints}
    if isinstance(value, tuple | list):
        return [encode(each, kind) for each in value]
    if isinstance(value, float) and isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def decode(cls: type, row: Any, where: str) -> Any:
    """A dataclass out of its JSON. Fields with `ADDED_LATER` may be missing: then they have their defaults."""
    if not isinstance(row, dict):
        raise UserError(f"{where}: must be a JSON object (found {str(row)[:40]!r})")
    hints = _hints(cls)
    for key in row:
        if key not in hints:
            raise UserError(f"{where}: {cls.__name__} has no {key!r}; {did_you_mean(key, hints)}")
    for each in fields(cls):
        if each.name in hints and each.name not in row and _LATER not in each.metadata:
            raise UserError(f"{where}: {cls.__name__}: {each.name} is missing")
    told = f"{where}: {cls.__name__}"
    return cls(**{name: _value(hint, row[name], f"{told}: {name}") for name, hint in hints.items() if name in row})


def decode_kind(kinds: dict[str, type], row: Any, where: str) -> Any:
    """A dataclass that names its kind."""
    if not isinstance(row, dict):
        raise UserError(f"{where}: must be a JSON object (found {str(row)[:40]!r})")
    kind = row.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise UserError(f"{where}: kind is {kind!r}; {did_you_mean(str(kind), kinds)}")
    return decode(kinds[kind], {key: value for key, value in row.items() if key != "kind"}, where)


@cache
def _hints(cls: type) -> dict[str, Any]:
    """The annotation of each field that is given on creation."""
    known = get_type_hints(cls)
    return {each.name: known[each.name] for each in fields(cls) if each.init}


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


@cache
def _several(hint: Any) -> bool:
    """Whether an annotation, or that of its items, leaves several dataclasses open."""
    if get_origin(hint) is tuple:
        return any(_several(each) for each in get_args(hint) if each is not Ellipsis)
    return sum(is_dataclass(each) for each in _options(hint)) > 1


def _value(hint: Any, value: Any, where: str) -> Any:
    options = _options(hint)
    if value is None and NoneType in options:
        return None
    if _several(hint) and get_origin(hint) is not tuple:
        kinds: dict[str, type] = {each.__name__: each for each in options if is_dataclass(each)}  # type: ignore[union-attr, misc]
        return decode_kind(kinds, value, where)
    for option in options:
        found = _plain(option, value, where)
        if found is not _NO:
            return found
    raise UserError(f"{where}: must be {_said(hint)} (found {str(value)[:40]!r})")


_NO = object()


def _plain(option: Any, value: Any, where: str) -> Any:
    """A value of one annotation; `_NO` if it is none."""
    if is_dataclass(option):
        assert isinstance(option, type)
        return decode(option, value, where)
    if get_origin(option) is tuple:
        return _items(get_args(option), value, where)
    if get_origin(option) is Literal:
        return value if value in get_args(option) else _NO
    if option is float:
        if isinstance(value, str):
            return _NUMBERS.get(value, _NO)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else _NO
    if option is int:
        return value if isinstance(value, int) and not isinstance(value, bool) else _NO
    return value if isinstance(option, type) and isinstance(value, option) else _NO


def _items(items: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, list):
        return _NO
    if len(items) == 2 and items[1] is Ellipsis:
        return tuple(_value(items[0], each, f"{where}[{i}]") for i, each in enumerate(value))
    if len(items) != len(value):
        return _NO
    return tuple(_value(each, item, f"{where}[{i}]") for i, (each, item) in enumerate(zip(items, value, strict=True)))


def _said(hint: Any) -> str:
    return " or ".join(getattr(each, "__name__", str(each)) for each in _options(hint))
