"""`python -m tools.borrow SCENARIO.yaml FOLDER`: a GRPO run whose pool has reason to lend a replica and take it back.

The trainer's process is stopped most of the time (SIGSTOP, SIGCONT) until a replica trains with it, as if other work
took its CPU. All times that the pool decides by are measured.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from contextlib import suppress
from pathlib import Path

from steelyard.cli.console import say
from steelyard.live.figures import live_figures
from steelyard.live.grpo.run import GrpoRun
from steelyard.live.store import log_rows
from steelyard.live.supervise import Supervisor
from steelyard.scenario.live import load_grpo

_STOPPED, _RUNNING = 0.27, 0.03  # seconds of each turn
_MOVES = ("Drain", "Join", "Activate", "Leave", "RollBack")


def _commanded(run: GrpoRun, kind: str) -> bool:
    """Whether a command was given."""
    with suppress(sqlite3.Error):
        db = sqlite3.connect(f"{run.store.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
        try:
            query = "SELECT 1 FROM commands WHERE json_extract(line, '$.kind') = ? LIMIT 1"
            return db.execute(query, (kind,)).fetchone() is not None
        finally:
            db.close()
    return False


async def _slow_down(run: GrpoRun, supervisor: Supervisor) -> None:
    """Slow the trainer down until a replica helps it."""
    while not _commanded(run, "TrainOn"):
        await asyncio.sleep(0.1)
    while not _commanded(run, "Activate"):
        with suppress(KeyError, ProcessLookupError):
            trainer = supervisor.pid("trainer")
            os.kill(trainer, signal.SIGSTOP)
            try:
                await asyncio.sleep(_STOPPED)
            finally:
                os.kill(trainer, signal.SIGCONT)
        await asyncio.sleep(_RUNNING)


async def _run(run: GrpoRun) -> None:
    supervisor = Supervisor(run, lambda name, code: say(f"{name} ended with code {code} and is started again"))
    slowing = asyncio.ensure_future(_slow_down(run, supervisor))
    try:
        await supervisor.run()
    finally:
        slowing.cancel()


def main(scenario: Path, folder: Path) -> None:
    """Run, and say what was moved."""
    run = GrpoRun.at_free_ports(load_grpo(scenario, sys.argv[3:]), folder)
    run.write()
    asyncio.run(_run(run))
    for _, row in list(log_rows(run.store))[1:]:
        if row["kind"] in _MOVES or row["kind"] in ("Serving", "Failed"):
            say(f"{row['kind']} {row['replica']}")
    for step in live_figures(run.store).steps:
        complete, synced = f"{step.complete:.2f}", f"{step.synced:.2f}"
        say(f"step {step.step}: samples complete {complete} s, trained {step.trained:.2f} s, synced {synced} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
