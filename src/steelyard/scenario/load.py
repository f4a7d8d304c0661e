"""From a file or a dict to a validated scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from steelyard.scenario.base import Written
from steelyard.scenario.checking import checked
from steelyard.scenario.overrides import Override, apply_overrides, parse_override
from steelyard.scenario.reading import read_mapping
from steelyard.scenario.scenario import Scenario

_Kind = TypeVar("_Kind", bound=Written)


def load_scenario(path: str | PathLike[str], overrides: Sequence[str] = ()) -> Scenario:
    """Read a scenario from a YAML or JSON file and apply ``--set`` overrides. Its name defaults to the file's."""
    return load(Scenario, path, overrides)


def load(kind: type[_Kind], path: str | PathLike[str], overrides: Sequence[str]) -> _Kind:
    """A scenario of either kind."""
    changes = [parse_override(text) for text in overrides]
    return ScenarioFile(Path(path)).scenario(kind, changes)


class ScenarioFile:
    """A scenario file, read once, for many scenarios that differ in their overrides."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written, self._line_of = read_mapping(path)

    def scenario(self, kind: type[_Kind], changes: Sequence[Override]) -> _Kind:
        """The scenario with these changes. Its name defaults to the file's."""
        data = apply_overrides(self.written, changes)
        data.setdefault("name", self.path.stem)

        def place(key: tuple[str | int, ...]) -> str:
            line = self._line_of(key)
            return (f"{self.path}:{line}" if line else str(self.path)) + _override_at(key, changes)

        return checked(kind, data, place).based_in(self.path.parent, str(self.path))


def scenario_from_dict(
    data: Mapping[str, Any],
    source: str = "<dict>",
    overrides: Sequence[str] = (),
    base_dir: Path | None = None,
) -> Scenario:
    """A scenario from plain data. Relative paths start from ``base_dir``, by default the working directory."""
    changes = [parse_override(text) for text in overrides]
    written = apply_overrides(dict(data), changes)
    scenario = checked(Scenario, written, lambda key: source + _override_at(key, changes))
    return scenario.based_in(base_dir or Path(), source)


def json_schema() -> dict[str, Any]:
    """JSON Schema of a serving scenario's file, short and long forms."""
    return schema_of(Scenario, "Steelyard scenario")


def schema_of(kind: type[Written], title: str) -> dict[str, Any]:
    """JSON Schema of the files of a kind of scenario."""
    schema = kind.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": title}


def _override_at(path: tuple[str | int, ...], overrides: Sequence[Override]) -> str:
    """The ``--set`` that a mistake came from, if any."""
    for override in reversed(overrides):
        if path[: len(override.path)] == override.path or (path and path == override.path[: len(path)]):
            return f" with {override.text}"
    return ""
