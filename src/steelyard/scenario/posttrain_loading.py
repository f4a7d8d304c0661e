"""The same for post-training, apart so that serving does not wait for its schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from steelyard.scenario.checking import checked
from steelyard.scenario.load import load
from steelyard.scenario.posttrain import PosttrainScenario


def load_posttrain(path: str | PathLike[str], overrides: Sequence[str] = ()) -> PosttrainScenario:
    """The post-training scenario in a YAML or JSON file, ``--set`` overrides applied."""
    return load(PosttrainScenario, path, overrides)


def posttrain_from_dict(data: Mapping[str, Any], source: str = "<dict>") -> PosttrainScenario:
    """The post-training scenario in plain data; relative paths start from the working directory."""
    return checked(PosttrainScenario, dict(data), lambda _: source).based_in(Path(), source)
