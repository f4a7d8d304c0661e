"""A cluster made of dice: carries commands out in any order that a real one might, and reports what happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from steelyard.balance.commands import Abort, Cap, Pause, Place, Reconfigure, Reopen, Repack, Resume, Start, TrainOn
from steelyard.balance.core import Core
from steelyard.balance.events import (
    Aborted,
    Begun,
    Called,
    Ended,
    Generated,
    Moved,
    PartTrained,
    Paused,
    ReplicaDown,
    ReplicaUp,
    Resumed,
    Returned,
    Sent,
    StepTrained,
    TrainerReady,
    WeightsPublished,
)
from steelyard.balance.inbox import Envelope
from steelyard.balance.kinds import Command, Event
from steelyard.balance.rounds import RoundSettings
from steelyard.balance.route import BucketSpeed
from steelyard.balance.settings import CoreSettings, TailSettings
from steelyard.balance.tail import Merge, WideReplicas
from steelyard.records import Turn

SPEEDS = ((1, BucketSpeed(((1, 0.02), (8, 0.03)), 1e-4, 1e-6)), (2, BucketSpeed(((1, 0.01), (8, 0.02)), 5e-5, 1e-6)))


WIDE = WideReplicas(2, (Merge(3, (0, 1)),), seats=4, tokens=100_000, seconds=0.5, move=1e-6, longest=3_000)
"""The first two replicas can be merged into one."""


def settings(tail: TailSettings | None = None, router: str = "cost-aware", **more: Any) -> CoreSettings:
    """A small core: steps of three groups of two samples."""
    waits = tail is None or type(tail).__name__ in ("Divided", "Repacking", "Reconfiguring")
    rounds = RoundSettings(**({"steps": 4, "groups": 3, "size": 2, "staleness": 1, "waits": waits} | more))
    return CoreSettings(router, "suffix", 1, SPEEDS, rounds, tail)


@dataclass
class Sample:
    """A trajectory as the cluster has it."""

    name: str
    turns: list[Turn]
    epoch: int
    doing: str = "waiting"  # moving, generating, tool, paused
    replica: int = -1
    done: int = 0  # turns
    tokens: int = 0  # of turns that are over


@dataclass
class Cluster:
    """Two or three replicas, a training job, and dice. ``log`` has every envelope with the commands that it led to."""

    core: Core
    dice: Random
    log: list[tuple[Envelope, list[Command]]] = field(default_factory=list)
    now: float = 0.0
    version: int = 0
    samples: dict[str, Sample] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    trained: list[str] = field(default_factory=list)
    up: dict[int, int] = field(default_factory=dict)  # epochs of replicas that are up
    epochs: dict[int, int] = field(default_factory=dict)
    closed: list[int] = field(default_factory=list)
    wide: list[int] = field(default_factory=list)  # replicas that others were merged into
    starting: list[int] = field(default_factory=list)  # those among them that are not up yet
    drawn: dict[str, int] = field(default_factory=dict)  # samples by group
    begun: int = 0
    training: TrainOn | None = None
    cap: int | None = None
    losses: bool = True  # whether replicas go down
    made: CoreSettings | None = None  # what the core was made of
    _queue: list[Event] = field(default_factory=list)
    _busy: bool = False

    def tell(self, event: Event) -> None:
        """Report in order, each after all commands of the one before."""
        self._queue.append(event)
        if self._busy:
            return
        self._busy = True
        while self._queue:
            envelope = Envelope(0, len(self.log), self._queue.pop(0))
            commands = self.core.decide(envelope)
            self.log.append((envelope, commands))
            for command in commands:
                self._do(command)
        self._busy = False

    def begin(self) -> None:
        """The first weights are there."""
        for number in range(2):
            self._come(number)
        self.tell(WeightsPublished(self.now, 0))
        self.tell(TrainerReady(self.now, 0))

    def happen(self) -> bool:
        """Something that could happen now; False if nothing can."""
        self.now += self.dice.random()
        active = [name for name, each in self.samples.items() if each.doing not in ("waiting", "paused")]
        actions: list[Callable[[], None]] = [partial(self._advance, name) for name in active]
        if self.training is not None:
            actions.append(self._train)
        actions += [partial(self._widen, number) for number in self.starting]
        if not self.up and not self.closed:
            actions.append(self._recover)
        elif self.dice.random() < 0.05:
            actions = [self._shake]
        if not actions:
            return False
        self.dice.choice(actions)()
        return True

    # What happens

    def _advance(self, name: str) -> None:
        each = self.samples[name]
        turn = each.turns[each.done]
        if each.doing == "moving":
            each.doing = "generating"
            self.tell(Moved(self.now, name, each.epoch))
        elif each.doing == "tool":
            each.doing, each.done = "waiting", each.done + 1
            self.tell(Returned(self.now, name, each.epoch, turn))
        elif self.cap is not None and self.dice.random() < 0.3:
            each.doing = "paused"
            self.tell(Paused(self.now, name, each.epoch, each.tokens))
        else:
            each.tokens += turn.generated
            if self.core.rounds.counts_tokens:
                self.tell(Generated(self.now, name, self.version, each.tokens))
            if name in self.samples:
                self._over(each, turn)

    def _over(self, each: Sample, turn: Turn) -> None:
        if each.done + 1 < len(each.turns):
            each.doing = "tool"
            self.tell(Called(self.now, each.name, each.epoch, turn.generated))
        else:
            del self.samples[each.name]
            self.ended.add(each.name)
            self.tell(Ended(self.now, each.name, each.epoch, turn))

    def _train(self) -> None:
        part, self.training = self.training, None
        assert part is not None
        if not part.last:
            self.tell(PartTrained(self.now, part.step, part.part))
            return
        self.version = part.step + 1
        self.tell(StepTrained(self.now, part.step))
        self.tell(WeightsPublished(self.now, self.version))
        self.tell(TrainerReady(self.now, self.version))

    def _recover(self) -> None:
        self._come(self.dice.randrange(3))

    def _shake(self) -> None:
        """A replica comes or goes."""
        number = self.dice.randrange(3)
        if number not in self.up and number not in self.closed:
            self._come(number)
        elif self.losses and number in self.up:
            self._go(number)

    def _widen(self, number: int) -> None:
        self.starting.remove(number)
        self._come(number)

    def _come(self, number: int) -> None:
        epoch = self.up[number] = self.epochs[number] = self.epochs.get(number, -1) + 1
        self.tell(ReplicaUp(self.now, number, 1 + number % 2, 4, 100_000, epoch))

    def _go(self, number: int) -> None:
        for each in self.samples.values():
            if each.replica == number and each.doing in ("moving", "generating"):
                each.doing, each.replica = "waiting", -1
        self.tell(ReplicaDown(self.now, number, self.up.pop(number)))

    # What is commanded

    def _do(self, command: Command) -> None:
        match command:
            case Place():
                self._place(command)
            case Start():
                self._start(command)
            case TrainOn():
                assert set(command.trajectories) <= self.ended, "trained on what has not ended"
                self.ended -= set(command.trajectories)
                self.trained += command.trajectories
                self.training = command
            case Cap():
                self.cap = command.tokens
            case Abort():
                self._abort(command)
            case Pause():
                for each in [self.samples[name] for name in command.trajectories if name in self.samples]:
                    if each.doing in ("waiting", "moving", "generating"):
                        each.doing = "paused"
                        self.tell(Paused(self.now, each.name, each.epoch, each.tokens))
            case Resume():
                self._resume(command.trajectory)
            case Repack():
                self._repack(command)
            case Reconfigure():
                self._reconfigure(command)
            case Reopen():
                for number in self.wide:
                    if number in self.up:
                        self._go(number)
                self.wide, self.starting = [], []
                while self.closed:
                    self._come(self.closed.pop())

    def _place(self, command: Place) -> None:
        each = self.samples.get(command.trajectory)
        if each is None:
            return
        before, each.epoch = each.epoch, command.epoch
        if each.doing == "paused":  # meanwhile; a report about an earlier placement does not count
            if before != command.epoch:
                self.tell(Paused(self.now, each.name, each.epoch, each.tokens))
            return
        assert command.replica in self.up, "placed where nothing is"
        each.replica = command.replica
        moves = command.source not in (None, command.replica) and command.cache == "keep"
        each.doing = "moving" if moves else "generating"

    def _start(self, command: Start) -> None:
        for group in command.groups:
            for _ in range(command.samples):
                number = self.drawn[group] = self.drawn.get(group, -1) + 1
                count = self.dice.choice((1, 1, 2, 3))
                turns = [
                    Turn(self.dice.randrange(1, 900), "shell", "ok", self.dice.randrange(300), 0.1)
                    for _ in range(count)
                ]
                each = self.samples[f"{group}/{number}"] = Sample(f"{group}/{number}", turns, 0)
                self.begun += 1
                self.tell(Begun(self.now, each.name, f"task {group}", 50, self.version, epoch=0, group=group))

    def _abort(self, command: Abort) -> None:
        for name in command.trajectories:
            self.ended.discard(name)
            each = self.samples.pop(name, None)
            if each is not None:
                self.tell(Aborted(self.now, name, each.epoch))

    def _resume(self, name: str) -> None:
        each = self.samples.get(name)
        if each is not None and each.doing == "paused":
            each.doing = "waiting"
            each.epoch += 1
            self.tell(Resumed(self.now, name, each.epoch))

    def _repack(self, command: Repack) -> None:
        for move in command.moves:
            each = self.samples[move.trajectory]
            each.epoch += 1
            if each.doing in ("moving", "generating"):
                each.doing, each.replica = "waiting", -1
            self.tell(Sent(self.now, each.name, each.epoch, move.target))
        for number in command.freed:
            if number in self.up:
                epoch = self.up.pop(number)
                self.closed.append(number)
                self.tell(ReplicaDown(self.now, number, epoch))

    def _reconfigure(self, command: Reconfigure) -> None:
        for merge in command.merges:
            assert merge.number not in self.up, "merged twice"
            self.wide.append(merge.number)
            self.starting.append(merge.number)
            for number in merge.of:
                assert number in self.up, "merged while it was down"
                self.closed.append(number)
                self._go(number)


def check_loads(core: Core) -> None:
    """Loads are sums over trajectories, each of which is in one place."""
    rollouts = core.placement.rollouts
    waiting = {each.name for each in rollouts.waiting}
    assert waiting == {name for name, each in rollouts.running.items() if each.doing == "waiting"}
    for number, replica in rollouts.replicas.items():
        placed = [each for each in rollouts.running.values() if each.replica == number]
        coming = [each for each in rollouts.running.values() if each.target == number]
        assert set(replica.placed) == {each.name for each in placed}
        assert set(replica.coming) == {each.name for each in coming}
        busy = [each for each in placed if each.doing == "generating"] + coming
        assert replica.busy == len(busy) and replica.active == sum(each.context for each in busy)
        kept = [each for each in placed if each.cache == "keep"] + coming
        assert replica.tokens == sum(each.context for each in kept)
