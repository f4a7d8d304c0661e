"""Turns pydantic's errors into messages with the key, the value and what would be right."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from steelyard.errors import did_you_mean

Path = tuple[str | int, ...]

_MOST_SHOWN = 8
_WHOLE = "must be a whole number"
_NUMBER = "must be a number"
_TEXT = "must be text"
_MAPPING = "must be a mapping (key: value)"
_LIST = "must be a list"
_WORDS = {
    "missing": "missing",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": _TEXT,
    "string_too_short": "must not be empty",
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "dict_type": _MAPPING,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "needs at least {min_length} entry",
    "too_long": "has {actual_length} entries; at most {max_length}",
}


def findings(error: ValidationError, data: Any) -> list[tuple[Path, str]]:
    """(key path as the user wrote it, message) of each mistake."""
    found = []
    errors = error.errors(include_url=False)
    for each in errors:
        if each["type"] == "too_short" and _has_deeper(errors, each["loc"]):
            continue  # pydantic did not count faulty entries; their own errors say more
        context = each.get("ctx", {})
        extra = tuple(context.get("path", ()))
        named = bool(extra) or each["type"] == "missing"
        if each["type"] == "union_tag_invalid":
            extra, named = ("kind",), True
        path = as_written((*each["loc"], *extra), data, named)
        sentence = _sentence(each["type"], each["msg"], context, each["input"])
        found.append((path, sentence + _value(path, data, plain_only=each["type"] == "mistake")))
    return found


def listed(lines: Sequence[str]) -> list[str]:
    """Several mistakes for one message: the first few, and how many more there are."""
    shown = list(lines[:_MOST_SHOWN])
    if len(lines) > _MOST_SHOWN:
        shown.append(f"... and {len(lines) - _MOST_SHOWN} more")
    return shown


def as_written(location: Path, data: Any, named: bool) -> Path:
    """The path that the user wrote, for a path in the long form.

    Parts that the user did not write (the branch of a union, what a short form expands to) are left out. The last part
    stays if it is ``named`` as the wrong key, even if it is missing.
    """
    path: list[str | int] = []
    for i, part in enumerate(location):
        inside = False
        if isinstance(data, Mapping):
            inside = part in data
        elif isinstance(data, Sequence) and not isinstance(data, str) and isinstance(part, int):
            inside = part < len(data)
        if inside:
            path.append(part)
            data = data[part]
        elif named and i == len(location) - 1 and isinstance(data, Mapping):
            path.append(part)
    return tuple(path)


def dotted(path: Path) -> str:
    """A path as on the command line: ``workload.mix[0].prompt``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) and text else f".{part}" if text else str(part)
    return text


def brief(value: Any) -> str:
    """A value, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _has_deeper(errors: Sequence[ErrorDetails], location: Path) -> bool:
    return any(len(each["loc"]) > len(location) and each["loc"][: len(location)] == location for each in errors)


def _sentence(kind: str, message: str, context: Mapping[str, Any], value: Any) -> str:
    if kind == "mistake":
        return str(context["message"])
    if kind in ("literal_error", "union_tag_invalid"):
        choices = re.findall(r"'([^']*)'", context.get("expected", context.get("expected_tags", "")))
        return "not a choice; " + did_you_mean(str(context.get("tag", value)), choices)
    if kind in _WORDS:
        return _WORDS[kind].format(**{name: _figure(value) for name, value in context.items()})
    return message[:1].lower() + message[1:]


def _figure(value: Any) -> str:
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _value(path: Path, data: Any, plain_only: bool) -> str:
    """The value at a path, as text. With ``plain_only`` empty for mappings and lists."""
    for part in path:
        if isinstance(data, Mapping) and part not in data:
            return ""
        data = data[part]
    return "" if plain_only and isinstance(data, Mapping | list) else f" (found {brief(data)})"
