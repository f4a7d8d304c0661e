"""Runs the parts of a run as processes of this machine, and starts again what dies."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from steelyard.files.writing import appending
from steelyard.live.runs import LiveRun

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds until a part that died is started again; doubled each time; chosen
_GRACE_SECONDS = 10.0  # for a part to end by itself
FOLLOW_SECONDS = 0.1  # between two looks which parts are wanted; chosen
CONTROLLER = "controller"

Restarted = Callable[[str, int], None]
"""Called with a part that died and its exit code."""


class Supervisor:
    """The processes of a run. A planner may start and stop engines, so the parts that are wanted are looked at again
    and again."""

    def __init__(self, run: LiveRun, restarted: Restarted = lambda name, code: None) -> None:
        self._run, self._restarted = run, restarted
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._ending = False

    async def run(self) -> None:
        """Run until the controller says that the run is over."""
        following = asyncio.ensure_future(self._follow())
        self._watching[CONTROLLER] = asyncio.ensure_future(self._watch(CONTROLLER))
        try:
            await asyncio.wait({following, self._watching[CONTROLLER]}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
        finally:
            following.cancel()
            self._ending = True
            await self._end()
            await asyncio.gather(*self._watching.values(), return_exceptions=True)

    def pid(self, name: str) -> int:
        """The process of a part."""
        return self._processes[name].pid

    async def _follow(self) -> None:
        """Start parts that are wanted, and end those that are not any more."""
        while True:
            wanted = self._run.parts
            for name in [each for each in wanted if each not in self._watching]:
                self._watching[name] = asyncio.ensure_future(self._watch(name))
            for name in [each for each in self._watching if each not in wanted]:
                self._retire(name)
            await asyncio.sleep(FOLLOW_SECONDS)

    def _retire(self, name: str) -> None:
        self._watching.pop(name).add_done_callback(_look)
        process = self._processes.get(name)
        if process is not None and process.returncode is None:
            process.terminate()

    async def _watch(self, name: str) -> None:
        pause = _FIRST_PAUSE
        while not self._ending:
            code = await self._once(name)
            if code == 0 or self._ending or name not in self._watching:
                return
            self._restarted(name, code)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _once(self, name: str) -> int:
        folder: Path = self._run.folder
        with appending(folder / f"{name}.log") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "steelyard.live.process", str(folder), name),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._processes[name] = process
        return await process.wait()

    async def _end(self) -> None:
        running = [each for each in self._processes.values() if each.returncode is None]
        for each in running:
            with suppress(ProcessLookupError):
                each.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_SECONDS):
                await asyncio.gather(*(each.wait() for each in running))
        for each in running:
            if each.returncode is None:
                each.kill()


def _look(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
