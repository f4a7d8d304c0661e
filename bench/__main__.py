"""`python -m bench [CASE ...]`: measure speed, memory and growth; print a table, write bench/results/speed.json.

Each case runs in a process of its own, on one core. Times are CPU seconds of `simulate` alone.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import dynamo
from bench.cases import CASES

RESULTS = Path(__file__).parent / "results" / "speed.json"
FLAT = 1.2  # time per request may differ by this factor over a growth series
console = Console()


def in_own_process(case: str) -> dict[str, Any]:
    """One case in a fresh process, so that its peak memory is its own."""
    command = [sys.executable, "-m", "bench", "--one", case]
    single = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=single)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def main(arguments: list[str]) -> int:
    """Run the named cases, or all."""
    if arguments[:1] == ["--one"]:
        print(json.dumps(CASES[arguments[1]](arguments[1]).row()))
        return 0
    names = arguments or list(CASES)
    unknown = [name for name in names if name not in CASES]
    if unknown:
        console.print(f"unknown case {unknown[0]!r}; choose from {', '.join(CASES)}")
        return 2
    rows: list[dict[str, Any]] = []
    with console.status("") as status:
        for name in names:
            status.update(f"running {name}")
            rows.append(in_own_process(name))
        status.update("running the peer")
        peers = beside_dynamo(rows)
    show(rows, peers)
    RESULTS.parent.mkdir(exist_ok=True)
    machine = {"python": platform.python_version(), "machine": platform.machine()}
    RESULTS.write_text(json.dumps({"machine": machine, "cases": rows, "dynamo": peers}, indent=1) + "\n")
    console.print(f"written to {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")
    return 0


def beside_dynamo(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The serving cases again by Dynamo's replay, where it is installed."""
    python = dynamo.interpreter()
    peers = []
    for row in rows:
        if python and row["case"].startswith("serve-"):
            run = dynamo.replay(python, row["replicas"], row["requests"])
            ours = in_own_process(row["case"])["cpu_s"]  # once more, next to it in time
            peer = {"case": row["case"], "dynamo_reported_s": run.reported_s, "dynamo_program_cpu_s": run.cpu_s}
            peers.append({**peer, "ours_cpu_s": ours, "times_faster": run.reported_s / ours})
    return peers


def show(rows: list[dict[str, Any]], peers: list[dict[str, Any]]) -> None:
    """The tables a person reads."""
    headings = ("case", "requests", "replicas", "CPU s", "requests/s", "steps/s", "us/req", "GiB")
    table = Table(*headings, box=None, pad_edge=False, title="per CPU-second, on one core")
    for row in rows:
        table.add_row(
            row["case"],
            f"{row['requests']:,}",
            f"{row['replicas']:,}",
            f"{row['cpu_s']:.3f}",
            f"{row['requests_per_cpu_s']:,.0f}",
            f"{row['steps_per_cpu_s']:,.0f}",
            f"{row['us_per_request']:.1f}",
            f"{row['peak_gib']:.2f}",
        )
    console.print(table)
    for series in ("grow-requests", "grow-replicas"):
        times = [row["us_per_request"] for row in rows if row["case"].startswith(series)]
        if len(times) > 1:
            spread = max(times) / min(times)
            console.print(f"{series}: largest over smallest time per request {spread:.2f} (flat up to {FLAT})")
    for row in rows:
        if "cpu_s_per_training_step" in row:
            console.print(f"{row['case']}: {row['cpu_s_per_training_step']:.2f} CPU seconds a training step")
    if peers:
        table = Table("same work", "Dynamo s", "Steelyard CPU s", "times faster", box=None, pad_edge=False)
        for peer in peers:
            numbers = (peer["dynamo_reported_s"], peer["ours_cpu_s"], peer["times_faster"])
            table.add_row(peer["case"], *(f"{number:.2f}" for number in numbers))
        console.print(table)
    else:
        console.print("Dynamo's replay is not installed here; see bench/dynamo.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
