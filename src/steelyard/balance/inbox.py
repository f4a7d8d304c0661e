"""Events in the order in which they happened, each once, whatever the network made of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from steelyard.balance.kinds import Event


@dataclass(slots=True)
class Envelope:
    """An event and its identity: the epoch of the driver that reports it, and its place among that epoch's events,
    counted from 0. A driver that starts anew has a higher epoch, and reports anew what is there."""

    epoch: int
    seq: int
    event: Event


class Inbox:
    """Gives out events by rising place. One that comes too early waits for those before it; one that was given out
    before, or is of an earlier epoch, is dropped and counted. A new epoch drops what waits of the old one."""

    def __init__(self) -> None:
        self._epoch = 0
        self._next = 0
        self._early: dict[int, Event] = {}
        self.dropped: Counter[str] = Counter()

    def in_order(self, envelope: Envelope) -> bool:
        """Whether an envelope is just the next, and none waits for it: the usual case, in which its event is given out
        as it is."""
        if envelope.seq != self._next or envelope.epoch != self._epoch or self._early:
            return False
        self._next += 1
        return True

    def take(self, envelope: Envelope) -> list[Event]:
        """The events that can be decided on now."""
        if envelope.epoch != self._epoch:
            if envelope.epoch < self._epoch:
                self.dropped["earlier epoch"] += 1
                return []
            self.dropped["earlier epoch"] += len(self._early)
            self._epoch, self._next, self._early = envelope.epoch, 0, {}
        if envelope.seq != self._next:
            if envelope.seq < self._next or envelope.seq in self._early:
                self.dropped["repeated"] += 1
            else:
                self._early[envelope.seq] = envelope.event
            return []
        self._next += 1
        if not self._early:
            return [envelope.event]
        ready = [envelope.event]
        while self._next in self._early:
            ready.append(self._early.pop(self._next))
            self._next += 1
        return ready
