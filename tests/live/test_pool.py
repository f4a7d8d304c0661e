"""The hybrid pool, live: replicas are lent to training and come back, whatever dies on the way."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from steelyard.balance.commands import Place
from steelyard.balance.events import Ended
from steelyard.balance.kinds import Event
from steelyard.emulate.servers import listen
from steelyard.live.control import ControlServer
from steelyard.live.emulated.run import EmulatedEnginePart, EmulatedRun
from steelyard.live.engines.vllm import EmulatedVllm
from steelyard.live.explain import explanations, log_of
from steelyard.live.journal import StoredTurn
from steelyard.live.store import log_rows
from steelyard.live.supervise import Supervisor
from steelyard.live.wire import packed
from steelyard.posttrain.core import core_settings
from steelyard.posttrain.run import posttrain
from steelyard.posttrain.setup import set_up_posttrain
from steelyard.records import Turn
from steelyard.scenario import posttrain_from_dict
from support.gateways import placing_desk
from support.live_logs import LENDING, check, check_pool, check_replay
from support.live_parts import Parts

PATIENCE = 120.0  # seconds until a run that hangs is given up
SPEED = 20.0

Trouble = Callable[[Parts], Awaitable[None]]


def new_run(folder: Path, speed: float = SPEED, **changes: Any) -> EmulatedRun:
    return EmulatedRun.at_free_ports(posttrain_from_dict({**LENDING, **changes}), folder, speed)


def checked(run: EmulatedRun) -> list[str]:
    """The moves of a run that is over, after checking all that must hold."""
    check_replay(run.store)
    check(run.store, run.scenario.steps, 8, whole=True)
    return check_pool(run.store, run.pooled_engines)


def carried_out(run: EmulatedRun, trouble: Trouble | None = None) -> list[str]:
    """Run to the end while something goes wrong. Returns the moves."""

    async def main() -> None:
        parts = Parts(run)
        parts.start(*run.parts)
        troubling = asyncio.ensure_future(trouble(parts)) if trouble is not None else None
        try:
            async with asyncio.timeout(PATIENCE):
                await parts.finished()
        finally:
            if troubling is not None:
                troubling.cancel()
            await parts.close()

    asyncio.run(main())
    return checked(run)


def test_the_live_pool_moves_what_the_simulated_one_moves(tmp_path: Path) -> None:
    """Training takes three times as long as rollout at first, so that noise cannot change the first move. Each move is
    told in a sentence, too."""
    run = new_run(tmp_path, speed=10.0, pool="thresholds")
    moves = [move for move in carried_out(run) if move.startswith(("Drain", "Leave"))]
    words = {"training": "Drain", "rollout": "Leave"}
    simulated = [each["what"].split() for each in posttrain(run.scenario).summary["reallocations"]]
    expected = [f"{words[what[-1]]} {what[1]}" for what in simulated]
    assert moves[0] == expected[0] == "Drain 1"
    rows = [row for _, row in log_rows(run.store)][1:]
    ended = [row for row in rows if row["kind"] == "StepEnded"]
    assert [row["step"] for row in ended] == [0, 1, 2, 3]
    assert ended[0]["train"] > 1.5 * ended[0]["rollout"]
    assert dict(map(tuple, ended[0]["train_with"])).keys() == {1, 2, 3}
    weights = [dict(map(tuple, row["weights"])) for row in rows if row["kind"] == "Reduce"]
    assert weights[0] == {0: 1.0}
    assert weights.index({0: 1.0, 1: 0.0}) < weights.index({0: 0.5, 1: 0.5})
    told = [each.sentence for each in explanations(log_of(run.store)) if each.kind == "pool"]
    for said in ("is lent to training: a step took", "is empty: it joins", "trains from step"):
        assert [sentence for sentence in told if f"pool replica 1 {said}" in sentence], said


async def until(parts: Parts, *states: str) -> None:
    """Wait until replica 1 is in one of these states."""
    while True:
        server = parts.controller.server if "controller" in parts.running else None
        pool = server.controller.core.pool if server is not None and server.is_open else None
        if pool is not None and pool.members[1].state in states:
            return
        await asyncio.sleep(0.005)


async def until_asleep(parts: Parts) -> None:
    """Wait until the first engine sleeps."""
    part = parts.running["engine-0"]
    assert isinstance(part, EmulatedEnginePart)
    while not [each for each in part.node.engines.values() if each.replica.asleep]:
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("names", "state"),
    [
        (["controller"], "draining"),
        (["controller"], "active"),
        (["job"], "fetching"),
        (["job"], "active"),
        (["engine-0"], "draining"),
        (["engine-0"], "active"),
        (["controller", "job"], "fetching"),
    ],
)
def test_a_part_that_dies_while_a_replica_moves(tmp_path: Path, names: list[str], state: str) -> None:
    """It is rolled back, or goes on. An engine that comes back while it is lent goes to sleep again."""

    async def trouble(parts: Parts) -> None:
        await until(parts, state)
        for name in names:
            await parts.kill(name)
        await asyncio.sleep(0.05)
        parts.start(*names)
        if names == ["engine-0"] and state != "draining":
            await until_asleep(parts)
            seen.append("asleep")

    seen: list[str] = []
    moves = carried_out(new_run(tmp_path), trouble)
    assert moves[0] == "Drain 1"
    assert (seen == ["asleep"]) == (names == ["engine-0"] and state != "draining")
    if names == ["job"] and state != "draining":
        assert "RollBack 1" in moves


def test_no_engine_wakes_before_training_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers `Join`, its deadline passes, and the controller is killed, too. Only the next trainer can say that
    the GPU is free."""
    gone, sleep = asyncio.Event(), EmulatedVllm.sleep
    seen: list[bool] = []

    async def slow(engine: EmulatedVllm, level: int) -> None:
        await gone.wait()
        await sleep(engine, level)

    async def trouble(parts: Parts) -> None:
        await until(parts, "draining")
        await parts.kill("job")
        gone.set()
        await until(parts, "requested")
        await parts.kill("controller")
        parts.start("controller")
        await until(parts, "rolled back")  # by the clock of the new controller
        await parts.kill("controller")
        parts.start("controller")
        await until(parts, "rolled back")
        await asyncio.sleep(1.0)  # for several looks at its engine
        await until_asleep(parts)
        seen.append(parts.controller.keeper.is_up(0))
        parts.start("job")
        await until(parts, "rollout")
        seen.append(parts.controller.keeper.is_up(0))

    monkeypatch.setattr(EmulatedVllm, "sleep", slow)
    moves = carried_out(new_run(tmp_path, speed=40.0, pool="thresholds"), trouble)
    assert seen == [False, True]
    assert moves[:4] == ["Drain 1", "Join 1", "RollBack 1", "Serving 1"]
    assert [row for _, row in log_rows(tmp_path / "controller.db") if row.get("kind") == "Tick"]


