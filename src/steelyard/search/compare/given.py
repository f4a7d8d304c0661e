"""What is given to compare: scenario files, and result folders of ``steelyard simulate``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from steelyard.errors import UserError, quoted, shown
from steelyard.files.finding import is_file, is_folder
from steelyard.files.folder import SUMMARY
from steelyard.files.jsontext import json_object
from steelyard.posttrain.compare_outcomes import JUDGED_BY
from steelyard.scenario import Scenario, load_scenario
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.scenario.reading import read_mapping
from steelyard.sim.kept_scenario import SCENARIO, read_scenario
from steelyard.sim.result import REQUESTS, Result
from steelyard.sim.setup import set_up

Kind = Literal["serving", "post-training"]

_SERVING = set(Scenario.model_fields) - set(PosttrainScenario.model_fields)
_POSTTRAIN = set(PosttrainScenario.model_fields) - set(Scenario.model_fields)


@dataclass(frozen=True)
class Given:
    """One column of a comparison: a scenario, or a result folder with the scenario that it was run from.

    Without a scenario the folder's own run is all there is, and ``why`` says why.
    """

    name: str
    path: Path
    scenario: Scenario | None
    kept: Result | None = None
    why: str = ""


def kind_of(paths: Sequence[Path]) -> Kind:
    """Which kind of comparison is asked for. Raises UserError for a mix of kinds."""
    kinds = {path: _kind(path) for path in paths}
    serving = next((path for path, kind in kinds.items() if kind == "serving"), None)
    after = next((path for path, kind in kinds.items() if kind == "post-training"), None)
    if serving is not None and after is not None:
        raise UserError(
            f"compare: {shown(serving)} is for serving and {shown(after)} is for post-training; compare one kind at a "
            "time"
        )
    return "post-training" if serving is None else "serving"


def _kind(path: Path) -> Kind:
    if is_folder(path):
        return "serving"
    keys = set(read_mapping(path)[0])
    return "serving" if len(keys & _SERVING) > len(keys & _POSTTRAIN) else "post-training"


def read_given(paths: Sequence[Path], overrides: Sequence[str]) -> list[Given]:
    """Read and check everything that is to be compared, so that a mistake costs no run."""
    if len(paths) < 2:
        raise UserError(
            f"compare: {shown(paths[0])} is the only one; give two or more serving scenarios or result folders"
        )
    return _named([_folder(path, overrides) if is_folder(path) else _scenario(path, overrides) for path in paths])


def _scenario(path: Path, overrides: Sequence[str]) -> Given:
    scenario = load_scenario(path, overrides)
    set_up(scenario)
    return Given(scenario.name, path, scenario)


def _folder(path: Path, overrides: Sequence[str]) -> Given:
    if overrides:
        raise UserError(f"--set {quoted(overrides[0])}: changes scenarios, and {shown(path)} is a result folder")
    if JUDGED_BY in json_object(path / SUMMARY, "a result folder"):
        raise UserError(
            f"{shown(path)}: is a result of post-training; give result folders of `steelyard simulate`, or scenarios"
        )
    kept = Result.load(path)
    if not kept.has("requests"):
        raise UserError(f"{shown(path)}: has no {REQUESTS}; give a result folder of `steelyard simulate`")
    name = path.resolve().name
    if not is_file(path / SCENARIO):
        return Given(name, path, None, kept, f"it holds no {SCENARIO}")
    try:
        scenario = read_scenario(path)
        set_up(scenario)
    except UserError as error:
        return Given(name, path, None, kept, str(error.args[0]))
    return Given(name, path, scenario, kept)


def _named(found: Sequence[Given]) -> list[Given]:
    """With names of their own: equal ones become paths, and are numbered if these are equal, too."""
    names = Counter(each.name for each in found)
    by_path = [replace(each, name=str(each.path)) if names[each.name] > 1 else each for each in found]
    taken: Counter[str] = Counter()
    numbered = []
    for each in by_path:
        taken[each.name] += 1
        numbered.append(each if taken[each.name] == 1 else replace(each, name=f"{each.name} ({taken[each.name]})"))
    return numbered
