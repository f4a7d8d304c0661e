"""The state of objects as plain values, to compare two of them whatever their classes define as equal."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import MethodType
from typing import Any

import numpy as np


def state(value: Any, seen: dict[int, int] | None = None) -> Any:
    """Nested tuples of a value and all that it refers to; what was met before is named by when."""
    seen = {} if seen is None else seen
    if value is None or isinstance(value, bool | int | float | str | bytes | Enum):
        return value
    if isinstance(value, np.ndarray):
        return "array", value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, type) or (
        callable(value) and not hasattr(value, "__dict__") and not isinstance(value, MethodType)
    ):
        return getattr(value, "__qualname__", repr(value))
    if id(value) in seen:
        return "again", seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, MethodType):
        return "method", value.__func__.__qualname__, state(value.__self__, seen)
    if isinstance(value, Mapping):
        return tuple((state(key, seen), state(each, seen)) for key, each in value.items())
    if isinstance(value, set | frozenset):
        return tuple(sorted(map(repr, value)))
    if isinstance(value, list | tuple | deque):
        return tuple(state(each, seen) for each in value)
    return type(value).__qualname__, tuple((name, state(each, seen)) for name, each in _attributes(value))


def _attributes(value: Any) -> list[tuple[str, Any]]:
    found = dict(vars(value)) if hasattr(value, "__dict__") else {}
    if is_dataclass(value):
        found |= {each.name: getattr(value, each.name) for each in fields(value)}
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found.setdefault(name, getattr(value, name))
    return sorted(found.items())
