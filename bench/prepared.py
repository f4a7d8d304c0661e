"""`python -m bench.prepared`: what a run of a prepared engine costs beside its engine loop, and what preparing costs.

Times are CPU seconds, the least of several. The loop is timed inside the same runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from steelyard.fleet import run_fleet
from steelyard.sim import FleetSetup, draw_workload, fleet_of, prepare, run, simulate
from steelyard.sim.result import EVERYTHING, Kept

REPEATS = 15
WORKLOAD = {
    "arrivals": {"kind": "poisson", "rate": 12},
    "requests": 500,
    "prompt": {"kind": "lognormal", "median": 512, "p95": 2048},
    "output": {"kind": "lognormal", "median": 150, "p95": 400},
}
KEPT: tuple[tuple[Kept, ...], ...] = (("requests",), ("summary",), EVERYTHING)
_PREPARE = """
import time
from steelyard.sim import prepare
begun = time.process_time()
prepare({model!r}, {gpu!r}, {tp})
print(time.process_time() - begun)
"""


def ratio(fleet: FleetSetup, keep: tuple[Kept, ...]) -> tuple[float, float]:
    """CPU seconds of a run, and of the engine loop within it."""
    drawn = draw_workload(fleet)
    loop = 0.0

    def timed(*arguments: object) -> None:
        nonlocal loop
        begun = time.process_time()
        inner(*arguments)
        loop = time.process_time() - begun

    inner: Callable[..., None] = run_fleet
    best = (float("inf"), 0.0)
    with patch.object(run, "run_fleet", timed):
        for _ in range(REPEATS):
            begun = time.process_time()
            simulate(fleet, drawn, keep=keep)
            best = min(best, (time.process_time() - begun, loop))
    return best


def cold(model: str, gpu: str, tp: int, cache: str) -> float:
    """CPU seconds to prepare an engine in a process of its own."""
    code = _PREPARE.format(model=model, gpu=gpu, tp=tp)
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "STEELYARD_CACHE": cache, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    return float(found.stdout)


def main() -> None:
    """Print both tables."""
    console = Console()
    runs = Table("engine", "kept", "run ms", "loop ms", "ratio", box=None, title="a run of 500 requests")
    for gpu in ("h100", "h200"):
        fleet = fleet_of(prepare("llama-3.1-8b", gpu), WORKLOAD, slo={"ttft_p95": 1.0})
        for keep in KEPT:
            whole, loop = ratio(fleet, keep)
            cells = [f"{1e3 * whole:.1f}", f"{1e3 * loop:.1f}", f"{whole / loop:.2f}"]
            runs.add_row(f"llama-3.1-8b on {gpu}", ", ".join(keep), *cells)
    console.print(runs)
    made = Table("engine", "compiled ms", "from disk ms", box=None, title="preparing, in a fresh process")
    for model, gpu, tp in (("llama-3.1-8b", "h100", 1), ("llama-3.1-8b", "h200", 1), ("qwen3-30b-a3b", "h200", 2)):
        with tempfile.TemporaryDirectory() as cache:
            first, again = (cold(model, gpu, tp, cache) for _ in range(2))
            kept = any(files for _, _, files in os.walk(cache))
        made.add_row(f"{model} on {tp} {gpu}", f"{1e3 * first:.0f}", f"{1e3 * again:.0f}" if kept else "not kept")
    console.print(made)


if __name__ == "__main__":
    main()
