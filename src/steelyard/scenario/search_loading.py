"""Reads search scenarios. A module of its own, so that serving does not import their schema."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

from steelyard.scenario.load import load
from steelyard.scenario.search import SearchScenario


def load_search(path: str | PathLike[str], overrides: Sequence[str] = ()) -> SearchScenario:
    """Read a search scenario from a YAML or JSON file and apply ``--set`` overrides."""
    return load(SearchScenario, path, overrides)
