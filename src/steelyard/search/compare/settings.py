"""What differs between two scenarios: keys with other values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from steelyard.quoting import shortened
from steelyard.records.jsontext import compact
from steelyard.scenario import Scenario

_MOST = 120  # characters of one value
_SHORT_FORMS = {"fleet": "pools", "workload": "mix"}  # a list of one is written without it
_MISSING = object()


@dataclass(frozen=True)
class ChangedKey:
    """A key of a scenario with another value than the base has."""

    key: str
    base: str
    here: str

    def __str__(self) -> str:
        return f"{self.key}: {self.base} -> {self.here}"


def changed_keys(base: Scenario, here: Scenario) -> list[ChangedKey]:
    """Every key that differs, in the order of a scenario. A default that is spelled out is no difference; the name and
    the seed are not compared."""
    left, right = (_written(each) for each in (base, here))
    for part, listed in _SHORT_FORMS.items():
        if len(left[part][listed]) == len(right[part][listed]) == 1:
            for side in (left, right):
                side[part] = side[part].pop(listed)[0] | side[part]
    return [ChangedKey(key, _text(one), _text(other)) for key, one, other in _differing("", left, right)]


def _written(scenario: Scenario) -> dict[str, Any]:
    return scenario.model_dump(mode="json", exclude={"name", "seed"})


def _differing(key: str, base: Any, here: Any) -> Iterator[tuple[str, Any, Any]]:
    if base == here:
        return
    if isinstance(base, Mapping) and isinstance(here, Mapping) and base.get("kind") == here.get("kind"):
        for each in dict.fromkeys((*base, *here)):
            below = f"{key}.{each}" if key else each
            yield from _differing(below, base.get(each, _MISSING), here.get(each, _MISSING))
    elif isinstance(base, list) and isinstance(here, list) and len(base) == len(here):
        for i, (one, other) in enumerate(zip(base, here, strict=True)):
            yield from _differing(f"{key}[{i}]", one, other)
    else:
        yield key, base, here


def _text(value: Any) -> str:
    if value is _MISSING or value is None:
        return "not set"
    if isinstance(value, str | bool):
        return shortened(str(value).lower() if isinstance(value, bool) else value, _MOST)
    return shortened(compact(_given(value)), _MOST)


def _given(value: Any) -> Any:
    """The value without keys that are not set."""
    if isinstance(value, Mapping):
        return {key: _given(each) for key, each in value.items() if each is not None}
    return [_given(each) for each in value] if isinstance(value, list) else value
