"""``python -m steelyard.live.process FOLDER PART [LISTEN REACH]``: one part of a run, in a process of its own.

It listens at the address LISTEN of its machine, and others reach it by REACH.

It ends when it is told to (SIGTERM), when the run is over, and when the process that started it ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from steelyard.errors import UserError
from steelyard.files.writing import write_text
from steelyard.live.addresses import CONTROLLER, GATEWAY, LOCAL, PartHost
from steelyard.live.engines.leash import signal_at_end_of_parent
from steelyard.live.loop import run_on_uvloop
from steelyard.live.runs import read_run
from steelyard.live.store import Fenced

_SWITCH_SECONDS = 0.5e-3  # until a thread that waits gets its turn. Python's 5 ms are long for one that writes events


def main(folder: Path, name: str, host: PartHost = LOCAL) -> None:
    """Run a part to its end."""
    signal_at_end_of_parent(signal.SIGKILL)
    sys.setswitchinterval(_SWITCH_SECONDS)
    logging.basicConfig(level=logging.WARNING, format=f"%(asctime)s {name} %(levelname)s %(message)s")
    write_text(folder / f"{name}.pid", f"{os.getpid()}\n")
    try:
        run = run_on_uvloop if name in (CONTROLLER, GATEWAY) else asyncio.run
        run(run_part(folder, name, host))
    except (UserError, Fenced) as problem:
        sys.exit(f"{name}: {problem}")


async def run_part(folder: Path, name: str, host: PartHost) -> None:
    """Run a part until it is told to end."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await read_run(folder, host).part(name).run(stop)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], PartHost(*sys.argv[3:]))
