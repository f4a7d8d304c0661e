"""The parts of a run in this process, which tests kill and start again."""

from __future__ import annotations

import asyncio

from steelyard.live.parts import ControllerPart
from steelyard.live.runs import LiveRun, RunPart


class Parts:
    """Parts by name."""

    def __init__(self, run: LiveRun) -> None:
        self.run = run
        self.running: dict[str, RunPart] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, asyncio.Event] = {}

    def start(self, *names: str) -> None:
        """Start parts."""
        for name in names:
            part = self.running[name] = self.run.part(name)
            stop = self._stops[name] = asyncio.Event()
            self.tasks[name] = asyncio.ensure_future(part.run(stop))

    async def stop(self, name: str) -> None:
        """Tell a part to stop, and wait until it has."""
        task = self.tasks.pop(name)
        self._stops[name].set()
        await task
        self.running.pop(name)

    async def kill(self, name: str) -> None:
        """End a part in the middle of whatever it does."""
        self.running.pop(name, None)
        task = self.tasks.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        """End all parts."""
        for name in list(self.tasks):
            await self.kill(name)

    @property
    def controller(self) -> ControllerPart:
        part = self.running["controller"]
        assert isinstance(part, ControllerPart)
        return part

    async def finished(self) -> None:
        """Wait until the controller says that the run is over. Raises what went wrong with a part."""
        while "controller" not in self.tasks or not self.tasks["controller"].done():
            for task in list(self.tasks.values()):
                if task.done():
                    task.result()
            await asyncio.sleep(0.02)
        self.tasks["controller"].result()
