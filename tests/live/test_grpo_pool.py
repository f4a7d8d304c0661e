"""The hybrid pool of a run that learns: engines and lanes of the training group take turns on the same devices."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from steelyard.errors import UserError
from steelyard.live.grpo.run import GrpoRun
from steelyard.live.store import log_rows
from steelyard.live.tiny.decoding import DecodeBatch
from steelyard.live.train.group import TrainingGroup
from steelyard.live.train.lane import LaneState
from steelyard.scenario.live import GrpoScenario, load_grpo
from support.live_logs import check, check_pool, check_replay
from support.live_parts import Parts

STEPS, PATIENCE = 9, 300.0
ON_THEIR_WAY = (LaneState.REQUESTED, LaneState.FETCHING)


class Pace:
    """Slows a run's trainer or its engines down, so that the rule has reason to move a replica. Times are measured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.train, self.decode = 2.0, 0.0  # seconds more of each step
        self.held = False  # training waits
        train, step = TrainingGroup.train, DecodeBatch.step

        def slow_train(group: TrainingGroup, *words: Any) -> Any:
            time.sleep(self.train)
            while self.held or [each for each in group.lanes().values() if each.state in ON_THEIR_WAY]:
                time.sleep(0.05)  # so that a machine that is busy has started the lane's process, too
            return train(group, *words)

        def slow_step(batch: DecodeBatch) -> Any:
            time.sleep(self.decode)
            return step(batch)

        monkeypatch.setattr(TrainingGroup, "train", slow_train)
        monkeypatch.setattr(DecodeBatch, "step", slow_step)


Trouble = Callable[[Parts], Awaitable[None]]


def carried_out(folder: Path, trouble: Trouble) -> tuple[list[str], list[dict[str, Any]]]:
    """Run to the end. Returns the pool's moves and the log."""
    settings: dict[str, Any] = {"steps": STEPS, "prompts": 2, "group": 4, "warm_up": 20, "pool": "thresholds"}
    run = GrpoRun.at_free_ports(GrpoScenario(name="small", task="calculator", **settings), folder)
    run.write()

    async def main() -> None:
        parts = Parts(run)
        parts.start(*run.parts)
        troubling = asyncio.ensure_future(trouble(parts))
        try:
            async with asyncio.timeout(PATIENCE):
                await parts.finished()
        finally:
            troubling.cancel()
            await parts.close()

    asyncio.run(main())
    check_replay(run.store)
    check(run.store, STEPS, 8, whole=True)
    return check_pool(run.store, run.pooled_engines), [row for _, row in log_rows(run.store)][1:]


async def until(parts: Parts, *states: str) -> None:
    """Wait until the hybrid replica is in one of these states."""
    while True:
        server = parts.controller.server
        pool = server.controller.core.pool if server.is_open else None
        if pool is not None and pool.members[1].state in states:
            return
        await asyncio.sleep(0.01)


def test_a_replica_is_borrowed_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training is slow at first. Once it is helped, engines are slow instead."""
    pace = Pace(monkeypatch)

    async def turn(parts: Parts) -> None:
        await until(parts, "active")
        pace.train, pace.decode = 0.0, 0.05
        await until(parts, "leaving")
        await until(parts, "rollout")
        pace.decode = 0.0

    moves, rows = carried_out(tmp_path, turn)
    assert moves[:5] == ["Drain 1", "Join 1", "Activate 1", "Leave 1", "Serving 1"]
    weights = [dict(map(tuple, row["weights"])) for row in rows if row["kind"] == "Reduce"]
    assert {0: 1.0, 1: 0.0} in weights  # it went along with an exchange first, and gave nothing
    shared = [each for each in weights if each.get(1)]
    assert shared and all(sum(each.values()) == pytest.approx(1.0) for each in shared)
    ups = [row["epoch"] for row in rows if row["kind"] == "ReplicaUp" and row["replica"] == 0]
    assert len(ups) >= 2 and ups == list(range(len(ups)))  # on a busy machine training may ask for it once more


def test_a_worker_that_is_killed_while_it_joins_is_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace(monkeypatch)
    killed: list[int] = []

    def worker() -> int:
        return int((tmp_path / "lane-1.pid").read_text())

    async def kill(parts: Parts) -> None:
        await until(parts, "draining", "requested", "fetching", "syncing")
        pace.held = True
        await until(parts, "syncing")
        killed.append(worker())
        os.kill(killed[0], signal.SIGKILL)
        await until(parts, "rolled back")
        pace.held, pace.train = False, 0.0

    moves, rows = carried_out(tmp_path, kill)
    assert moves[:4] == ["Drain 1", "Join 1", "RollBack 1", "Serving 1"]
    assert [row["replica"] for row in rows if row["kind"] == "Failed"] == [1]
    assert worker() != killed[0]  # another one was started


def test_one_engine_cannot_be_lent(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text("task: calculator\nengines: 1\npool: payoff\n")
    with pytest.raises(UserError, match="pool: one engine always rolls out; give at least 2 engines"):
        load_grpo(path)
