"""A whole post-training run on emulated engines, whose parts die and come back: nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from steelyard.errors import UserError
from steelyard.live.emulated.run import EmulatedRun
from steelyard.live.operate import ask_controller
from steelyard.live.parts import GatewayPart, free_ports
from steelyard.live.store import Fenced
from steelyard.scenario import posttrain_from_dict
from support.live_logs import SCENARIO, check, check_replay
from support.live_parts import Parts

SPEED = 100.0
PATIENCE = 60.0  # seconds until a run that hangs is given up

Trouble = Callable[[Parts], Awaitable[None]]


def run(folder: Path, trouble: Trouble | None = None, speed: float = SPEED, **changes: Any) -> list[dict[str, Any]]:
    """Run a scenario to its end while something goes wrong. Returns the events, after checking all that must hold."""
    scenario = posttrain_from_dict({**SCENARIO, **changes})

    async def main() -> None:
        parts = Parts(EmulatedRun.at_free_ports(scenario, folder, speed))
        parts.start(*parts.run.parts)
        troubling = asyncio.ensure_future(trouble(parts)) if trouble is not None else None
        try:
            async with asyncio.timeout(PATIENCE):
                await parts.finished()
                if troubling is not None:
                    await troubling
        finally:
            await parts.close()

    asyncio.run(main())
    check_replay(folder / "controller.db")
    batch = scenario.trajectories.prompts * scenario.trajectories.group
    return check(folder / "controller.db", scenario.steps, batch, whole=scenario.tail.kind != "partial")


@pytest.mark.parametrize("mode", ["split", "one-step-off", "asynchronous"])
def test_a_run_ends_and_its_log_replays(tmp_path: Path, mode: str) -> None:
    events = run(tmp_path, mode=mode)
    assert not [row for row in events if row["kind"] in ("ReplicaDown", "Aborted")]


@pytest.mark.parametrize("tail", ["over-sampling", "partial", "divided"])
def test_tail_policies_stop_and_resume_turns_on_engines(tmp_path: Path, tail: str) -> None:
    settings: dict[str, Any] = {"kind": tail}
    if tail == "partial":
        settings["budget"] = 200
    elif tail == "divided":
        settings["chunk"] = 100
    kinds = Counter(row["kind"] for row in run(tmp_path, tail=settings))
    assert tail == "over-sampling" or kinds["Paused"] > 0
    assert tail == "over-sampling" or kinds["Resumed"] > 0


async def after_events(parts: Parts, count: int) -> None:
    """Wait until the controller has had so many events."""
    while True:
        server = parts.controller.server if "controller" in parts.running else None
        if server is not None and server.is_open and server.controller.events >= count:
            return
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("name", ["controller", "gateway", "job", "engine-0"])
def test_a_part_that_dies_and_comes_back(tmp_path: Path, name: str) -> None:
    async def trouble(parts: Parts) -> None:
        for events in (20, 60):
            await after_events(parts, events)
            await parts.kill(name)
            await asyncio.sleep(0.05)
            parts.start(name)

    run(tmp_path, trouble)


def test_an_engine_that_hangs_loses_its_turns_to_others(tmp_path: Path) -> None:
    """Its process answers no probe, so the keeper takes it down. What it says later does not count."""

    async def trouble(parts: Parts) -> None:
        await after_events(parts, 20)
        engine = parts.controller.keeper.engines[0]

        async def silent() -> bool:
            return False

        engine.api.health = silent  # type: ignore[method-assign]  # as if the network were cut
        while parts.controller.keeper.is_up(0):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        del engine.api.health

    events = run(tmp_path, trouble, speed=10.0)  # so slow that it is missed in time
    assert [row for row in events if row["kind"] == "ReplicaDown"]


def test_a_client_that_never_comes_back_is_replaced(tmp_path: Path) -> None:
    """A tool that hangs: its trajectory is given up, and another sample of its group begins."""

    async def trouble(parts: Parts) -> None:
        await after_events(parts, 20)
        gateway = parts.running["gateway"]
        assert isinstance(gateway, GatewayPart)
        idle = [name for name, each in gateway.desk.running.items() if each.doing == "tool"]
        while not idle:
            await asyncio.sleep(0.01)
            idle = [name for name, each in gateway.desk.running.items() if each.doing == "tool"]
        gateway.desk.abort(idle[:1])

    events = run(tmp_path, trouble)
    assert len([row for row in events if row["kind"] == "Aborted"]) == 1


def test_only_the_newest_controller_acts(tmp_path: Path) -> None:
    """Two controllers on one store: the older one notices before it decides anything."""

    async def trouble(parts: Parts) -> None:
        await after_events(parts, 20)
        older = parts.tasks.pop("controller")
        assert isinstance(parts.run, EmulatedRun)
        newer = replace(parts.run, control=free_ports(1)[0]).part("controller")
        taking_over = asyncio.ensure_future(newer.run(asyncio.Event()))
        with pytest.raises(Fenced):
            await asyncio.wait_for(older, 20)
        taking_over.cancel()
        await asyncio.gather(taking_over, return_exceptions=True)
        parts.start("controller")

    run(tmp_path, trouble)


def test_an_operator_takes_an_engine_out_and_back(tmp_path: Path) -> None:
    """Also across a restart of the controller, and through the log."""
    seen: list[str] = []

    async def trouble(parts: Parts) -> None:
        async def ask(what: str, **more: int) -> dict[str, Any]:
            return await asyncio.to_thread(ask_controller, parts.run.address(), {"what": what, **more})

        async def state() -> str:
            return str((await ask("status"))["engines"][0]["state"])

        await after_events(parts, 20)
        seen.append(await state())
        await ask("drain", engine=0)
        await parts.kill("controller")
        parts.start("controller")
        await asyncio.sleep(0.5)
        seen.append(await state())
        await ask("restore", engine=0)
        while await state() != "up":
            await asyncio.sleep(0.02)
        with pytest.raises(UserError, match="must be one of 0, 1"):
            await ask("drain", engine=7)

    events = run(tmp_path, trouble, speed=10.0)
    assert seen == ["up", "drained"]
    kinds = [row["kind"] for row in events if row.get("replica") == 0 and row["kind"].startswith("Replica")]
    assert kinds == ["ReplicaUp", "ReplicaDown", "ReplicaUp"]


@pytest.mark.parametrize("seed", range(int(os.environ.get("CHAOS", "20"))))
def test_chaos(tmp_path: Path, seed: int) -> None:
    """Parts die at random moments, several times, one after the other or together. `make chaos` tries 200 such runs."""
    random = Random(seed)

    async def trouble(parts: Parts) -> None:
        for _ in range(random.randint(1, 4)):
            await after_events(parts, random.randint(1, 120))
            names = random.sample(parts.run.parts, random.randint(1, 2))
            for name in names:
                await parts.kill(name)
            await asyncio.sleep(random.random() * 0.3)
            parts.start(*names)
            await asyncio.sleep(random.random() * 0.2)

    run(tmp_path, trouble)
