"""What differs between two scenarios: keys with other values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import yaml

from steelyard.quoting import shortened
from steelyard.scenario import Scenario

_MOST = 240  # characters of one value
_SHORT_FORMS = {"fleet": "pools", "workload": "mix"}  # a list of one is written without it
_MISSING = object()
_Path = tuple[str | int, ...]


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
    left, right = (_Side.of(each) for each in (base, here))
    for part, listed in _SHORT_FORMS.items():
        if len(left.whole[part][listed]) == len(right.whole[part][listed]) == 1:
            left, right = left.unlisted(part, listed), right.unlisted(part, listed)
    return [
        ChangedKey(_key(path), left.text(path, one), right.text(path, other))
        for path, one, other in _differing((), left.whole, right.whole)
    ]


@dataclass(frozen=True)
class _Side:
    """A scenario with every default, to compare, and without, to be read."""

    whole: dict[str, Any]
    given: dict[str, Any]

    @classmethod
    def of(cls, scenario: Scenario) -> _Side:
        left_out = {"name", "seed"}
        return cls(
            scenario.model_dump(mode="json", exclude=left_out),
            scenario.model_dump(mode="json", exclude=left_out, exclude_defaults=True),
        )

    def unlisted(self, part: str, listed: str) -> _Side:
        whole, given = (_unlisted(each, part, listed) for each in (self.whole, self.given))
        return _Side(whole, given)

    def text(self, path: _Path, value: Any) -> str:
        """The value at a path: of one with keys of its own, those that are no defaults."""
        if value is _MISSING or value is None:
            return "not set"
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, str):
            return shortened(value, _MOST)
        if isinstance(value, int | float):
            return f"{value:g}" if value == float(f"{value:g}") else str(value)
        return shortened(_flow(_at(self.given, path)), _MOST)


def _unlisted(written: dict[str, Any], part: str, listed: str) -> dict[str, Any]:
    own = written.get(part, {})
    rest = {key: value for key, value in own.items() if key != listed}
    return {**written, part: own.get(listed, [{}])[0] | rest}


def _at(written: Any, path: _Path) -> Any:
    for each in path:
        written = written.get(each, {}) if isinstance(each, str) else written[each]
    return written


def _flow(value: Any) -> str:
    """As it would be written in a scenario, in one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=inf)
    return text.strip()


def _key(path: _Path) -> str:
    return "".join(f".{each}" if isinstance(each, str) else f"[{each}]" for each in path).removeprefix(".")


def _differing(path: _Path, base: Any, here: Any) -> Iterator[tuple[_Path, Any, Any]]:
    if base == here:
        return
    if isinstance(base, Mapping) and isinstance(here, Mapping) and base.get("kind") == here.get("kind"):
        for each in dict.fromkeys((*base, *here)):
            yield from _differing((*path, each), base.get(each, _MISSING), here.get(each, _MISSING))
    elif isinstance(base, list) and isinstance(here, list) and len(base) == len(here):
        for i, (one, other) in enumerate(zip(base, here, strict=True)):
            yield from _differing((*path, i), one, other)
    else:
        yield path, base, here
