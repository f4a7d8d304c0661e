"""Work shared out to processes: as if done here, whatever happens to them."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe, active_children, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from steelyard import UserError, scenario_from_dict, simulate
from steelyard.sim import with_intervals
from steelyard.sim import workers as module
from steelyard.sim.workers import as_completed, free_cores, run_all

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


def test_stopping_early_ends_the_workers() -> None:
    both: list[Any] = [run_all(squared, TASKS, 2), as_completed(squared, TASKS, 2)]
    for runs in both:
        next(runs)
        assert active_children()
        runs.close()
        assert not active_children()


@pytest.mark.parametrize("workers", [1, 2, 7, 20])
def test_results_come_as_they_are_completed(workers: int) -> None:
    found = dict(as_completed(squared, TASKS, workers))
    assert {place: square for place, (square, _) in found.items()} == {number: number**2 for number in TASKS}
    assert os.getpid() not in {process for _, process in found.values()} and not active_children()
    assert list(as_completed(squared, [], workers)) == []


@pytest.mark.parametrize(("function", "error"), [(fails_at_three, "three is none"), (dies_at_three, "enough memory")])
@pytest.mark.parametrize("workers", [1, 3])
def test_the_end_of_one_worker_is_told_while_others_wait(
    function: Callable[[int], int], error: str, workers: int
) -> None:
    """Others must not hold the dead one's pipe open."""
    with pytest.raises(UserError, match=error):
        list(as_completed(function, TASKS, workers))
    assert not active_children()


def unpicklable(number: int) -> Callable[[], int]:
    return lambda: number


def breaks(number: int) -> int:
    return [0][number]


def test_what_cannot_be_sent_is_told_and_where_an_error_was() -> None:
    with pytest.raises(RuntimeError, match="cannot send its result"):
        list(run_all(unpicklable, TASKS, 2))
    with pytest.raises(IndexError) as caught:
        list(run_all(breaks, TASKS, 2))
    assert "return [0][number]" in "".join(caught.value.__notes__)


def sleeps(seconds: float) -> None:
    time.sleep(seconds)


def orphaned(told: Connection) -> None:
    """A parent with two workers, which tells who they are and is killed."""
    runs = run_all(sleeps, [60.0, 60.0], 2)
    threading.Thread(target=lambda: next(runs), daemon=True).start()
    while len(workers := active_children()) < 2 or not all(each.pid for each in workers):
        time.sleep(0.01)
    told.send([each.pid for each in workers])
    time.sleep(60)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("way", ["prctl", "pipe"])
def test_workers_end_with_a_parent_that_is_killed(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if way == "pipe":
        monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace(prctl=lambda *_: None))
    else:
        monkeypatch.setattr(module, "_wait_for_end", lambda alive: None)
    hears, tells = Pipe(duplex=False)
    parent = get_context("fork").Process(target=orphaned, args=(tells,))
    parent.start()
    workers = hears.recv()
    parent.kill()
    parent.join()

    def gone(process: int) -> bool:
        try:
            return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
        except FileNotFoundError:
            return True

    for _ in range(100):
        if all(map(gone, workers)):
            return
        time.sleep(0.05)
    raise AssertionError("they live on")


@pytest.mark.parametrize(("gpu", "workers"), [("h100", 1), ("h100", 3), ("h200", 2)])
def test_intervals_are_the_same_for_any_number_of_workers(gpu: str, workers: int) -> None:
    workload = {"arrivals": {"kind": "poisson", "rate": 8}, "requests": 40, "prompt": 300, "output": 30}
    result = simulate(scenario_from_dict({"model": "llama-3.1-8b", "fleet": {"gpu": gpu}, "workload": workload}))
    seen: list[tuple[int, int]] = []
    shared = with_intervals(result, lambda *done: seen.append(done), workers).summary
    assert shared == with_intervals(result, workers=0).summary and shared.intervals is not None
    assert seen == [(done + 1, len(seen)) for done in range(len(seen))]
