"""Work shared out to processes: as if done here, whatever happens to them."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import active_children

import pytest

from steelyard import UserError, scenario_from_dict, simulate
from steelyard.sim import with_intervals
from steelyard.sim.workers import free_cores, run_all

TASKS = list(range(7))


def squared(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def fails_at_three(number: int) -> int:
    if number == 3:
        raise UserError("three is none")
    return number


def dies_at_three(number: int) -> int:
    if number == 3:
        os._exit(1)
    return number


@pytest.mark.parametrize("workers", [0, 1, 2, 7, 20])
def test_results_come_in_the_order_of_tasks(workers: int) -> None:
    found = list(run_all(squared, TASKS, workers))
    assert [square for square, _ in found] == [number * number for number in TASKS]
    places = {process for _, process in found}
    assert places == {os.getpid()} if workers == 0 else len(places) == min(workers, len(TASKS))
    assert not active_children()


def test_one_task_or_none_needs_no_process() -> None:
    assert list(run_all(squared, [], 4)) == []
    assert list(run_all(squared, [3], 4)) == [(9, os.getpid())]
    assert free_cores() >= 1


@pytest.mark.parametrize(("function", "error"), [(fails_at_three, "three is none"), (dies_at_three, "enough memory")])
def test_what_goes_wrong_there_is_told_here(function: Callable[[int], int], error: str) -> None:
    found = []
    with pytest.raises((UserError, RuntimeError), match=error):
        for each in run_all(function, TASKS, 2):
            found.append(each)
    assert found == [0, 1, 2] and not active_children()


def test_whoever_stops_early_ends_the_workers() -> None:
    runs = run_all(squared, TASKS, 2)
    assert next(runs)[0] == 0 and active_children()
    runs.close()  # type: ignore[attr-defined]
    assert not active_children()


@pytest.mark.parametrize(("gpu", "workers"), [("h100", 1), ("h100", 3), ("h200", 2)])
def test_intervals_are_the_same_for_any_number_of_workers(gpu: str, workers: int) -> None:
    workload = {"arrivals": {"kind": "poisson", "rate": 8}, "requests": 40, "prompt": 300, "output": 30}
    result = simulate(scenario_from_dict({"model": "llama-3.1-8b", "fleet": {"gpu": gpu}, "workload": workload}))
    seen: list[tuple[int, int]] = []
    shared = with_intervals(result, lambda *done: seen.append(done), workers).summary
    assert shared == with_intervals(result, workers=0).summary and shared.intervals is not None
    assert seen == [(done + 1, len(seen)) for done in range(len(seen))]
