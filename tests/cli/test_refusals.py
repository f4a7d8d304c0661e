"""What this machine or one process cannot do is refused in one line, before it takes time or memory."""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import yaml

from steelyard.cli import main

SCENARIO: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "fleet": {"gpu": "h100"},
    "cost": {"source": "analytic"},
    "workload": {"arrivals": {"kind": "burst"}, "requests": 5, "prompt": 100, "output": 10},
}


@dataclass(frozen=True)
class Outcome:
    code: Any
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a scenario."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SCENARIO))
    return tmp_path


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The program in this process."""

    def call(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["steelyard", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        return Outcome(stop.value.code, *capsys.readouterr())

    return call


def test_profiling_needs_a_gpu(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that was built for CPUs only is no internal error."""
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False), __version__="2.13.0+cpu")
    monkeypatch.setitem(sys.modules, "torch", torch)
    done = run("profile", "points.jsonl")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: profiling needs a CUDA GPU, and torch 2.13.0+cpu finds none; run it on")
    assert [path.name for path in folder.iterdir()] == ["s.yaml"]


@pytest.mark.parametrize("replicas", [257, 3000])
def test_more_replicas_than_one_process_can_serve(run: Run, monkeypatch: pytest.MonkeyPatch, replicas: int) -> None:
    serve = pytest.importorskip("steelyard.emulate.serve")
    monkeypatch.setattr(serve, "replicas_of", lambda *_: pytest.fail("it was begun"))
    done = run("emulate", "s.yaml", "--set", f"fleet.replicas={replicas}")
    assert (done.code, done.out) == (2, "")
    told = f"error: s.yaml: fleet: {replicas:,} replicas; at most 256 can be emulated, since one process"
    assert done.err.startswith(told) and done.err.count("\n") == 1


def test_replicas_of_all_pools_count(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve = pytest.importorskip("steelyard.emulate.serve")
    monkeypatch.setattr(serve, "replicas_of", lambda *_: pytest.fail("it was begun"))
    pools = [{"name": name, "gpu": "h100", "replicas": 150} for name in ("one", "two")]
    (folder / "s.yaml").write_text(yaml.safe_dump({**SCENARIO, "fleet": {"pools": pools}}))
    assert "300 replicas; at most 256" in run("emulate", "s.yaml").err


def test_ports_beyond_the_last(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    serve = pytest.importorskip("steelyard.emulate.serve")
    monkeypatch.setattr(serve, "replicas_of", lambda *_: pytest.fail("it was begun"))
    done = run("emulate", "s.yaml", "--port", "65530", "--set", "fleet.replicas=7")
    assert done.code == 2
    told = (
        "--port 65530: 7 replicas need ports up to 65536, and the last is 65535; give at most 65529, or 0 for free ones"
    )
    assert done.err == f"error: {told}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are not forked")
@pytest.mark.parametrize("after", [0, 1])
def test_no_process_can_be_started(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The message says what was to be started and what to do. The result is there, and no worker is left."""
    fork, left = os.fork, after

    def forked() -> int:
        nonlocal left
        if not left:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        left -= 1
        return fork()

    monkeypatch.setattr(os, "fork", forked)
    done = run("simulate", "s.yaml", "--out", "out", "--workers", "2", "--json")
    assert done.code == 2 and done.err.count("\n") == 1
    assert done.err.startswith(
        f"error: out holds the result without its intervals: worker process {after + 1} of 2 cannot be started: "
        "Resource temporarily unavailable; give fewer --workers (`simulate --workers 0`"
    )
    assert done.out == (folder / "out" / "summary.json").read_text() and json.loads(done.out)["intervals"] is None
    assert not active_children()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers need their thread")
def test_workers_do_without_threads(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the limit of processes leaves room for the workers, but not for a thread in each."""

    def start(thread: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    done = run("simulate", "s.yaml", "--out", "out", "--workers", "2", "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["intervals"]["ttft"]["mean"][0] > 0
