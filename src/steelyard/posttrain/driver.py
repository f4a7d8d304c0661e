"""Drives the decision core in virtual time: reports events, carries commands out.

Events are decided one after the other. Events that follow from a command are reported after all commands of the event
have been carried out, as a live driver would do it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from steelyard.balance.core import Core
from steelyard.balance.inbox import Envelope
from steelyard.balance.kinds import Command, Event
from steelyard.balance.log import Journal

CarryOut = Callable[[Any, float], None]
"""Carries a command out at a second."""


class Driver:
    """One core, and the handlers of its commands. Events are written to the journal before they are decided.

    Without a journal they need no envelope, since a core in the same process gets each of them once and in order.
    """

    def __init__(self, core: Core, journal: Journal | None = None) -> None:
        self.core = core
        self._journal = journal
        self._decide: Callable[[Event], list[Command]] = core.apply if journal is None else self._noted
        self._carry_out: dict[type[Command], CarryOut] = {}
        self._events: deque[Event] = deque()
        self._busy = False
        self._seq = 0

    def on(self, kind: type[Command], carry_out: CarryOut) -> None:
        """Set the handler of a kind of command."""
        self._carry_out[kind] = carry_out

    def tell(self, event: Event) -> None:
        """Report an event. Unless another is being decided, it and all that it leads to are decided now."""
        if self._busy:
            self._events.append(event)
            return
        self._busy = True
        decide, carry_out, events = self._decide, self._carry_out, self._events
        while True:
            for command in decide(event):
                carry_out[type(command)](command, event.at)
            if not events:
                break
            event = events.popleft()
        self._busy = False

    def _noted(self, event: Event) -> list[Command]:
        assert self._journal is not None
        envelope = Envelope(0, self._seq, event)
        self._seq += 1
        self._journal.event(envelope)
        commands = self.core.decide(envelope)
        self._journal.commands(commands)
        return commands
