"""Memory of a run does not grow with its steps: of what is over only rows of a table are kept."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from steelyard.balance.estimate import History, Oracle
from steelyard.balance.estimate.trie import PaperTrie
from steelyard.engine import BlockNames, BriefLog, Request
from steelyard.posttrain.attempt import Attempt
from steelyard.posttrain.core import core_settings
from steelyard.posttrain.engines import EngineKind
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.recent import _BATCHES, EndedBatches, Recent
from steelyard.posttrain.record import StepRecord
from steelyard.posttrain.run import posttrain
from steelyard.posttrain.setup import set_up_posttrain
from steelyard.posttrain.trajectory_table import TrajectoryTable
from steelyard.records import Trajectory, Turn
from steelyard.scenario import posttrain_from_dict
from steelyard.sim.prepared import prepare
from support.whole_record import WholeRecord, kept

GROUPS, SIZE = 8, 4
SMALL: dict[str, Any] = {
    "model": "qwen3-14b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": GROUPS, "group": SIZE},
    "rollout": [{"tp": 2, "replicas": 1}],
    "training": {"tp": 4, "dp": 2, "micro_batch_tokens": 24576},
    "engine": {"block_size": 64, "num_gpu_blocks": 1000},
    "mode": "one-step-off",
    "steps": 21,
}
PARTIAL = {"tail": "partial", "mode": "asynchronous", "router": "c-mlfq", "estimator": "oracle"}


@pytest.mark.parametrize("more", [{}, PARTIAL])
def test_a_run_hardly_needs_more_memory_after_its_tenth_step(more: dict[str, Any]) -> None:
    """A few hundred bytes are allowed for each trajectory: its row, and its last epoch in the core, which remembers so
    many and no more. A trajectory itself takes kilobytes."""
    held: dict[int, int] = {}

    def look(done: int, _: int) -> None:
        held[done] = tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        posttrain(posttrain_from_dict({**SMALL, **more}), look)
    finally:
        tracemalloc.stop()
    between = 10 * GROUPS * SIZE
    assert (held[20] - held[10]) / between < 800


def over(number: int) -> Attempt:
    """A trajectory that is over."""
    each = Attempt(Trajectory(f"id {number}", f"prompt {number % 7}", "task", (Turn(9),)), number % 3, number / 8)
    each.turns, each.ended, each.versions = 1 + number % 5, number / 4, {0: number, 1: 1}
    return each


def test_rows_are_those_of_the_trajectories_in_the_order_in_which_they_ended() -> None:
    table, count = TrajectoryTable(), 3000  # some packed, some not
    attempts = [over(number) for number in range(count)]
    stopped = [over(number) for number in range(count, count + 5)]
    for number, each in enumerate(attempts):
        table.end(each)
        if number % 3 == 0:
            table.train(number // 100, each)
        elif number % 3 == 1:
            table.drop(each)
    for each in stopped:
        table.drop(each)
    columns, every = table.columns(), [*attempts, *stopped]
    assert columns["id"].tolist() == [each.trajectory.id for each in every]
    assert columns["prompt"].tolist() == [each.trajectory.prompt for each in every]
    assert columns["ended"].tolist() == [each.ended for each in every]
    assert columns["generated"].tolist() == [each.generated for each in every]
    fates = [number // 100 if number % 3 == 0 else -1 for number in range(count)] + [-1] * 5
    assert columns["step"].tolist() == fates and columns["step"].dtype == np.int64
    assert columns["given_up"].tolist() == [number % 3 == 1 or number >= count for number in range(count + 5)]
    assert table.ended()["begun"].tolist() == [each.begun for each in attempts]


def test_an_empty_table_has_its_columns() -> None:
    columns = TrajectoryTable().columns()
    assert {name: len(column) for name, column in columns.items()} == dict.fromkeys(columns, 0)
    assert columns["begun"].dtype == np.float64 and columns["id"].dtype == object


class AllOfThem:
    """What planners are told, by all trajectories that have ended since the run began."""

    def __init__(self, loop: Loop) -> None:
        self.batches = EndedBatches(loop)
        self.loop, self.size = loop, GROUPS * SIZE
        self.found: list[Recent | None] = []

    def after(self, step: StepRecord) -> float:
        recent = self.batches.latest(step)
        self.found.append(recent)
        expected = self._expected(step.step)
        got = None if recent is None else [[each.id for each in batch] for batch in recent.batches]
        assert got == expected, step.step
        return step.synced

    def _expected(self, step: int) -> list[list[str]] | None:
        samples = kept(self.loop.record).samples
        running = {attempt.begun for attempt in self.loop.stage.running.values()}
        found: list[list[str]] = []
        for at in sorted({each.begun for each in samples} - running, reverse=True):
            batch = sorted((each for each in samples if each.begun == at), key=lambda each: each.trajectory.prompt)
            names = [each.trajectory.id for each in batch]
            found += [names[first : first + self.size] for first in range(0, len(names) - self.size + 1, self.size)]
        if found:
            return found[:_BATCHES]
        return None if step < 2 else [[each.trajectory.id for each in samples[-self.size :]]]


@pytest.mark.parametrize("more", [{}, {"tail": "partial"}, {"tail": {"kind": "over-sampling", "factor": 1.5}}])
def test_planners_see_the_newest_batches_though_older_trajectories_are_dropped(more: dict[str, Any]) -> None:
    said = {**SMALL, "mode": "asynchronous", "staleness": 2, "steps": 16, **more}
    setup = set_up_posttrain(posttrain_from_dict(said))
    loop = Loop(setup, core_settings(setup).core(), record=WholeRecord())
    loop.manager = watching = AllOfThem(loop)
    loop.run()
    assert any(recent is not None for recent in watching.found)
    assert sum(map(len, watching.batches._times._ended.values())) <= (_BATCHES + 4) * watching.size


def test_a_brief_log_keeps_the_last_steps_and_all_busy_times() -> None:
    kind = EngineKind.of(prepare("qwen3-14b", "a800", 1, {"block_size": 64}))
    log = BriefLog()
    engine, ends = kind.engine(BlockNames(64), log), []
    for index in range(4):
        r = Request(index, 100.0 * index, 200, 2000)
        engine.submit(r, 100.0 * index)
        engine.advance(float("inf"))
        ends.append(engine.end_of(r))
        log.seen(engine.finished)
        engine.finished.clear()
    assert engine.step == 8000 > 2 * len(log.ends)
    start, end = log.busy()
    assert (start[1:] >= 100.0 * np.arange(1, 4)).all() and end.tolist() == ends


def test_names_of_old_weights_are_dropped_and_never_given_again() -> None:
    names = BlockNames(16)
    old = [names.names(((stream, 64),), 64) for stream in range(10)]
    names.forget_before(8)
    assert names.names(((8, 64),), 64).ranges == old[8].ranges
    new = names.names(((20, 64),), 64)
    assert not set(new) & {name for each in old for name in each}
    assert len(names._chains) == 3


def test_the_truth_about_a_trajectory_is_forgotten_when_it_is_over() -> None:
    each = Trajectory("a", "p", "task", (Turn(5, "tool"), Turn(3)))
    oracle = Oracle([each])
    assert oracle.observe(History.start(each)).mean == 8.0
    oracle.forget("a")
    with pytest.raises(KeyError):
        oracle.observe(History.start(each))


def test_tries_are_built_again_before_they_get_too_large() -> None:
    whole, again = PaperTrie(keep=20), PaperTrie(keep=20, most=50)
    for number in range(120):
        done = Trajectory(f"{number}", f"p{number}", "task", (Turn(5, f"tool {number}"), Turn(number)))
        whole.learn(done)
        again.learn(done)
    assert len(whole._prompts) == 120 and len(again._prompts) == 20 + 20
