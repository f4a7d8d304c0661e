"""Runs every contender on a scenario, several at a time. Results are kept, so that nothing is run twice."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from steelyard.errors import UserError
from steelyard.files.finding import is_file
from steelyard.files.reading import read_bytes
from steelyard.posttrain.compare_cases import Cases
from steelyard.posttrain.compare_choices import Contender
from steelyard.posttrain.compare_outcomes import JUDGED_BY, Comparison, Outcome
from steelyard.posttrain.compare_results import CompareResults
from steelyard.posttrain.run import posttrain
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.sim.workers import as_completed

Progress = Callable[[int, int], None]
Case = PosttrainScenario | UserError

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


def compare(
    scenarios: Sequence[PosttrainScenario],
    contenders: Sequence[Contender],
    folder: Path,
    workers: int = 1,
    progress: Progress | None = None,
    seeds: int = 1,
) -> list[Comparison]:
    """Run every contender on every scenario, and those close to the best with more seeds. Results of the same code in
    ``folder`` are used again. A scenario on which our choice cannot be run is not compared."""
    with closing(CompareResults(folder)) as results:
        return _compare(scenarios, contenders, results, workers, progress, seeds)


def _compare(
    scenarios: Sequence[PosttrainScenario],
    contenders: Sequence[Contender],
    results: CompareResults,
    workers: int,
    progress: Progress | None,
    seeds: int,
) -> list[Comparison]:
    tried = [{contender: [case] for contender, case in _cases(scenario, contenders)} for scenario in scenarios]
    own = [{ours: runs for ours, runs in cases.items() if ours.kind == "ours"} for cases in tried]
    _run_missing(own, results, workers, None)
    for cases in own:
        for ours, runs in cases.items():
            if refused := _outcome(ours, runs, results).refused:
                raise UserError(*refused.splitlines())
    _run_missing(tried, results, workers, progress)
    found = [_comparison(scenario, cases, results) for scenario, cases in zip(scenarios, tried, strict=True)]
    if seeds == 1:
        return found
    for first, cases in zip(found, tried, strict=True):
        for seed in range(first.scenario.seed + 1, first.scenario.seed + seeds):
            for contender, case in _cases(first.scenario.replace(seed=seed), first.close):
                cases[contender].append(case)
    _run_missing(tried, results, workers, progress)
    return [_comparison(scenario, cases, results) for scenario, cases in zip(scenarios, tried, strict=True)]


def _cases(scenario: PosttrainScenario, contenders: Iterable[Contender]) -> Iterator[tuple[Contender, Case]]:
    cases = Cases(scenario)
    for each in contenders:
        try:
            yield each, cases.of(each.choice)
        except UserError as error:
            yield each, error


def _run_missing(
    tried: Iterable[Mapping[Contender, Sequence[Case]]],
    results: CompareResults,
    workers: int,
    progress: Progress | None,
) -> None:
    wanted = {
        digest_of(case): case
        for cases in tried
        for runs in cases.values()
        for case in runs
        if isinstance(case, PosttrainScenario)
    }
    todo = {digest: case for digest, case in wanted.items() if results.get(digest) is None}
    done = len(wanted) - len(todo)
    for digest, figures in _run_all(todo, workers):
        results.add(digest, figures)
        done += 1
        if progress is not None:
            progress(done, len(wanted))


def _comparison(
    scenario: PosttrainScenario, cases: Mapping[Contender, Sequence[Case]], results: CompareResults
) -> Comparison:
    return Comparison(scenario, [_outcome(contender, runs, results) for contender, runs in cases.items()])


def _outcome(contender: Contender, cases: Sequence[Case], results: CompareResults) -> Outcome:
    runs = []
    for case in cases:
        found = {"refused": str(case)} if isinstance(case, UserError) else results.get(digest_of(case))
        assert found is not None, "all were run"
        if "refused" in found:
            return Outcome(contender, (), found["refused"])
        runs.append(found)
    return Outcome(contender, runs)


def _run_all(todo: Mapping[str, PosttrainScenario], workers: int) -> Iterator[tuple[str, dict[str, Any]]]:
    if workers == 1:
        for digest, case in todo.items():
            yield digest, figures_of(case)
        return
    digests = list(todo)
    for i, figures in as_completed(figures_of, list(todo.values()), workers):
        yield digests[i], figures


def figures_of(scenario: PosttrainScenario) -> dict[str, Any]:
    """Run a scenario. Returns the figures of its row, or why it cannot be run."""
    try:
        result = posttrain(scenario)
    except UserError as error:
        return {"refused": str(error)}
    gc.collect()  # a loop and its engines refer to each other, and nothing else would free them between two runs
    summary = result.summary
    ages = {int(age): count for age, count in summary["staleness"].items()}
    thrown = int(result.trajectories["given_up"].sum())
    return {
        "tokens_per_second": summary["tokens_per_second"],
        JUDGED_BY: summary[JUDGED_BY],
        "samples_per_second": summary["samples_per_second"],
        "step_seconds": summary["step_seconds"]["total"],
        "rollout_idle": summary["gpu_time"]["rollout"]["idle"],
        "training_idle": summary["gpu_time"]["training"]["idle"],
        "staleness": sum(age * count for age, count in ages.items()) / sum(ages.values()),
        "given_up": thrown / (thrown + summary["samples"]),
        "time_to_reward": summary.get("time_to_reward"),
    }


def digest_of(scenario: PosttrainScenario) -> str:
    """Identifies a result by the scenario, the files that it reads, and the code."""
    written = scenario.model_dump_json(exclude={"name"})
    files = [read_bytes(path) for path in _named(json.loads(written), scenario.base_dir)]
    return sha256(b"\0".join([written.encode(), *files, _code().encode()])).hexdigest()[:24]


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
            if path.is_file() and path.suffix != ".pyc" and not path.stem.startswith("compare"):
                found.update(path.relative_to(package).as_posix().encode())
                found.update(read_bytes(path))
    return found.hexdigest()
