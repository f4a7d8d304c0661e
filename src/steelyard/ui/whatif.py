"""What-if curves: points are simulated by worker processes; what a tab no longer wants is given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any
from zlib import crc32

from steelyard.errors import UserError
from steelyard.sim.workers import KeptWorkers, free_cores, keep_working
from steelyard.ui.points import PointTask, PointWorker

_SLOTS = 256  # tabs that are told apart; two that share a slot only supersede each other
Told = Callable[[dict[str, Any] | None], None]
"""Called with each point, and with None at the end."""


@dataclass(frozen=True)
class _Asked:
    tasks: Sequence[PointTask]
    tell: Told


class Curves:
    """Asks the workers for points. One thread hands tasks to them, request by request."""

    def __init__(self, turns: Any, crew: KeptWorkers) -> None:
        self._turns, self._crew = turns, crew
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        self._lock = Lock()

    def newest(self, tab: str) -> tuple[int, int]:
        """A slot, and the number of a tab's next request there. All its requests before are given up."""
        slot = crc32(tab.encode()) % _SLOTS
        with self._lock:
            self._turns[slot] += 1
            return slot, int(self._turns[slot])

    async def rounds(self, tasks: Sequence[PointTask]) -> AsyncIterator[dict[str, Any]]:
        """Points as they are known; then, once more, those that have not settled, from longer simulations."""
        longer = []
        async for point in self.points(tasks):
            again = next((each.longer(point) for each in tasks if each.knobs.rate == point.get("rate")), None)
            longer += [] if again is None else [again]
            yield {**point, "final": again is None}
        yield {"round": 1}
        async for point in self.points(longer):
            yield {**point, "final": True}

    async def points(self, tasks: Sequence[PointTask]) -> AsyncIterator[dict[str, Any]]:
        """Points as they are known, those that are wanted no more left out."""
        loop, found = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any] | None]()
        self._asked.put(_Asked(tasks, lambda point: _call_soon(loop, found.put_nowait, point)))
        while (point := await found.get()) is not None:
            yield point

    def work(self) -> None:
        """Hand out what is asked for, until told to end."""
        while (asked := self._asked.get()) is not None:
            try:
                for _, point in self._crew.work(asked.tasks):
                    if point is not None:
                        asked.tell(point)
            except UserError as error:
                asked.tell({"errors": list(error.args)})
            except Exception as error:
                asked.tell({"errors": [f"internal error: {type(error).__name__}: {error}"[:500]]})
            asked.tell(None)

    def end(self) -> None:
        """Hand out nothing more."""
        self._asked.put(None)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *given: object) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, *given)


@contextmanager
def curves_at_work(workers: int | None = None) -> Iterator[Curves]:
    """Worker processes for curves until the end of the block. They are started before there are threads."""
    turns = get_context().Array("q", _SLOTS, lock=False)
    number = free_cores() if workers is None else workers
    with keep_working(PointWorker(turns), number) as crew:
        curves = Curves(turns, crew)
        working = Thread(target=curves.work, daemon=True)
        working.start()
        try:
            yield curves
        finally:
            for slot in range(_SLOTS):
                turns[slot] = -1
            curves.end()
            working.join()
