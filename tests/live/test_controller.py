"""A controller can be killed at any moment: the next one goes on as if nothing had happened, and only it."""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from steelyard.balance.kinds import Command, Event
from steelyard.balance.log import Journal, command_line, is_event, read_event, read_header
from steelyard.balance.settings import CoreSettings
from steelyard.cli import app
from steelyard.errors import UserError
from steelyard.live.controller import CommandId, Controller
from steelyard.live.store import Fenced, log_lines
from steelyard.posttrain.run import posttrain
from steelyard.scenario import posttrain_from_dict

SCENARIO = {
    "model": "qwen2.5-0.5b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 4, "group": 4},
    "mode": "asynchronous",
    "tail": "over-sampling",
    "rollout": [{"tp": 1, "replicas": 3}],
    "training": {"dp": 1},
    "steps": 3,
    "seed": 3,
}


@cache
def recorded() -> tuple[CoreSettings, tuple[Event, ...], tuple[str, ...], str]:
    """A run's settings, its events, the lines of its log after the header, and its header."""
    file = io.StringIO()
    posttrain(posttrain_from_dict(SCENARIO), journal=Journal(file, "test"))
    first, *rows = [json.loads(line) for line in file.getvalue().splitlines()]
    events = tuple(read_event(row, "log").event for row in rows if is_event(row))
    header, *lines = file.getvalue().splitlines()
    return read_header(first, "log").settings, events, tuple(lines), header


class Killed(Exception):
    """Stands for kill -9 inside a process."""


class Cluster:
    """Agents that take a command with a known identity as done. Kills its controller at the commands it is told."""

    def __init__(self, kills: set[int] | None = None) -> None:
        self.done: dict[CommandId, str] = {}
        self.calls = 0
        self._kills = kills or set()

    def carry_out(self, identity: CommandId, command: Command) -> None:
        self.calls += 1
        if self.calls in self._kills:
            raise Killed
        line = command_line(command)
        assert self.done.setdefault(identity, line) == line, "an identity has one meaning"


def logged_commands() -> list[str]:
    return [line for line in recorded()[2] if not is_event(json.loads(line))]


@given(
    st.sets(st.integers(1, 400), max_size=6),
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.lists(st.integers(0, 2000), max_size=3),
)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_killed_anywhere_it_goes_on_exactly(
    tmp_path_factory: pytest.TempPathFactory, kills: set[int], batches: list[int], saves: list[int]
) -> None:
    path = tmp_path_factory.mktemp("run") / "run.sqlite"
    made, events, log, _ = recorded()
    cluster = Cluster(kills)
    controller = Controller.begin(path, made, cluster.carry_out)
    turn = 0
    while controller.events < len(events):
        size = batches[turn % len(batches)]
        turn += 1
        try:
            controller.tell(events[controller.events : controller.events + size])
            if any(controller.events - size < each <= controller.events for each in saves):
                controller.save()
        except Killed:
            while True:
                try:
                    controller = Controller.resume(path, cluster.carry_out)
                    break
                except Killed:
                    pass
    controller.close()
    assert [cluster.done[each] for each in sorted(cluster.done)] == logged_commands()
    _, *lines = log_lines(path)
    assert tuple(lines) == log


def test_a_replaced_controller_can_do_nothing_more(tmp_path: Path) -> None:
    made, events, _, _ = recorded()
    old, new = Cluster(), Cluster()
    first = Controller.begin(tmp_path / "run.sqlite", made, old.carry_out)
    first.tell(events[:50])
    second = Controller.resume(tmp_path / "run.sqlite", new.carry_out)
    assert second.fence > first.fence
    before = old.calls
    with pytest.raises(Fenced):
        first.tell(events[50:60])
    assert old.calls == before
    second.tell(events[50:])
    done = old.done | new.done
    assert [done[each] for each in sorted(done)] == logged_commands()


def test_mistakes_are_told(tmp_path: Path) -> None:
    made = recorded()[0]
    with pytest.raises(UserError, match="no such file"):
        Controller.resume(tmp_path / "none.sqlite", Cluster().carry_out)
    (tmp_path / "text").write_text("no database" * 100)
    with pytest.raises(UserError, match="cannot be opened"):
        Controller.resume(tmp_path / "text", Cluster().carry_out)
    Controller.begin(tmp_path / "run.sqlite", made, Cluster().carry_out).close()
    with pytest.raises(UserError, match="exists; resume"):
        Controller.begin(tmp_path / "run.sqlite", made, Cluster().carry_out)


CHILD = """
import json, sys
from pathlib import Path
from steelyard.balance.log import command_line, is_event, read_event, read_header
from steelyard.live.controller import Controller

path, out = Path(sys.argv[1]), open(sys.argv[2], "a")
first, *rows = map(json.loads, open(sys.argv[3]))
events = [read_event(row, "log").event for row in rows if is_event(row)]

def carry_out(identity, command):
    out.write(f"{identity.event} {identity.place} {command_line(command)}\\n")
    out.flush()

if path.exists():
    controller = Controller.resume(path, carry_out)
else:
    controller = Controller.begin(path, read_header(first, "log").settings, carry_out)
print("ready", flush=True)
while controller.events < len(events):
    controller.tell(events[controller.events : controller.events + 8])
controller.close()
"""


def test_kill_9_loses_and_changes_nothing(tmp_path: Path) -> None:
    path, out = tmp_path / "run.sqlite", tmp_path / "carried-out"
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join((recorded()[3], *recorded()[2])))
    command = [sys.executable, "-c", CHILD, str(path), str(out), str(log)]
    for wait in (0.02, 0.1, 0.25):
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        time.sleep(wait)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60).returncode == 0
    done: dict[tuple[int, int], str] = {}
    for line in out.read_text().splitlines():
        event, place, said = line.split(" ", 2)
        assert done.setdefault((int(event), int(place)), said) == said
    assert [done[each] for each in sorted(done)] == logged_commands()
    _, *lines = log_lines(path)
    assert tuple(lines) == recorded()[2]


def test_stores_are_replayed_like_logs(tmp_path: Path) -> None:
    made, events, _, _ = recorded()
    path = tmp_path / "run.sqlite"
    controller = Controller.begin(path, made, Cluster().carry_out)
    controller.tell(events[:400])
    controller.tell(events[400:500])  # as if it were killed here: commands of these were not written
    answer = CliRunner().invoke(app, ["replay", str(path)])
    assert (answer.exit_code, answer.output.splitlines()[-1]) == (0, "identical")
    assert "400 events" in answer.output
    db = sqlite3.connect(path)
    db.execute("UPDATE commands SET line = replace(line, '\"replica\":0', '\"replica\":1') WHERE line LIKE '%Place%'")
    db.commit()
    db.close()
    answer = CliRunner().invoke(app, ["replay", str(path)])
    assert answer.exit_code == 1 and "decided otherwise" in answer.output
