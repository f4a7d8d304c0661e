"""From a point of a search to a scenario file that can be run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steelyard.errors import UserError, quoted
from steelyard.files.finding import is_file
from steelyard.files.jsontext import json_object
from steelyard.files.writing import write_text
from steelyard.records.jsontext import compact, readable
from steelyard.report.names import file_name
from steelyard.scenario import Scenario
from steelyard.scenario.load import load
from steelyard.scenario.search import SearchScenario
from steelyard.search.kinds import as_scenario
from steelyard.search.loads import Load
from steelyard.sim.content import digest
from steelyard.sim.kept_scenario import SCENARIO
from steelyard.ui.folder import UiFolder
from steelyard.ui.listing import SEARCH


def point_scenario(folder: Path, level: str, name: str) -> Scenario:
    """The scenario of a choice of a search, under the load that it carries."""
    if not is_file(folder / SCENARIO):
        raise UserError(f"{folder.name}: has no {SCENARIO}: it was searched by an older version; search again")
    search = load(SearchScenario, folder / SCENARIO, [])
    choice, slo = _choice(json_object(folder / SEARCH), level, name)
    scenario = as_scenario(search, choice["fleet"], choice["quantization"]).replace(slo=slo)
    requests = max(search.search.requests, round(choice["rate"] * search.search.seconds))
    return Load(scenario).at(choice["rate"], requests)


def _choice(found: dict[str, Any], level: str, name: str) -> tuple[dict[str, Any], dict[str, float]]:
    for each in found["levels"]:
        for choice in each["choices"]:
            if each["level"] == level and choice["name"] == name:
                return choice, each["slo"]
    raise UserError(f"{quoted(name)}: is no choice of this search")


def write_point(ui: UiFolder, run: str, level: str, name: str) -> str:
    """Write the scenario of a choice as a file of the folder; the file's name. The same choice has the same file."""
    scenario = point_scenario(ui.run(run), level, name)
    written = scenario.model_dump(mode="json", exclude_unset=True)
    stem = file_name(f"{run}-{name}")[:60]
    written["name"] = f"{stem}-{digest(compact(written))[:6]}"
    path = ui.new_scenario(f"{written['name']}.json")
    write_text(path, readable(written))
    return path.name
