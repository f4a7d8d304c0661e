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
    """Seconds that a replay reports of its simulation alone, and CPU seconds of the whole program with its start-up."""

    reported_s: float
    cpu_s: float


def interpreter() -> str | None:
    """A Python that has Dynamo's replay, or None."""
    for python in (os.environ.get("STEELYARD_DYNAMO_PYTHON"), sys.executable):
        if python and not subprocess.run([python, "-c", "import dynamo.replay"], capture_output=True).returncode:
            return python
    return None


def replay(python: str, workers: int, requests: int, repeats: int = 3) -> Replay:
    """768 tokens in, 192 out, 6 requests/s per worker, polynomial timing: the least of several runs."""
    runs = [_run(python, workers, requests) for _ in range(repeats)]
    return Replay(min(run.reported_s for run in runs), min(run.cpu_s for run in runs))


def _run(python: str, workers: int, requests: int) -> Replay:
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
    if reported is None:
        raise RuntimeError("the replay did not report its wall time")
    return Replay(float(reported[1].replace(",", "")) / 1e3, cpu)