def test_killed_processes(tmp_path: Path) -> None:
    """kill -9 of the controller while a replica joins, which goes on, and then of the trainer: it is rolled back."""
    run = new_run(tmp_path, speed=10.0, steps=4, pool="thresholds")
    run.write()

    def seen(kind: str) -> bool:
        with suppress(sqlite3.Error):
            db = sqlite3.connect(f"{run.store.as_uri()}?mode=ro", uri=True, timeout=5)
            try:
                query = "SELECT 1 FROM events WHERE line LIKE ?"
                return db.execute(query, (f'%"kind":"{kind}"%',)).fetchone() is not None
            finally:
                db.close()
        return False

    async def kill(kind: str, name: str) -> None:
        while not seen(kind):
            await asyncio.sleep(0.02)
        os.kill(int((run.folder / f"{name}.pid").read_text()), signal.SIGKILL)

    async def main() -> None:
        running = asyncio.ensure_future(Supervisor(run).run())
        async with asyncio.timeout(PATIENCE):
            await kill("JoinAccepted", "controller")
            await kill("Fetched", "job")
            await running

    asyncio.run(main())
    moves = checked(run)
    assert moves[:4] == ["Drain 1", "Join 1", "RollBack 1", "Serving 1"]


@pytest.mark.parametrize("seed", range(int(os.environ.get("CHAOS", "4")) // 2))
def test_chaos(tmp_path: Path, seed: int) -> None:
    """Parts die at random moments of a run that lends."""
    random = Random(seed)

    async def trouble(parts: Parts) -> None:
        for _ in range(random.randint(1, 4)):
            await until(parts, random.choice(["draining", "requested", "fetching", "syncing", "active"]))
            await asyncio.sleep(random.random() * 0.3)
            names = random.sample(parts.run.parts, random.randint(1, 2))
            for name in names:
                await parts.kill(name)
            await asyncio.sleep(random.random() * 0.3)
            parts.start(*names)

    carried_out(new_run(tmp_path, pool=random.choice(["payoff", "thresholds"])), trouble)


def test_an_end_that_the_core_has_missed_is_told_again(tmp_path: Path) -> None:
    """A last turn ends on an engine that was just lent. The core drops that, and places the turn elsewhere."""

    async def main() -> list[Event]:
        desk, reported = placing_desk(tmp_path, [], places=False)
        desk.journal.begin("a", "0", 0, 10)
        desk.journal.add("a", StoredTurn(0, 10, 7, {}))
        desk.journal.end("a", "ended", 1.0)
        desk.carry_out(Place("a", 1, epoch=3))
        await desk.close()
        return reported

    assert asyncio.run(main()) == [Ended(0.0, "a", 3, Turn(7))]


def test_reports_are_acknowledged_when_they_are_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if they come again over another connection while they wait for the disk: commands follow before that."""

    async def main() -> None:
        server = ControlServer()
        server.open(tmp_path / "store.db", core_settings(set_up_posttrain(posttrain_from_dict(LENDING))))
        controller, write, gates = server.controller, server.controller.write, [threading.Event() for _ in range(2)]
        writing = iter(gates)

        def slow(*words: Any) -> Any:
            if (gate := next(writing, None)) is not None:
                gate.wait(PATIENCE)
            return write(*words)

        monkeypatch.setattr(controller, "write", slow)
        listener = listen("127.0.0.1", 0)
        port = listener.getsockname()[1]
        serving = asyncio.ensure_future(server.serve(listener))
        hello = {"hello": {"role": "trainer", "name": "t", "seen": [-1, -1], "token": ""}}
        first, sender = await asyncio.open_connection("127.0.0.1", port)
        sender.write(packed(hello) + packed({"report": 1}))
        assert b"welcome" in await first.readline()
        sender.write(packed({"report": 2}))  # waits for the disk behind the first
        second, again = await asyncio.open_connection("127.0.0.1", port)
        again.write(packed(hello) + packed({"report": 2}))
        gates[0].set()
        assert b"welcome" in await second.readline()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(second.readline(), 0.3)  # nothing yet
        gates[1].set()
        assert await second.readline() == packed({"acknowledged": 2})
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(main())
