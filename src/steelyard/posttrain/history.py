"""A log of the decision core, decided again event by event, and the trajectories that it tells of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple

from steelyard.balance.commands import Abort, Start, TrainOn
from steelyard.balance.encoding import encode
from steelyard.balance.events import (
    Aborted,
    Begun,
    Called,
    Ended,
    Generated,
    Paused,
    Returned,
    StepTrained,
    WeightsPublished,
)
from steelyard.balance.inbox import Envelope, Inbox
from steelyard.balance.kinds import Command, Event
from steelyard.balance.log import Row, is_event, read_event, read_header
from steelyard.balance.settings import CoreSettings
from steelyard.errors import UserError
from steelyard.records import Trajectory, Turn

_EVERY = 1000  # events between two reports of progress
_MOST_SECONDS = 1e12  # of a log; chosen, some thousands of years


class DecidedEvent(NamedTuple):
    """An event of a log, the commands that it led to, and why it does not count; None if it does."""

    event: Event
    commands: Sequence[Command]
    dropped: str | None = None


class DecidedLog:
    """A log, decided again. While it is iterated over, ``core`` is in the state after the event at hand, and
    ``before`` is called with each event before it is decided.

    It stops at the first event that is decided otherwise than in the log: from there on, the core's state would be
    another one than it was.
    """

    def __init__(
        self, rows: Iterator[Row], name: str = "log", before: Callable[[Event], object] = lambda _: None
    ) -> None:
        first = next(rows, None)
        if first is None:
            raise UserError(f"{name}: an empty log; a log begins with a header")
        self.name = name
        self.header = read_header(first[1], first[0])
        self.core = self.header.settings.core()
        self.before = before
        self._rows = rows
        self._inbox = Inbox()
        self._dropped: Counter[str] = Counter()

    def __iter__(self) -> Iterator[DecidedEvent]:
        different: str | None = None
        for (where, row), logged in _by_event(self._rows):
            if different is not None:
                raise _otherwise(different)
            decided: list[Command] = []
            envelope = read_event(row, where)
            if not abs(envelope.event.at) < _MOST_SECONDS:
                raise UserError(f"{where}: at is {envelope.event.at:g} s, which no run reaches")
            for each in self._decide(envelope):
                decided += each.commands
                yield each
            encoded = [encode(command, kind=True) for command in decided]
            different = None if encoded == logged else where
        if different is not None and encoded[: len(logged)] != logged:  # else the driver was killed while it wrote
            raise _otherwise(different)

    def _decide(self, envelope: Envelope) -> Iterator[DecidedEvent]:
        before = self._inbox.dropped.copy()
        events = self._inbox.take(envelope)
        dropped = next(iter(self._inbox.dropped - before), None)
        if dropped is not None and not events:
            yield DecidedEvent(envelope.event, (), dropped)
        for event in events:
            self.before(event)
            commands = self.core.apply(event)
            counted = commands and self.core.pool is None  # a pool may command something although it drops the event
            yield DecidedEvent(event, commands, None if counted else self._reason())

    def _reason(self) -> str | None:
        """Why the last event was dropped, if it was."""
        now = self.core.dropped
        new, self._dropped = now - self._dropped, now
        return next(iter(new), None)


def _otherwise(where: str) -> UserError:
    return UserError(
        f"{where}: decided otherwise than in the log; use the version that wrote it (`steelyard replay` says more)"
    )


def _by_event(rows: Iterator[Row]) -> Iterator[tuple[Row, list[dict[str, Any]]]]:
    """Each event with its commands."""
    event: Row | None = None
    commands: list[dict[str, Any]] = []
    for where, row in rows:
        if not is_event(row):
            commands.append(row)
            continue
        if event is not None:
            yield event, commands
        event, commands = (where, row), []
    if event is not None:
        yield event, commands


@dataclass(slots=True)
class LoggedSample:
    """A trajectory as far as a log has it."""

    name: str
    group: str
    prompt: str
    prompt_tokens: int
    version: int  # of the weights that it began with
    turns: list[Turn] = field(default_factory=list)
    ended: bool = False
    lost: bool = False  # aborted, and not by a command
    step: int | None = None  # that was trained on it
    truth: Trajectory | None = None  # the whole of it, for cores that are told
    called: float | None = None  # when its tool was, while it runs
    over: float | None = None  # when it ended or was aborted
    fresh: int = 0  # tokens of the turn under way, or of the one whose tool runs
    made: dict[int, int] = field(default_factory=dict)  # its tokens by version, if they are reported

    @property
    def generated(self) -> int:
        """Tokens of all turns that are over."""
        return sum(turn.generated for turn in self.turns)

    @property
    def whole(self) -> bool:
        """Whether all of it is known."""
        return self.ended or self.truth is not None

    def trajectory(self) -> Trajectory:
        """All of it, of at least one token each: engines need them."""
        if self.truth is not None:
            return self.truth
        turns = tuple(turn if turn.generated else replace(turn, generated=1) for turn in self.turns)
        return Trajectory(self.name, self.prompt, self.prompt, turns, max(1, self.prompt_tokens))


@dataclass
class RunHistory:
    """What a log tells of a run: its samples in the order of their beginning, and its training steps."""

    settings: CoreSettings
    samples: dict[str, LoggedSample] = field(default_factory=dict)
    groups: dict[str, list[LoggedSample]] = field(default_factory=dict)  # those that were started, by name
    others: int = 0  # trajectories of no group that was started; they are not trained on
    began: float = 0.0  # when engines had the first weights
    trained: list[float] = field(default_factory=list)  # when each step's update was done
    end: float = 0.0  # second of the last event

    @property
    def seconds(self) -> float:
        """From the first weights to the last update."""
        return self.trained[-1] - self.began

    @property
    def tokens(self) -> int:
        """Generated tokens of the samples that were trained on."""
        done = len(self.trained)
        return sum(each.generated for each in self.samples.values() if each.step is not None and each.step < done)

    def in_tool(self, sample: LoggedSample) -> float | None:
        """Seconds for which the tool of an unfinished sample had been running, if one was."""
        if sample.called is None:
            return None
        return (self.end if sample.over is None else sample.over) - sample.called

    def draws(self, group: str) -> list[LoggedSample]:
        """The samples of a group in order. Those that their client has lost come last: others took their place."""
        return sorted(self.groups.get(group, ()), key=lambda each: each.lost)


def run_history(log: DecidedLog, progress: Callable[[int], object] = lambda events: None) -> RunHistory:
    """Read a log to its end."""
    history = RunHistory(log.header.settings)
    commanded: set[str] = set()  # to be aborted
    for count, (event, commands, dropped) in enumerate(log):
        if count % _EVERY == 0:
            progress(count)
        if dropped is None:
            history.end = max(history.end, event.at)
            _note(history, event, commanded)
        for command in commands:
            match command:
                case Start():
                    history.groups |= {name: [] for name in command.groups if name not in history.groups}
                case Abort():
                    commanded.update(command.trajectories)
                case TrainOn():
                    for name in command.trajectories:
                        history.samples[name].step = command.step
    for sample in history.samples.values():
        if not _possible(sample):
            raise UserError(f"{log.name}: trajectory {sample.name} has lengths or latencies that cannot be")
    return history


def _possible(sample: LoggedSample) -> bool:
    """Whether an engine could run it. A log is replayed whatever its numbers are."""
    turns, least = list(sample.turns), [sample.prompt_tokens, sample.fresh]
    if sample.truth is not None:
        turns += sample.truth.turns
        least += [len(sample.truth.turns) - 1, sample.truth.prompt_tokens - 1]
    least += [min(turn.generated, turn.returned) for turn in turns]
    return min(least) >= 0 and all(0 <= (turn.latency or 0.0) < inf for turn in turns)


def _note(history: RunHistory, event: Event, commanded: set[str]) -> None:
    match event:
        case Begun():
            _begin(history, event)
        case WeightsPublished() if event.version == 0:
            history.began = event.at
        case StepTrained():
            history.trained.append(event.at)
        case Called() | Returned() | Ended() | Aborted() | Paused() | Generated():
            sample = history.samples.get(event.trajectory)
            if sample is not None:
                _follow(sample, event, commanded)


def _begin(history: RunHistory, event: Begun) -> None:
    """A sample begins, or goes on after some turns."""
    if event.group not in history.groups:
        history.others += 1
        return
    sample = history.samples.get(event.trajectory)
    if sample is None:
        sample = LoggedSample(event.trajectory, event.group, event.prompt, event.prompt_tokens, event.version)
        history.samples[sample.name] = sample
        history.groups[event.group].append(sample)
    sample.turns, sample.fresh, sample.called, sample.lost = list(event.turns), event.fresh, None, False
    sample.truth, sample.ended, sample.over, sample.made = event.truth, False, None, {}


def _follow(
    sample: LoggedSample, event: Called | Returned | Ended | Aborted | Paused | Generated, commanded: set[str]
) -> None:
    match event:
        case Called():
            sample.called, sample.fresh = event.at, event.generated
        case Returned():
            waited = event.at - (event.at if sample.called is None else sample.called)
            turn = event.turn
            if turn.latency is None and waited > 0:
                turn = replace(turn, latency=waited)
            sample.turns.append(turn)
            sample.called, sample.fresh = None, 0
        case Ended():
            sample.turns.append(event.turn)
            sample.ended, sample.over = True, event.at
        case Aborted():
            sample.over, sample.lost = event.at, sample.name not in commanded
        case Paused():
            sample.fresh = max(0, event.generated - sample.generated)
        case Generated():
            sample.made[event.version] = event.tokens
            if sample.called is None:
                sample.fresh = max(sample.fresh, sum(sample.made.values()) - sample.generated)
