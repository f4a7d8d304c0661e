"""Says in plain sentences what a core decided and why.

A log is decided again event by event, so that reasons are read from the core's state at that moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from steelyard.balance.commands import Park, Place
from steelyard.balance.events import (
    PartTrained,
    ReplicaDown,
    ReplicaUp,
    RolloutEvent,
    StepTrained,
    TrainerReady,
    WeightsPublished,
)
from steelyard.balance.kinds import Event
from steelyard.balance.log import Row
from steelyard.balance.plan.questions import PlanChanged, PlanRolledBack, PlansSimulated, PlanWanted
from steelyard.balance.pool import (
    Drained,
    Failed,
    Fetched,
    Gradient,
    JoinAccepted,
    PoolDissolved,
    PoolFormed,
    Serving,
    StepBegan,
    StepEnded,
    Synced,
    Tick,
)
from steelyard.files.jsontext import json_lines
from steelyard.live.explaining.roles import RoleSentences
from steelyard.live.explaining.samples import SampleSentences
from steelyard.live.explaining.sentence import Explained
from steelyard.live.explaining.turns import TurnSentences
from steelyard.live.store import is_store, log_rows
from steelyard.posttrain.history import DecidedEvent, DecidedLog

__all__ = ["Explained", "explanations", "log_of"]

_DROPPED = {
    "late": "it is about an earlier placement, epoch or step",
    "repeated": "it says nothing new",
    "out of order": "it does not fit what is known yet",
    "earlier epoch": "its driver was replaced",
}


def explanations(rows: Iterator[Row], name: str = "log") -> Iterator[Explained]:
    """A sentence for each decision of a log, in its order. ``name`` is that of the log, for messages."""
    log = DecidedLog(rows, name)
    explaining = _Explaining(log)
    log.before = explaining.before
    for each in log:
        yield from explaining.explain(each)
    yield from explaining.roles.rest()


def log_of(path: Path) -> Iterator[Row]:
    """The rows of a log: of a file of lines, or of a controller's store."""
    if is_store(path):
        return log_rows(path)
    return json_lines(path, torn=True, wanted="a log of the decision core")


class _Explaining:
    """Goes along with a log: told of each event before it is decided, it tells of it afterwards."""

    def __init__(self, log: DecidedLog) -> None:
        settings = log.header.settings
        self.roles = RoleSentences(log.core)
        self._samples = SampleSentences(log.core, settings)
        self._turns = TurnSentences(log.core, settings.router, self._samples)

    def before(self, event: Event) -> None:
        self._samples.before()
        self.roles.before(event)
        if isinstance(event, RolloutEvent):
            self._turns.before(event)

    def explain(self, decided: DecidedEvent) -> Iterator[Explained]:
        event, commands, dropped = decided
        if dropped is not None:
            yield _dropped(event, dropped)
        else:
            yield from self._samples.event(event, commands)
            if isinstance(event, RolloutEvent):
                yield from self._turns.event(event, commands)
            yield from self.roles.event(event, commands)
        for place, command in enumerate(commands):
            if isinstance(command, Place) and isinstance(event, RolloutEvent):
                yield self._turns.place(command, event, commands[place + 1 :])
            elif not isinstance(command, Park):  # which is told with the call
                yield from self._samples.command(command, event)
                yield from self.roles.command(command, event)
        if dropped is None and isinstance(event, RolloutEvent):
            yield from self._turns.waits(event)


def _dropped(event: Event, reason: str) -> Explained:
    """That a report does not count."""
    subject = _subject(event)
    why = f" ({_DROPPED[reason]})" if reason in _DROPPED else ""
    about = f" of {subject}" if subject else ""
    return Explained(event.at, "drop", subject, f"{type(event).__name__}{about} is dropped: {reason}{why}")


def _subject(event: Event) -> str:
    """What an event is about."""
    match event:
        case ReplicaUp() | ReplicaDown() | Gradient() | Drained() | JoinAccepted() | Fetched() | Synced():
            return f"replica {event.replica}"
        case Serving() | Failed():
            return f"replica {event.replica}"
        case TrainerReady() | PartTrained() | StepTrained() | StepBegan() | StepEnded():
            return f"step {event.step}"
        case PlanWanted() | PlanChanged() | PlanRolledBack():
            return f"step {event.step}"
        case WeightsPublished():
            return f"weights {event.version}"
        case PlansSimulated() | PoolFormed() | PoolDissolved() | Tick():
            return ""
        case _:
            return event.trajectory
