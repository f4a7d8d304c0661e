"""Which samples begin, are trained on or given up, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from steelyard.balance.commands import (
    Abort,
    Cap,
    Pause,
    Reconfigure,
    Reopen,
    Repack,
    Resume,
    Start,
    TrainOn,
)
from steelyard.balance.core import Core
from steelyard.balance.events import (
    Aborted,
    Begun,
    Ended,
    PartTrained,
    StepTrained,
    TrainerReady,
    WeightsPublished,
)
from steelyard.balance.kinds import Command, Event
from steelyard.balance.rounds import TailRounds
from steelyard.balance.settings import CoreSettings
from steelyard.balance.tail import Opening, Round, TailEvent, TailPolicy
from steelyard.balance.tail.commands import TailCommand
from steelyard.live.explaining.sentence import Explained, counted, listed


class WatchedTail:
    """A tail policy that is watched: which round is open, and which groups a round defers at its end."""

    def __init__(self, policy: TailPolicy) -> None:
        self._policy = policy
        self._opening = Opening(0, 0)
        self.step = 0  # of the round that was opened last
        self.deferred: set[str] = set()  # groups, while an event is decided

    def open(self, round_: Round) -> Opening:
        self.step = round_.step
        self._opening = self._policy.open(round_)
        return self._opening

    def over(self, round_: Round) -> bool:
        over = self._policy.over(round_)
        if over and self._opening.leftovers == "defer":
            self.deferred |= {name for name, group in round_.groups.items() if not group.complete}
        return over

    def react(self, round_: Round, event: TailEvent) -> list[TailCommand]:
        return self._policy.react(round_, event)


@dataclass
class _Group:
    """Samples of a prompt that are under way or have ended, with the weights that they began with."""

    step: int  # that it was started for
    versions: dict[str, int] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    trained: bool = False


class SampleSentences:
    """Sentences about samples and training steps. Makes the core's tail policy a watched one."""

    def __init__(self, core: Core, settings: CoreSettings) -> None:
        self._core, self._rounds = core, settings.rounds
        self._groups: dict[str, _Group] = {}
        self._group_of: dict[str, str] = {}
        self._given_up: set[str] = set()  # trajectories that were commanded to stop
        self._tail: WatchedTail | None = None
        tail = settings.tail_policy
        if tail is not None:
            self._tail = WatchedTail(tail)
            core.rounds = TailRounds(settings.rounds, self._tail, core.placement.rollouts)

    def step_of(self, trajectory: str) -> int | None:
        """The step that a trajectory's group was started for."""
        group = self._groups.get(self._group_of.get(trajectory, ""))
        return None if group is None else group.step

    def before(self) -> None:
        """An event is about to be decided."""
        if self._tail is not None:
            self._tail.deferred.clear()

    def event(self, event: Event, commands: Sequence[Command]) -> Iterator[Explained]:
        """What has happened, before what follows from it."""
        match event:
            case WeightsPublished():
                yield Explained(event.at, "weights", "weights", f"engines have weights {event.version}", event.version)
            case TrainerReady() if not any(isinstance(each, TrainOn) for each in commands):
                what = f"the training job waits for the samples of step {event.step}"
                yield _of_step(event.at, "train", event.step, what)
            case PartTrained():
                what = f"part {event.part} of step {event.step} is trained, and the next is wanted"
                yield _of_step(event.at, "train", event.step, what)
            case StepTrained():
                what = f"step {event.step} is trained: weights {event.step + 1} go to the engines"
                yield _of_step(event.at, "train", event.step, what)
            case Begun() if event.group in self._groups:
                self._group_of[event.trajectory] = event.group
                self._groups[event.group].versions[event.trajectory] = event.version
            case Ended() if event.trajectory in self._group_of:
                self._groups[self._group_of[event.trajectory]].ended.add(event.trajectory)
            case Aborted() if event.trajectory not in self._given_up:
                yield self._lost(event)

    def command(self, command: Command, event: Event) -> Iterator[Explained]:
        """What was decided."""
        at = event.at
        match command:
            case Start():
                yield self._start(command, event)
            case TrainOn():
                yield self._train(command, at)
            case Abort():
                yield from self._abort(command, event)
            case Pause():
                names, step = command.trajectories, self._open
                what = f"step {step} has its samples: {counted(len(names), 'other')} pause until the next round"
                yield Explained(at, "pause", f"step {step}", what, step, frozenset(names))
            case Resume():
                left = "" if command.left is None else f"; its group predicts {command.left:,} more tokens"
                name, what = command.trajectory, f"may go on in the round of step {self._open}{left}"
                yield Explained(at, "resume", name, f"trajectory {name} {what}", self.step_of(name))
            case Cap():
                cap = "without a cap" if command.tokens is None else f"up to {command.tokens:,} tokens at a time"
                yield Explained(at, "cap", "trajectories", f"from now on trajectories generate {cap}")
            case Repack():
                yield self._repack(command, at)
            case Reconfigure():
                yield self._reconfigure(command, at)
            case Reopen():
                yield Explained(at, "repack", "replicas", "replicas that were freed take trajectories again")

    def _start(self, command: Start, event: Event) -> Explained:
        groups, step = command.groups, command.step
        again = [name for name in groups if name in self._groups]
        for name in groups:
            self._groups.setdefault(name, _Group(step)).step = step
        if again:
            lost = isinstance(event, Aborted)
            why = "in place of one that was lost" if lost else "which was deferred to a round that waits for it"
            what = f"{counted(command.samples, 'sample')} of group {again[0]} begin for step {step}, {why}"
            return _of_step(event.at, "start", step, what)
        if isinstance(event, WeightsPublished):
            why = f"engines have weights {event.version} and staleness may be {self._rounds.staleness}"
        else:
            why = f"step {self._open - 1} has its samples"
        first = f", the first {command.first} of each before all others" if command.first else ""
        what = (
            f"samples of step {step} begin ({counted(len(groups), 'group')} of {command.samples}{first}), since {why}"
        )
        return _of_step(event.at, "start", step, what)

    def _train(self, command: TrainOn, at: float) -> Explained:
        names, step = command.trajectories, command.step
        groups = dict.fromkeys(self._group_of[name] for name in names)
        began = Counter(self._groups[self._group_of[name]].versions[name] for name in names)
        part = "" if command.last and not command.part else f", part {command.part}"
        weights = " and ".join(f"{count:,} of weights {version}" for version, count in sorted(began.items()))
        what = (
            f"step {step} trains on {counted(len(groups), 'group')} ({counted(len(names), 'sample')}: {weights}){part}"
        )
        for name in names:
            self._groups[self._group_of[name]].trained = True
            self._leave(name)
        return Explained(at, "train", f"step {step}", what, step, frozenset(names))

    def _abort(self, command: Abort, event: Event) -> Iterator[Explained]:
        for name in command.trajectories:
            self._given_up.add(name)
            reason, step = self._why(name, event), self.step_of(name)
            yield Explained(event.at, "abort", name, f"trajectory {name} is given up: {reason}", step)
        for name in command.trajectories:
            self._leave(name)

    def _why(self, name: str, event: Event) -> str:
        """Why a sample is given up."""
        group_name = self._group_of.get(name)
        if group_name is None:
            return "its group was not started"
        group, size = self._groups[group_name], self._rounds.size
        if self._tail is not None and group_name in self._tail.deferred:
            return f"enough other groups are complete, and group {group_name} begins again in a later round"
        if group.trained or (name not in group.ended and len(group.ended) >= size):
            return f"group {group_name} has its {counted(size, 'sample')}"
        due = max(self._core.published, self._open)
        oldest = min(group.versions.values(), default=due)
        if due - oldest > self._rounds.staleness:
            behind = f"{counted(due - oldest, 'version')} behind in step {due}"
            return f"its group began with weights {oldest}, {behind}; at most {self._rounds.staleness} is allowed"
        return f"group {group_name} was given up before it began"

    def _lost(self, event: Aborted) -> Explained:
        name = event.trajectory
        step = self.step_of(name)
        self._leave(name)
        return Explained(event.at, "abort", name, f"trajectory {name} was lost: its client or driver gave it up", step)

    def _repack(self, command: Repack, at: float) -> Explained:
        moves = command.moves
        left, freed = len(self._core.placement.rollouts.running), listed(sorted(command.freed))
        few = f"{counted(left, 'trajectory')} left, on fewer replicas after {counted(len(moves), 'move')}"
        what = f"{few}: {freed} free for training"
        return Explained(at, "repack", "replicas", what, about=frozenset(move.trajectory for move in moves))

    def _reconfigure(self, command: Reconfigure, at: float) -> Explained:
        left = counted(len(self._core.placement.rollouts.running), "trajectory")
        numbers = sorted(number for merge in command.merges for number in merge.of)
        what = f"{left} left, on wider replicas: {listed(numbers)} are merged into {len(command.merges)}"
        return Explained(at, "reconfigure", "replicas", what)

    @property
    def _open(self) -> int:
        """The step of the round that was opened last, under a tail policy."""
        return 0 if self._tail is None else self._tail.step

    def _leave(self, name: str) -> None:
        """A sample is trained on, or gone."""
        group = self._groups.get(self._group_of.pop(name, ""))
        if group is not None:
            group.versions.pop(name, None)
            group.ended.discard(name)


def _of_step(at: float, kind: str, step: int, sentence: str) -> Explained:
    return Explained(at, kind, f"step {step}", sentence, step)
