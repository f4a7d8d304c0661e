"""A page of `steelyard ui` for tests: its folder, and its server as a process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from steelyard import posttrain_from_dict
from steelyard.cli import app
from steelyard.live.emulated.run import EmulatedRun
from support.live_logs import SCENARIO as LIVE
from support.live_parts import Parts

CHAT = """\
model: llama-3.1-8b
fleet: {gpu: h100, replicas: 4, router: least-outstanding}
workload:
  arrivals: {kind: poisson, rate: 20}
  requests: 300
  prompt: {kind: lognormal, median: 500, p95: 1500}
  output: 60
slo: {ttft_p95: 1.0, tpot_p95: 0.05}
seed: 1
"""
SEARCH: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "workload": {"arrivals": {"kind": "poisson", "rate": 40}, "requests": 500, "prompt": 300, "output": 40},
    "slo": {"ttft_p95": 1.0, "tpot_p95": 0.05},
    "search": {"gpus": 4, "seconds": 5, "requests": 200, "objective": "cost", "serve": {"gpu": ["h100", "a100"]}},
}
POSTTRAIN: dict[str, Any] = {
    "model": "qwen2.5-0.5b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 4, "group": 4},
    "rollout": [{"tp": 1, "replicas": 2}, {"tp": 2, "replicas": 1}],
    "training": {"dp": 4},
    "mode": "one-step-off",
    "steps": 3,
}
HOSTILE = "</script><img src=x onerror=alert(1)>"


def fill(folder: Path) -> None:
    """Scenarios of every kind, and a result of each."""
    (folder / "chat.yaml").write_text(CHAT)
    (folder / "search.json").write_text(json.dumps(SEARCH))
    (folder / "posttrain.json").write_text(json.dumps(POSTTRAIN))
    _run(folder, "simulate", "chat.yaml", "--out", "runs/chat-1", "--no-intervals")
    _run(folder, "simulate", "chat.yaml", "--out", "runs/chat-2", "--no-intervals", "--set", "fleet.replicas=2")
    _run(folder, "posttrain", "posttrain.json", "--out", "runs/posttrain-1")
    _run(folder, "search", "search.json", "--out", "runs/search-search", "--workers", "1", "--no-sure")
    make_live(folder / "runs" / "live-1")


def _run(folder: Path, *words: str) -> None:
    before = Path.cwd()
    os.chdir(folder)
    try:
        done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    finally:
        os.chdir(before)
    assert done.exit_code == 0, done.output


def make_live(folder: Path) -> None:
    """The folder of a live run that is over."""
    folder.mkdir(parents=True)
    run = EmulatedRun.at_free_ports(posttrain_from_dict({**LIVE, "steps": 2}), folder, 100.0)
    run.write()

    async def main() -> None:
        parts = Parts(run)
        parts.start(*run.parts)
        try:
            async with asyncio.timeout(300.0):
                await parts.finished()
        finally:
            await parts.close()

    asyncio.run(main())


@contextmanager
def served(folder: Path, *options: str, cache: Path | None = None) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The page of a folder: its address with the token, and the process that serves it."""
    command = [sys.executable, "-m", "steelyard", "ui", str(folder), "--no-browser", *options]
    env = {**os.environ, "STEELYARD_CACHE": "" if cache is None else str(cache)}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert server.stdout is not None
    try:
        yield server.stdout.readline().rpartition(" at ")[2].strip(), server
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGINT)
        server.wait(120)
        server.stdout.close()
