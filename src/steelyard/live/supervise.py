"""Runs the parts of a run as processes of this machine, and starts again what dies."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress

from steelyard.files.writing import appending
from steelyard.live.addresses import LOCAL, PartHost
from steelyard.live.runs import LiveRun, is_over

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds until a part that died is started again; doubled each time; chosen
GRACE_SECONDS = 10.0  # for a part to end by itself
CONTROLLER = "controller"

Restarted = Callable[[str, int], None]
"""Called with a part that is started again, and the exit code it ended with."""


class Supervisor:
    """The processes of a run. ``host`` says where a part is, each time that it is started."""

    def __init__(
        self,
        run: LiveRun,
        restarted: Restarted = lambda name, code: None,
        host: Callable[[str], PartHost] = lambda name: LOCAL,
    ) -> None:
        self._run, self._restarted, self._host = run, restarted, host
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._ending = False

    async def run(self) -> None:
        """Run until the controller says that the run is over."""
        watching = {name: asyncio.ensure_future(self._watch(name)) for name in self._run.parts}
        try:
            await watching[CONTROLLER]
        finally:
            self._ending = True
            await self._end()
            await asyncio.gather(*watching.values(), return_exceptions=True)

    def pid(self, name: str) -> int:
        """The process of a part."""
        return self._processes[name].pid

    async def _watch(self, name: str) -> None:
        pause = _FIRST_PAUSE
        while not self._ending:
            code = await self._once(name)
            if self._ending or is_over(self._run):
                return
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
