"""The controller: events in, durable, then decided, then carried out. It can be killed at any moment.

What it does after a restart follows from the store alone. Events whose commands were not written are decided again,
which gives the same commands, and these are carried out again with the same identity. So agents must take a command
that they have carried out before as done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from steelyard.balance.core import Core
from steelyard.balance.inbox import Envelope
from steelyard.balance.kinds import Command, Event
from steelyard.balance.log import command_line, read_event, read_header
from steelyard.balance.settings import CoreSettings
from steelyard.balance.snapshot import restore, snapshot
from steelyard.errors import UserError
from steelyard.files.finding import is_there
from steelyard.files.jsontext import json_row
from steelyard.live.store import Store

_EVENTS_BETWEEN_SNAPSHOTS = 10_000  # a replay of so many takes about a second


class CommandId(NamedTuple):
    """A command's identity: the event that led to it, and its place among that event's commands."""

    event: int
    place: int


CarryOut = Callable[[CommandId, Command], None]
"""Has a command carried out. It returns when the command will not be lost any more."""


class Controller:
    """Feeds events to a core and has its commands carried out. Use `begin` or `resume`.

    ``watch`` is called with each event from then on, once its commands are carried out.
    """

    def __init__(self, store: Store, core: Core, carry_out: CarryOut, saved: int = 0) -> None:
        self.core = core
        self._store = store
        self._carry_out = carry_out
        self._saved = saved  # events before the newest snapshot
        self._carried_out: list[list[Command]] = []  # by event, and not written yet
        self.watch: Callable[[Event, Sequence[Command]], None] = lambda event, commands: None

    @classmethod
    def begin(cls, path: Path, settings: CoreSettings, carry_out: CarryOut, shared: bool = False) -> Controller:
        """Start a run. Its store must be new."""
        if is_there(path):
            raise UserError(f"{path}: exists; resume its run, or give another name")
        return cls(Store(path, settings, shared), settings.core(), carry_out)

    @classmethod
    def resume(cls, path: Path, carry_out: CarryOut, shared: bool = False) -> Controller:
        """Take over a run, exactly where it was. Commands that may not have been carried out are carried out."""
        store = Store(path, shared=shared)
        saved = store.snapshot()
        if saved is None:
            core, first = read_header(json_row(store.header, str(path)), str(path)).settings.core(), 0
        else:
            first, core = saved[0], restore(saved[1])
        controller = cls(store, core, carry_out, first)
        controller._catch_up(first, path)
        return controller

    @property
    def fence(self) -> int:
        """Rises with every controller of a run, so that agents can tell an old controller from its successor."""
        return self._store.fence

    @property
    def events(self) -> int:
        """Events so far."""
        return self._store.events

    @property
    def store(self) -> Store:
        """The run's memory on disk."""
        return self._store

    def tell(self, events: Sequence[Event], reports: Mapping[str, int] | None = None) -> None:
        """Decide events, in order. They are on disk before the first is decided, and so is which report of each member
        they came with."""
        self.decide(self.write(events, reports))

    def write(self, events: Sequence[Event], reports: Mapping[str, int] | None = None) -> list[Envelope]:
        """The first half of `tell`, which waits for the disk. It may run in a thread, one call at a time."""
        first = self._store.events
        envelopes = [Envelope(0, first + index, event) for index, event in enumerate(events)]
        self._write(envelopes, reports)
        return envelopes

    def decide(self, envelopes: Sequence[Envelope]) -> None:
        """The second half of `tell`."""
        for envelope in envelopes:
            commands = self.core.decide(envelope)
            self._act(envelope.seq, commands)
            self.watch(envelope.event, commands)
        if self._store.events - self._saved >= _EVENTS_BETWEEN_SNAPSHOTS:
            self.save()

    def flush(self) -> None:
        """Write the commands that have been carried out."""
        if self._carried_out:
            self._write([])

    def save(self) -> None:
        """Write everything, and a snapshot, so that the next controller starts at once."""
        self._write([])
        self._store.save(snapshot(self.core))
        self._saved = self._store.events

    def close(self) -> None:
        """End in an orderly way."""
        self.save()
        self._store.close()

    def _act(self, event: int, commands: list[Command]) -> None:
        for place, command in enumerate(commands):
            self._carry_out(CommandId(event, place), command)
        self._carried_out.append(commands)

    def _write(self, envelopes: Sequence[Envelope], reports: Mapping[str, int] | None = None) -> None:
        self._store.append(envelopes, self._carried_out, reports)
        self._carried_out = []

    def _catch_up(self, first: int, path: Path) -> None:
        """Bring the core from a snapshot to where it was."""
        for place, line, logged in self._store.rows(first):
            where = f"{path}: event {place}"
            commands = self.core.decide(read_event(json_row(line, where), where))
            if place >= self._store.carried_out:
                self._act(place, commands)
            elif logged != [command_line(command) for command in commands]:
                raise UserError(
                    f"{path}: event {place} is decided otherwise than before; use the version that wrote it"
                )
