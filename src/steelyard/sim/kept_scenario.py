"""The scenario of a result, kept beside it so that it can be simulated again."""

from __future__ import annotations

from pathlib import Path

from steelyard.files.writing import written_text
from steelyard.records.jsontext import readable
from steelyard.scenario import Scenario, load_scenario
from steelyard.scenario.base import Written

SCENARIO = "scenario.json"


def write_scenario(scenario: Written, folder: Path) -> None:
    """Write the scenario as it was given, with overrides applied, to a private folder."""
    with written_text(folder / SCENARIO) as text:
        text.write(readable(scenario.model_dump(mode="json", exclude_unset=True)))


def read_scenario(folder: Path) -> Scenario:
    """The scenario of a result folder. Files that it names by relative paths are looked for in that folder."""
    return load_scenario(folder / SCENARIO)
