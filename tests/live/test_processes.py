"""Runs whose parts are real processes, killed with kill -9: under our own supervisor, and under Ray."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from steelyard.cli import app
from steelyard.errors import UserError
from steelyard.live import supervise
from steelyard.live.emulated.run import EmulatedRun
from steelyard.live.supervise import Supervisor
from steelyard.scenario import posttrain_from_dict
from support.live_logs import SCENARIO, check, check_replay

STEPS = 3


def new_run(folder: Path, speed: float = 40.0, **changes: Any) -> EmulatedRun:
    scenario = posttrain_from_dict({**SCENARIO, "steps": STEPS, **changes})
    run = EmulatedRun.at_free_ports(scenario, folder, speed)
    run.write()
    return run


def events_of(run: EmulatedRun) -> int:
    """Events so far, as any process can see."""
    with suppress(sqlite3.Error):
        db = sqlite3.connect(f"{run.store.as_uri()}?mode=ro", uri=True, timeout=5)
        try:
            return int(db.execute("SELECT COUNT(*) FROM events").fetchone()[0])
        finally:
            db.close()
    return 0


def kill_after(run: EmulatedRun, events: int, *names: str) -> None:
    """Kill -9 the processes of parts once there are so many events. Returns when they are gone."""
    while events_of(run) < events:
        time.sleep(0.02)
    for name in names:
        pid = int((run.folder / f"{name}.pid").read_text())
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def checked(run: EmulatedRun) -> None:
    check_replay(run.store)
    check(run.store, STEPS, 8, whole=True)


def test_every_part_can_be_killed(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    restarted: list[str] = []

    async def main() -> None:
        supervisor = Supervisor(run, lambda name, code: restarted.append(name))
        running = asyncio.ensure_future(supervisor.run())
        for events, names in ((20, ["engine-0"]), (40, ["controller"]), (60, ["gateway", "job"])):
            await asyncio.to_thread(kill_after, run, events, *names)
        async with asyncio.timeout(120):
            await running

    asyncio.run(main())
    checked(run)
    assert {"engine-0", "controller", "gateway", "job"} <= set(restarted)


def test_ray_starts_parts_again(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from steelyard.live.ray_cluster import run_on_ray

    run = new_run(tmp_path)
    killing = threading.Thread(target=kill_after, args=(run, 20, "controller", "engine-0"), daemon=True)
    killing.start()
    run_on_ray(run, None)
    killing.join()
    checked(run)


def test_a_run_whose_machine_went_down_is_resumed(tmp_path: Path) -> None:
    """All processes die at once, as when Ray's head or the machine is lost. The command goes on with its folder."""
    run = new_run(tmp_path)

    async def main() -> None:
        running = asyncio.ensure_future(Supervisor(run).run())
        await asyncio.to_thread(kill_after, run, 30, *run.parts)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())
    before = events_of(run)
    assert before >= 30
    result = CliRunner().invoke(app, ["control", str(tmp_path), "--on", "processes"])
    assert result.exit_code == 0, result.output
    checked(run)
    found = json.loads((tmp_path / "summary.json").read_text())
    assert [step["step"] for step in found["live"]["steps"]] == list(range(STEPS))
    assert all(step["samples"] == 8 for step in found["live"]["steps"])
    assert "tokens per second" in result.output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("planner=oracle", "planner: oracle knows trajectories"),
        ("pool=payoff planner=libra", "pool: payoff cannot be run live beside a planner"),
        ("mode=colocated", "colocated"),
    ],
)
def test_what_cannot_be_run_yet_is_refused(tmp_path: Path, change: str, message: str) -> None:
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(SCENARIO))
    changes = [word for each in change.split() for word in ("--set", each)]
    result = CliRunner().invoke(app, ["control", str(path), *changes, "--out", str(tmp_path / "out")])
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_a_part_that_never_starts_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log says why. Starting it for ever would help nobody."""
    monkeypatch.setattr(supervise, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(supervise, "_MOST_DEATHS", 2)
    run = new_run(tmp_path)
    described = json.loads((tmp_path / "run.json").read_text())
    described["scenario"]["model"] = "no-such-model"
    (tmp_path / "run.json").write_text(json.dumps(described))

    async def main() -> None:
        async with asyncio.timeout(60):
            await Supervisor(run).run()

    with pytest.raises(UserError, match="ended 2 times in a row; the run is given up"):
        asyncio.run(main())
