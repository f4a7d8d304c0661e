"""Reads post-training scenarios. A module of its own, so that serving does not import their schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from steelyard.scenario.checking import checked
from steelyard.scenario.load import load
from steelyard.scenario.posttrain import PosttrainScenario


def load_posttrain(path: str | PathLike[str], overrides: Sequence[str] = ()) -> PosttrainScenario:
    """Read a post-training scenario from a YAML or JSON file and apply ``--set`` overrides."""
    return load(PosttrainScenario, path, overrides)


def posttrain_from_dict(data: Mapping[str, Any], source: str = "<dict>") -> PosttrainScenario:
    """A post-training scenario from plain data. Relative paths start from the working directory."""
    return checked(PosttrainScenario, dict(data), lambda _: source).based_in(Path(), source)
