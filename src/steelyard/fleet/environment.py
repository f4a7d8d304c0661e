"""Virtual time: a clock that goes from event to event, after SimPy's environment.

Events at the same second are handled by priority, then by the numbers and names they carry. So the order in which they
were scheduled does not change a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Generic, TypeVar

Event = TypeVar("Event", bound=tuple[Any, ...])
"""(second, priority, what it is about ...); no two that are equal."""


_LOOK_EVERY = 1 << 17  # events


class Environment(Generic[Event]):
    """Pending events and their handlers. An event's priority is the index of its handler.

    ``most_at_once`` are more events than any run handles at the same second. Beyond them it is ended with an error: a
    fault of the simulator, which would go on for ever.
    """

    def __init__(self, handlers: Sequence[Callable[[Event], None]]) -> None:
        self.now = 0.0  # second of the last event
        self.until = inf  # second up to which it runs
        self.agenda: list[Event] = []  # a heap
        self.schedule: Callable[[Event], None] = partial(heappush, self.agenda)
        self.most_at_once = _LOOK_EVERY
        self._handlers = list(handlers)

    def peek(self) -> float:
        """Second of the next event; infinite if there is none."""
        return self.agenda[0][0] if self.agenda else inf

    @property
    def horizon(self) -> float:
        """The second of the next event, or of the end of the run if that comes first."""
        agenda, until = self.agenda, self.until
        return agenda[0][0] if agenda and agenda[0][0] < until else until

    def step(self) -> None:
        """Handle the next event."""
        event = heappop(self.agenda)
        self.now = event[0]
        self._handlers[event[1]](event)

    def run(self, until: float = inf) -> None:
        """Handle events up to and including a second. Ends earlier when no event is left, or after `stop`."""
        before, self.until = self.until, until
        agenda, handlers = self.agenda, self._handlers
        handled, at_once, last = 0, 0, -inf
        while agenda and agenda[0][0] <= self.until:
            event = heappop(agenda)  # as `step` does, without the call
            self.now = event[0]
            handlers[event[1]](event)
            handled += 1
            if handled == _LOOK_EVERY:
                at_once = at_once + handled if event[0] == last else 0
                handled, last = 0, event[0]
                if at_once > self.most_at_once:
                    raise RuntimeError(f"{at_once:,} events at second {event[0]:g}, and no end; the last is {event}")
        self.until = before

    def stop(self) -> None:
        """End the run after the current event."""
        self.until = -inf

    def drop(self, outdated: Callable[[Event], bool]) -> None:
        """Take events off the agenda."""
        self.agenda[:] = [event for event in self.agenda if not outdated(event)]
        heapify(self.agenda)
