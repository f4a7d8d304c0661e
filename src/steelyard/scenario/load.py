"""From a file or a dict to a checked scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from steelyard.errors import UserError
from steelyard.scenario.overrides import Override, apply_overrides, parse_override
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.scenario.problems import dotted, findings, listed
from steelyard.scenario.reading import line_of, parse, read_text
from steelyard.scenario.scenario import Scenario

_Kind = TypeVar("_Kind", Scenario, PosttrainScenario)


def load_scenario(path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario in a YAML or JSON file, ``--set`` overrides applied; its name defaults to the file's."""
    return _loaded(Scenario, path, overrides).based_in(path.parent, str(path))


def load_posttrain(path: Path, overrides: Sequence[str] = ()) -> PosttrainScenario:
    """The same of post-training."""
    return _loaded(PosttrainScenario, path, overrides).based_in(path.parent, str(path))


def _loaded(kind: type[_Kind], path: Path, overrides: Sequence[str]) -> _Kind:
    changes = [parse_override(text) for text in overrides]
    text = read_text(path)
    data = apply_overrides(parse(text, path), changes)
    data.setdefault("name", path.stem)

    def source(key: tuple[str | int, ...]) -> str:
        line = line_of(text, key)
        return f"{path}:{line}" if line else str(path)

    return _checked(kind, data, source, changes)


def posttrain_from_dict(data: Mapping[str, Any], source: str = "<dict>") -> PosttrainScenario:
    """Post-training in plain data."""
    return _checked(PosttrainScenario, dict(data), lambda _: source, ()).based_in(Path(), source)


def scenario_from_dict(
    data: Mapping[str, Any],
    source: str = "<dict>",
    overrides: Sequence[str] = (),
    base_dir: Path | None = None,
) -> Scenario:
    """The scenario in plain data; relative paths start from ``base_dir`` (else the working directory)."""
    changes = [parse_override(text) for text in overrides]
    scenario = _checked(Scenario, apply_overrides(dict(data), changes), lambda _: source, changes)
    return scenario.based_in(base_dir or Path(), source)


def json_schema() -> dict[str, Any]:
    """JSON Schema of a scenario file, short and long forms."""
    schema = Scenario.model_json_schema(mode="validation")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Steelyard scenario",
    }


def _checked(
    kind: type[_Kind],
    data: dict[str, Any],
    source: Callable[[tuple[str | int, ...]], str],
    overrides: Sequence[Override],
) -> _Kind:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        lines = []
        for path, sentence in findings(error, data):
            where = source(path) + _override_at(path, overrides)
            lines.append(f"{where}: {dotted(path)}: {sentence}" if path else f"{where}: {sentence}")
        raise UserError(listed(lines)) from None


def _override_at(path: tuple[str | int, ...], overrides: Sequence[Override]) -> str:
    """The ``--set`` that a fault came from, if it was one: the file alone would mislead."""
    for override in reversed(overrides):
        if path[: len(override.path)] == override.path or (path and path == override.path[: len(path)]):
            return f" with --set {override.text}"
    return ""
