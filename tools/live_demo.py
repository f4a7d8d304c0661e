"""`make live-demo`: 64 GPUs' worth of post-training without a GPU.

An engine is killed, the planner moves GPUs, and a page shows what happened.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from steelyard.cli.console import say
from steelyard.cli.control_runs import Asked, emulate
from steelyard.live.emulated.run import EmulatedRun
from steelyard.live.figures import live_figures
from steelyard.live.runs import LiveRun
from steelyard.live.supervise import Supervisor

_SCENARIO = Path("examples/live/fleet-64.yaml")
_SPEED = 10.0
_KILLED = "engine-3"
_LOOK_SECONDS = 0.5


def _carry_out(run: LiveRun) -> None:
    assert isinstance(run, EmulatedRun)
    say(f"{len(run.parts)} processes, {run.scenario.gpus} emulated GPUs, {_SPEED:g} times as fast as real time")
    asyncio.run(_run(run))


async def _run(run: EmulatedRun) -> None:
    supervisor = Supervisor(run, lambda name, code: say(f"{name} ended with code {code} and is started again"))
    running = asyncio.ensure_future(supervisor.run())
    steps = 0
    while not running.done():
        done = len(live_figures(run.store).steps) if run.store.exists() else 0
        if done > steps:
            steps = done
            say(f"step {done} of {run.scenario.steps} is done")
            if done == 1:
                say(f"{_KILLED} is killed now (kill -9)")
                os.kill(supervisor.pid(_KILLED), signal.SIGKILL)
        await asyncio.wait({running}, timeout=_LOOK_SECONDS)
    await running


if __name__ == "__main__":
    emulate(Asked(_SCENARIO, [], None, _SPEED, metrics=0, resume=False), _carry_out)
