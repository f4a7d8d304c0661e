"""``--set key.path=value``: change a scenario's data before validation."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pydantic_core import PydanticCustomError

from steelyard.errors import UserError
from steelyard.files.limits import MOST_DEPTH
from steelyard.files.yamltext import parse_yaml
from steelyard.quoting import shortened
from steelyard.scenario.distributions import expand_seconds, expand_tokens
from steelyard.scenario.fleet import expand_fleet
from steelyard.scenario.model import expand_model
from steelyard.scenario.problems import brief, dotted
from steelyard.scenario.sessions import expand_prefix
from steelyard.scenario.workload import expand_accept, expand_priority, expand_workload

_PART = re.compile(r"[^.\[\]=]+|\[[0-9]+\]")
_INDEX = re.compile(r"\[?[0-9]{1,9}\]?")

# Short forms that are expanded if a path leads into them.
_EXPANSIONS: dict[str, Callable[[Any], Any]] = {
    "model": expand_model,
    "prompt": expand_tokens,
    "output": expand_tokens,
    "turns": expand_tokens,
    "think": expand_seconds,
    "abort_after": expand_seconds,
    "prefix": expand_prefix,
    "system": expand_prefix,
    "priority": expand_priority,
    "accept": expand_accept,
    "acceptance": expand_accept,
}


class Override(NamedTuple):
    """One ``--set``: the option as it was written, and its meaning."""

    text: str
    path: tuple[str | int, ...]
    value: Any


def parse_override(text: str, option: str = "--set") -> Override:
    """``engine.max_num_seqs=64`` or ``workload.mix[0].share=0.5``; the value is read as YAML."""
    written = f"{option} {shortened(text)}"
    key, equals, value = text.partition("=")
    key = key.strip()
    parts = _PART.findall(key)
    if not equals or not parts or len(parts) > MOST_DEPTH or _joined(parts) != key.replace(" ", ""):
        raise UserError(f"{written}: must read KEY.PATH=VALUE, such as engine.max_num_seqs=64")
    path = tuple(int(part.strip("[]")) if _INDEX.fullmatch(part) else part for part in parts)
    return Override(written, path, parse_yaml(value, written))


def apply_overrides(data: dict[str, Any], overrides: Sequence[Override]) -> dict[str, Any]:
    """A copy of the data with each override applied in turn."""
    data = copy.deepcopy(data)
    for override in overrides:
        _apply(data, override)
    return data


def _apply(data: dict[str, Any], override: Override) -> None:
    place: Any = data
    for i, part in enumerate(override.path[:-1]):
        _enter(place, part, override, i)
        if isinstance(place, dict):
            try:
                place[part] = _expanded(str(part), place.get(part), override.path[i + 1])
            except PydanticCustomError as wrong:
                where = dotted((*override.path[: i + 1], *(wrong.context or {})["path"]))
                raise UserError(f"{override.text}: {where}: {wrong.message()}") from None
        place = place[part]
    _enter(place, override.path[-1], override, len(override.path) - 1)
    place[override.path[-1]] = override.value


def _enter(place: Any, part: str | int, override: Override, depth: int) -> None:
    """Raise unless ``part`` can be looked up or added here."""
    here = dotted(override.path[:depth])
    if isinstance(place, list):
        if not isinstance(part, int):
            raise UserError(f"{override.text}: {here} is a list; follow it by an index, such as {here}[0]")
        if part >= len(place):
            raise UserError(f"{override.text}: {here} has {len(place)} entries, so [{part}] does not exist")
    elif not isinstance(place, dict):
        raise UserError(f"{override.text}: {here} is {brief(place)}, so it has no key {part!r}")
    elif isinstance(part, int):
        raise UserError(f"{override.text}: {here or 'a scenario'} is not a list, so [{part}] does not exist")


def _expanded(key: str, value: Any, following: str | int) -> Any:
    """The value of a key, in the long form if the path leads into it."""
    if value is None:
        return {}
    if key == "fleet" and following == "pools":
        return expand_fleet(value)
    if key == "workload" and following == "mix":
        return expand_workload(value)
    if key in _EXPANSIONS and isinstance(following, str) and isinstance(value, int | float | str | list):
        return _EXPANSIONS[key](value)
    return value


def _joined(parts: Sequence[str]) -> str:
    text = ""
    for part in parts:
        text += part if part.startswith("[") or not text else f".{part}"
    return text
