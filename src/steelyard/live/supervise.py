"""Runs the parts of a run as processes of this machine, and starts again what dies."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from steelyard.errors import UserError
from steelyard.files.writing import appending
from steelyard.live.addresses import LOCAL, PartHost
from steelyard.live.runs import LiveRun, is_over

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds until a part that died is started again; doubled each time; chosen
_MOST_DEATHS = 10  # of a part in a row, each right after its start, until the run is given up; chosen
_STARTED_SECONDS = 30.0  # a part that lives longer than this has started well; chosen
GRACE_SECONDS = 10.0  # for a part to end by itself
FOLLOW_SECONDS = 0.1  # between two looks which parts are wanted; chosen
CONTROLLER = "controller"

Restarted = Callable[[str, int], None]
"""Called with a part that is started again, and the exit code it ended with."""


class Supervisor:
    """The processes of a run. ``host`` says where a part is, each time that it is started. A planner may start and stop
    engines, so the parts that are wanted are looked at again and again."""

    def __init__(
        self,
        run: LiveRun,
        restarted: Restarted = lambda name, code: None,
        host: Callable[[str], PartHost] = lambda name: LOCAL,
    ) -> None:
        self._run, self._restarted, self._host = run, restarted, host
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._ending = False

    async def run(self) -> None:
        """Run until the controller says that the run is over."""
        following = asyncio.ensure_future(self._follow())
        self._watching[CONTROLLER] = asyncio.ensure_future(self._watch(CONTROLLER))
        try:
            await asyncio.wait({following, self._watching[CONTROLLER]}, return_when=asyncio.FIRST_COMPLETED)
            for each in (following, self._watching[CONTROLLER]):
                if each.done():
                    each.result()
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
            for each in self._watching.values():
                if each.done():
                    each.result()  # raises if it was given up
            await asyncio.sleep(FOLLOW_SECONDS)

    def _retire(self, name: str) -> None:
        self._watching.pop(name).add_done_callback(_look)
        process = self._processes.get(name)
        if process is not None and process.returncode is None:
            process.terminate()

    async def _watch(self, name: str) -> None:
        pause, deaths = _FIRST_PAUSE, 0
        while not self._ending:
            begun = time.monotonic()
            code = await self._once(name)
            if self._ending or name not in self._watching or is_over(self._run):
                return
            if time.monotonic() - begun > _STARTED_SECONDS:
                pause, deaths = _FIRST_PAUSE, 0
            deaths += 1
            if deaths == _MOST_DEATHS:
                log = self._run.folder / f"{name}.log"
                raise UserError(f"{name} ended {deaths} times in a row; the run is given up. {log} says why")
            self._restarted(name, code)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE) if code else _FIRST_PAUSE  # 0: it was told to make way

    async def _once(self, name: str) -> int:
        folder, host = self._run.folder, self._host(name)
        with appending(folder / f"{name}.log") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "steelyard.live.process", str(folder), name, host.listen, host.reach),
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
            async with asyncio.timeout(GRACE_SECONDS):
                await asyncio.gather(*(each.wait() for each in running))
        for each in running:
            if each.returncode is None:
                each.kill()


def _look(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
