"""Delivers events in order and once, although the network may delay, reorder or repeat them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from steelyard.balance.kinds import Event


@dataclass(slots=True)
class Envelope:
    """An event and its identity: the epoch of its driver, and its number within that epoch, from 0. A restarted driver
    has a higher epoch, and reports the current state again."""

    epoch: int
    seq: int
    event: Event


class Inbox:
    """Delivers events by number. An early event waits for those before it. Repeated events and events of an earlier
    epoch are dropped and counted. A new epoch drops the waiting events of the old one."""

    def __init__(self) -> None:
        self._epoch = 0
        self._next = 0
        self._early: dict[int, Event] = {}
        self.dropped: Counter[str] = Counter()

    def in_order(self, envelope: Envelope) -> bool:
        """Whether an envelope is the next one and no other waits. Usually so; then its event is delivered as it is."""
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
