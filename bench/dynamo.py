"""The fastest peer on the same work: the offline replay of NVIDIA Dynamo, a Rust program behind Python.

It runs where `ai-dynamo` is installed, in this interpreter or in the one that STEELYARD_DYNAMO_PYTHON names.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass


@dataclass(frozen=True)
class Replay:
    """CPU seconds of a replay, start-up taken off, and the wall time it reports of its simulation alone."""

    cpu_s: float
    reported_s: float


def interpreter() -> str | None:
    """A Python that has Dynamo's replay, or None."""
    for python in (os.environ.get("STEELYARD_DYNAMO_PYTHON"), sys.executable):
        if python and not subprocess.run([python, "-c", "import dynamo.replay"], capture_output=True).returncode:
            return python
    return None


def replay(python: str, workers: int, requests: int, repeats: int = 3) -> Replay:
    """768 tokens in, 192 out, 6 requests/s per worker, polynomial timing: the least of several runs."""
    started = min(_run(python, 1, 10)[0] for _ in range(repeats))
    runs = [_run(python, workers, requests) for _ in range(repeats)]
    return Replay(min(cpu for cpu, _ in runs) - started, min(reported for _, reported in runs))


def _run(python: str, workers: int, requests: int) -> tuple[float, float]:
    arguments = {
        "replay-mode": "offline",
        "input-tokens": 768,
        "output-tokens": 192,
        "request-count": requests,
        "request-rate": 6 * workers,
        "num-workers": workers,
    }
    command = [python, "-m", "dynamo.replay", *(f"--{key}={value}" for key, value in arguments.items())]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    reported = re.search(r"Wall Time \(ms\): ([\d,.]+)", done.stdout)
    return cpu, float(reported[1].replace(",", "")) / 1e3 if reported else float("nan")
