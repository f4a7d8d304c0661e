"""Reads post-training scenarios. A module of its own, so that serving does not import their schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from steelyard.scenario.checking import checked
from steelyard.scenario.load import load, schema_of
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.scenario.rollouts import preset_schema


def load_posttrain(path: str | PathLike[str], overrides: Sequence[str] = ()) -> PosttrainScenario:
    """Read a post-training scenario from a YAML or JSON file and apply ``--set`` overrides."""
    return load(PosttrainScenario, path, overrides)


def posttrain_from_dict(data: Mapping[str, Any], source: str = "<dict>") -> PosttrainScenario:
    """A post-training scenario from plain data. Relative paths start from the working directory."""
    return checked(PosttrainScenario, dict(data), lambda _: source).based_in(Path(), source)


def posttrain_schema() -> dict[str, Any]:
    """JSON Schema of a post-training scenario's file, short and long forms."""
    schema = schema_of(PosttrainScenario, "Steelyard post-training scenario")
    defined = schema["$defs"]
    defined["PresetTrajectories"] = preset_schema(defined["TrajectorySpec"])
    schema["properties"]["trajectories"]["anyOf"].append({"$ref": "#/$defs/PresetTrajectories"})
    return schema
