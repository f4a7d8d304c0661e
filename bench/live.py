"""`python -m bench.live`: a live run beside its simulation, and how long a run stands still when a part is killed.

Every part is a process of its own on this machine. Engines are emulated, 20 times as fast as real ones.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
import tempfile
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from steelyard.cli.control_runs import as_live
from steelyard.live.emulated.run import EmulatedRun
from steelyard.live.figures import live_figures
from steelyard.live.supervise import Supervisor
from steelyard.posttrain.run import posttrain
from steelyard.scenario import posttrain_from_dict

_SPEED = 20.0
_RUN: dict[str, Any] = {
    "name": "live",
    "model": "qwen3-14b",
    "gpu": "a800",
    "trajectories": {"preset": "math", "prompts": 8, "group": 8},
    "mode": "one-step-off",
    "rollout": [{"tp": 2, "replicas": 2}, {"tp": 4, "replicas": 1}],
    "training": {"tp": 4, "dp": 2, "micro_batch_tokens": 24576},
    "engine": {"max_num_seqs": 256, "block_size": 64},
    "steps": 4,
    "seed": 1,
}
_PLANNED: dict[str, Any] = {
    **_RUN,
    "name": "planned",
    "planner": "libra",
    "rollout": [{"tp": 2, "replicas": 2}],
    "training": {"tp": 4, "dp": 4, "micro_batch_tokens": 24576},
    "steps": 8,
}
_SMALL: dict[str, Any] = {
    "name": "killed",
    "model": "qwen2.5-0.5b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 4, "group": 8},
    "mode": "asynchronous",
    "rollout": [{"tp": 1, "replicas": 2}],
    "training": {"dp": 1},
    "steps": 12,
    "seed": 3,
}


def beside_simulation(name: str, written: dict[str, Any]) -> list[str]:
    """A row: makespan and throughput of a run, live and simulated, and whether the plan changed alike."""
    scenario = posttrain_from_dict(written)
    with tempfile.TemporaryDirectory() as folder:
        run = EmulatedRun.at_free_ports(scenario, Path(folder), _SPEED)
        run.write()
        asyncio.run(Supervisor(run).run())
        found = live_figures(run.store)
    simulated = posttrain(as_live(scenario)).summary
    expected = [each["what"] for each in simulated.get("reallocations", ())]
    alike = "same" if [each.what for each in found.changes] == expected else "other"
    apart = [found.seconds / simulated["seconds"] - 1, found.tokens_per_second / simulated["tokens_per_second"] - 1]
    shown = [f"{each:+.1%}" for each in apart]
    return [name, f"{found.seconds:,.0f}", f"{simulated['seconds']:,.0f}", *shown, f"{len(expected)}, {alike}"]


def recovery(name: str) -> list[str]:
    """A row: seconds until a killed part is back, and the longest pause of the run's events around that."""

    async def main(run: EmulatedRun) -> tuple[float, float]:
        supervisor = Supervisor(run)
        running = asyncio.ensure_future(supervisor.run())
        while len(_event_times(run)) < 200:
            await asyncio.sleep(0.02)
        killed, pid = time.time(), supervisor.pid(name)
        os.kill(pid, signal.SIGKILL)
        while supervisor.pid(name) == pid or not await _serves(run, name, pid):
            await asyncio.sleep(0.01)
        back = time.time() - killed
        await running
        return killed, back

    with tempfile.TemporaryDirectory() as folder:
        run = EmulatedRun.at_free_ports(posttrain_from_dict(_SMALL), Path(folder), _SPEED)
        run.write()
        killed, back = asyncio.run(main(run))
        times = [at for at in _event_times(run) if killed - 1 < at < killed + 20]
    pause = max(after - before for before, after in pairwise(times))
    return [name, f"{back:.2f}", f"{pause:.2f}"]


async def _serves(run: EmulatedRun, name: str, before: int) -> bool:
    """Whether a part that was started again has its port, or has written its number where it has none."""
    ports = {"controller": run.control, "gateway": run.gateway, "engine-0": run.engines[0]}
    if name not in ports:
        return (run.folder / f"{name}.pid").read_text().strip() != str(before)
    with suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", ports[name])
        writer.close()
        return True
    return False


def _event_times(run: EmulatedRun) -> list[float]:
    """When each event was decided, by the machine's clock."""
    with suppress(sqlite3.Error):
        db = sqlite3.connect(f"{run.store.as_uri()}?mode=ro", uri=True, timeout=5)
        try:
            started = db.execute("SELECT value FROM facts WHERE name = 'started'").fetchone()
            if started is None:  # the store is a moment old
                return []
            rows = db.execute("SELECT json_extract(line, '$.at') FROM events ORDER BY place")
            return [float(started[0]) + at / _SPEED for (at,) in rows]
        finally:
            db.close()
    return []


def main() -> None:
    """Print both tables; with `--recovery` or `--simulation` only one."""
    console = Console()
    if "--recovery" not in sys.argv:
        table = Table("run", "live, s", "simulated, s", "makespan", "tokens/s", "changes of plan", box=None)
        runs = {mode: {**_RUN, "mode": mode} for mode in ("split", "one-step-off", "asynchronous")}
        for name, written in {**runs, "with a planner": _PLANNED}.items():
            table.add_row(*beside_simulation(name, written))
        console.print(table)
    if "--simulation" not in sys.argv:
        table = Table("killed", "back after, s", "longest pause of events, s", box=None)
        for name in ("engine-0", "controller", "gateway", "job"):
            table.add_row(*recovery(name))
        console.print(table)


if __name__ == "__main__":
    main()
