"""Runs whose parts are real processes, killed with kill -9: under our own supervisor, and under Ray."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from steelyard.cli import app
from steelyard.errors import UserError
from steelyard.live import supervise
from steelyard.live.access import make_tokens
from steelyard.live.addresses import TOKENS, PartHost
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


def test_every_part_can_be_killed_and_comes_back_elsewhere(tmp_path: Path) -> None:
    """Each part has an address of its own, as on several machines, and another one whenever it is started again."""
    run = new_run(tmp_path)
    make_tokens(tmp_path / TOKENS)
    assert (tmp_path / TOKENS).stat().st_mode & 0o777 == 0o600
    restarted: list[str] = []

    def host_of(name: str) -> PartHost:
        number = 2 + run.parts.index(name) + 100 * restarted.count(name)
        return PartHost(f"127.0.0.{number}", f"127.0.0.{number}")

    async def main() -> None:
        supervisor = Supervisor(run, lambda name, code: restarted.append(name), host_of)
        running = asyncio.ensure_future(supervisor.run())
        for events, names in ((20, ["engine-0"]), (40, ["controller"]), (60, ["gateway", "job"])):
            await asyncio.to_thread(kill_after, run, events, *names)
        async with asyncio.timeout(120):
            await running

    asyncio.run(main())
    checked(run)
    assert {"engine-0", "controller", "gateway", "job"} <= set(restarted)
    for name, port in (("controller", run.control), ("gateway", run.gateway)):
        assert run.addresses.find(port, name)[0] == host_of(name).reach
    assert [run.addresses.find(port)[0] for port in run.engines] == [
        host_of(f"engine-{number}").reach for number in (0, 1)
    ]


def test_an_operator_replaces_the_controller(tmp_path: Path) -> None:
    """Everything else goes on meanwhile. The run is watched before and after."""
    run = new_run(tmp_path, speed=2.0)
    restarted: list[tuple[str, int]] = []
    shown: dict[str, str] = {}

    def operate(what: str) -> None:
        result = CliRunner().invoke(app, ["control", what, str(tmp_path)])
        assert result.exit_code == 0, result.output
        shown[what] = result.output

    async def main() -> None:
        running = asyncio.ensure_future(Supervisor(run, lambda *each: restarted.append(each)).run())
        await asyncio.to_thread(kill_after, run, 20)
        for what in ("upgrade", "status", "top"):
            await asyncio.to_thread(operate, what)
        async with asyncio.timeout(120):
            await running

    asyncio.run(main())
    checked(run)
    assert restarted == [("controller", 0)]
    assert "controller 2 took over" in shown["upgrade"]
    assert f"gateway: {run.addresses.url(run.gateway, 'gateway')}/v1" in shown["status"]
    assert all(words in shown["top"] for words in ("of 3", "tokens/s", "controller 2", "wait for an engine"))
    assert re.search(r"^ +[\d.]+ s  \w+ [\w/-]+ ", shown["top"], re.MULTILINE), "decisions in words"
    operate("top")
    assert "the run is over" in shown["top"]


def test_ray_starts_parts_again(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from steelyard.live.ray_cluster import run_on_ray

    run = new_run(tmp_path)
    killing = threading.Thread(target=kill_after, args=(run, 20, "controller", "engine-0"), daemon=True)
    killing.start()
    run_on_ray(run, None)
    killing.join()
    checked(run)


def saved(run: EmulatedRun) -> bool:
    """Whether the newest snapshot has all events."""
    with closing(sqlite3.connect(run.store)) as db:
        query = "SELECT (SELECT MAX(events) FROM snapshots) = COUNT(*), COUNT(*) = carried_out FROM events, fence"
        return bool(db.execute(query).fetchone() == (1, 1))


def test_a_run_that_was_told_to_end_or_whose_machine_went_down_is_resumed(tmp_path: Path) -> None:
    """First it is stopped, as a service is. Then all processes die at once. The command goes on with its folder."""
    path, folder = tmp_path / "scenario.json", tmp_path / "run"
    path.write_text(json.dumps({**SCENARIO, "steps": STEPS}))
    words = ["control", str(path), "--out", str(folder), "--speed", "20", "--resume", "--on", "processes"]
    with begun(words, folder) as started:
        run = EmulatedRun.read(folder)
        kill_after(run, 20)
        started.send_signal(signal.SIGTERM)
        assert started.wait(60) == 130
    assert saved(run)

    async def main() -> None:
        running = asyncio.ensure_future(Supervisor(run).run())
        await asyncio.to_thread(kill_after, run, events_of(run) + 20, *run.parts)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    checked(run)
    found = json.loads((folder / "summary.json").read_text())
    assert [step["step"] for step in found["live"]["steps"]] == list(range(STEPS))
    assert all(step["samples"] == 8 for step in found["live"]["steps"])
    assert "tokens per second" in result.output


@contextmanager
def begun(words: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Our program as a process that has begun a run."""
    started = subprocess.Popen([sys.executable, "-m", "steelyard", *words], stdout=subprocess.DEVNULL)
    try:
        while not (folder / "run.json").exists():
            assert started.poll() is None
            time.sleep(0.1)
        yield started
    finally:
        started.kill()
        started.wait()


def children(pid: int, *names: str) -> list[int]:
    """Processes that a process has started, by the names of their programs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, rest = path.read_text().split("(", 1)[1].rsplit(")", 1)
            if name in names and int(rest.split()[1]) == pid:
                found.append(int(path.parent.name))
    return found


def test_a_run_whose_ray_head_was_killed_is_resumed(tmp_path: Path) -> None:
    """With the head of a cluster, all processes on its machine end, our own command's, too."""
    pytest.importorskip("ray")
    path, folder = tmp_path / "scenario.json", tmp_path / "run"
    path.write_text(json.dumps({**SCENARIO, "steps": STEPS}))
    words = ["control", str(path), "--out", str(folder), "--speed", "20"]
    with begun(words, folder) as started:
        run = EmulatedRun.read(folder)
        kill_after(run, 30)
        head = children(started.pid, "gcs_server", "raylet")
        assert len(head) == 2
        for pid in head:
            os.kill(pid, signal.SIGKILL)
        for name in run.parts:
            while Path(f"/proc/{(folder / f'{name}.pid').read_text().strip()}").exists():
                time.sleep(0.05)
    result = CliRunner().invoke(app, [*words, "--resume", "--on", "processes"])
    assert result.exit_code == 0, result.output
    checked(run)


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
