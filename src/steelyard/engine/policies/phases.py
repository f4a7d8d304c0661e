"""Two queues by phase: answers that a user waits for, and the hidden planning rounds before them.

A request's ``phase`` says which it is. Everything else follows vLLM's rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from steelyard.engine.content import BlockNames
from steelyard.engine.limits import Limits
from steelyard.engine.request import PLANNING, Request
from steelyard.engine.scheduler import Scheduler

ANSWERS_IN_A_ROW = 4  # admitted before a planning round has a turn, so that planning never starves; chosen


class ByPhase:
    """Answers first, each phase in order of arrival; after ANSWERS_IN_A_ROW of them, planning has a turn."""

    def __init__(self, in_a_row: int = ANSWERS_IN_A_ROW) -> None:
        self._answers: deque[Request] = deque()
        self._planning: deque[Request] = deque()
        self._in_a_row = in_a_row
        self._row = 0

    def _of(self, r: Request) -> deque[Request]:
        return self._planning if r.phase == PLANNING else self._answers

    def _next(self) -> deque[Request]:
        turn = not self._answers or (self._row >= self._in_a_row and self._planning)
        return self._planning if turn else self._answers

    def __len__(self) -> int:
        return len(self._answers) + len(self._planning)

    def __iter__(self) -> Iterator[Request]:
        yield from self._answers
        yield from self._planning

    def add(self, r: Request) -> None:
        self._of(r).append(r)

    def head(self) -> Request:
        return self._next()[0]

    def pop(self) -> Request:
        queue = self._next()
        self._row = self._row + 1 if queue is self._answers and self._planning else 0
        return queue.popleft()

    def put_back(self, r: Request) -> None:
        self._of(r).appendleft(r)

    def remove(self, r: Request) -> None:
        self._of(r).remove(r)


class PhaseAware(Scheduler):
    """vLLM's scheduler with a queue for each phase; planning is preempted first when blocks run out."""

    def __init__(self, limits: Limits, names: BlockNames, *, plain: bool = False) -> None:
        super().__init__(limits, names, plain=plain)
        self.waiting = ByPhase()

    def enqueue(self, r: Request) -> None:
        """An answer may overtake requests that did not fit."""
        super().enqueue(r)
        self.head_blocked = False

    def victim(self) -> Request:
        """The newest planning request, or else the newest request."""
        newest = next(reversed(self.running))
        return next((r for r in reversed(self.running) if r.phase == PLANNING), newest)
