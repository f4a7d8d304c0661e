"""Runs of a comparison, several at a time. Results are kept, so that nothing is run twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from steelyard.collector import collector_off
from steelyard.errors import UserError
from steelyard.files.finding import is_file
from steelyard.files.reading import read_bytes
from steelyard.posttrain.choosing import STEPS, Tried, choose, try_ways
from steelyard.posttrain.compare_outcomes import JUDGED_BY
from steelyard.posttrain.compare_plans import Plans, fixed_plans, of_its_kind
from steelyard.posttrain.compare_results import CompareResults
from steelyard.posttrain.result import PosttrainResult
from steelyard.posttrain.run import posttrain
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.sim.workers import as_completed

Progress = Callable[[int, int], None]

_ROOMS = (
    "files",
    "scenario",
    "workload",
    "model",
    "hardware",
    "cost",
    "engine",
    "fleet",
    "sim",
    "balance",
    "posttrain",
)


class ComparedRuns:
    """Figures of scenarios and fixed splits of kinds of ways, from the results that are kept or by running."""

    def __init__(self, results: CompareResults, workers: int, progress: Progress | None) -> None:
        self._results, self._workers, self._progress = results, workers, progress

    def figures(self, scenario: PosttrainScenario) -> Mapping[str, Any]:
        """The figures of a scenario that was run."""
        found = self._results.get(digest_of(scenario))
        assert found is not None, "all were run"
        return found

    def plans(self, scenario: PosttrainScenario) -> Plans:
        """The fixed splits for a scenario, of which a kind of it was searched."""
        found = self._results.get(_search(of_its_kind(scenario)))
        assert found is not None, "all were searched"
        plans: Plans = found.get("plans", ())
        return plans

    def chosen(self, scenario: PosttrainScenario, seed: int) -> tuple[str, PosttrainScenario]:
        """The way that is chosen for a scenario with an objective: its name, and the scenario in that way. The choice
        is that for the scenario with this seed."""
        assert scenario.objective is not None, "there is something to choose for"
        apart = scenario.replace(objective=None, seed=seed)
        self._all({_ways(apart): apart}, ways_of)
        found = self._results.get(_ways(apart)) or {}
        if "refused" in found:
            raise UserError(*found["refused"].splitlines())
        tried = [Tried(**each) for each in found["ways"]]
        best = choose(scenario, scenario.objective, tried)
        return best.tried[0].way, best.scenario

    def run(self, scenarios: Iterable[PosttrainScenario]) -> None:
        """Run those that have no results yet."""
        self._all({digest_of(each): each for each in scenarios}, figures_of)

    def search(self, scenarios: Iterable[PosttrainScenario]) -> None:
        """Search the splits of those with planner ``static-best`` that have none yet, each kind once."""
        kinds = [of_its_kind(each) for each in scenarios if each.planner == "static-best"]
        self._all({_search(each): each for each in kinds}, plans_of)

    def _all(
        self, wanted: Mapping[str, PosttrainScenario], answer: Callable[[PosttrainScenario], dict[str, Any]]
    ) -> None:
        todo = {digest: each for digest, each in wanted.items() if self._results.get(digest) is None}
        done = len(wanted) - len(todo)
        for digest, found in _answers(todo, answer, self._workers):
            self._results.add(digest, found)
            done += 1
            if self._progress is not None:
                self._progress(done, len(wanted))


def _answers(
    todo: Mapping[str, PosttrainScenario], answer: Callable[[PosttrainScenario], dict[str, Any]], workers: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    if workers == 1:
        for digest, each in todo.items():
            yield digest, answer(each)
        return
    digests = list(todo)
    for i, found in as_completed(answer, list(todo.values()), workers):
        yield digests[i], found


def plans_of(scenario: PosttrainScenario) -> dict[str, Any]:
    """The fixed splits of a kind of ways, or why there are none."""
    try:
        return {"plans": fixed_plans(scenario)}
    except UserError as error:
        return {"refused": str(error)}


def ways_of(scenario: PosttrainScenario) -> dict[str, Any]:
    """What each way to run a scenario comes to, or why there is none."""
    try:
        return {"ways": [asdict(each) for each in try_ways(scenario, lambda each: posttrain(each).summary)]}
    except UserError as error:
        return {"refused": "\n".join(error.args)}


def figures_of(scenario: PosttrainScenario) -> dict[str, Any]:
    """Run a scenario. Returns the figures of its row, or why it cannot be run."""
    with collector_off():  # a loop and its engines refer to each other: when it ends here, they are free
        try:
            return _figures(posttrain(scenario))
        except UserError as error:
            return {"refused": str(error)}


def _figures(result: PosttrainResult) -> dict[str, Any]:
    summary = result.summary
    ages = {int(age): count for age, count in summary["staleness"].items()}
    thrown = int(result.trajectories["given_up"].sum())
    found = {
        "tokens_per_second": summary["tokens_per_second"],
        JUDGED_BY: summary[JUDGED_BY],
        "samples_per_second": summary["samples_per_second"],
        "settled_samples_per_second": summary["settled_samples_per_second"],
        "step_seconds": summary["step_seconds"]["total"],
        "first_step_seconds": result.records[0].synced,
        "rollout_idle": summary["gpu_time"]["rollout"]["idle"],
        "training_idle": summary["gpu_time"]["training"]["idle"],
        "staleness": sum(age * count for age, count in ages.items()) / sum(ages.values()),
        "given_up": thrown / (thrown + summary["samples"]),
        "time_to_reward": summary.get("time_to_reward"),
    }
    if "effective" in summary:
        found["effective_tokens_per_second"] = summary["effective"]["tokens_per_second"]
    return found


def digest_of(scenario: PosttrainScenario) -> str:
    """Identifies a result by the scenario, the files that it reads, and the code."""
    written = scenario.model_dump_json(exclude={"name"})
    files = [read_bytes(path) for path in _named(json.loads(written), scenario.base_dir)]
    return sha256(b"\0".join([written.encode(), *files, _code().encode()])).hexdigest()[:24]


def _ways(scenario: PosttrainScenario) -> str:
    """Identifies short runs of all ways, which have their own number of steps."""
    return f"ways-{digest_of(scenario.replace(steps=STEPS))}"


def _search(scenario: PosttrainScenario) -> str:
    """Identifies a search."""
    return f"split-{digest_of(scenario)}"


def _named(written: Any, base: Path) -> Iterator[Path]:
    """Files that a scenario names under any key: trajectories, a model's config, a calibration."""
    if isinstance(written, str):
        if written and is_file(base / written):
            yield base / written
    elif isinstance(written, dict | list):
        for each in written.values() if isinstance(written, dict) else written:
            yield from _named(each, base)


@cache
def _code() -> str:
    """A digest of the code and data that figures depend on."""
    package, found = Path(__file__).parents[1], sha256()
    for room in _ROOMS:
        for path in sorted((package / room).rglob("*")):
            if path.is_file() and path.suffix not in (".pyc", ".so") and not path.stem.startswith("compare"):
                found.update(path.relative_to(package).as_posix().encode())
                found.update(read_bytes(path))
    return found.hexdigest()
