"""Rounds without a tail policy: who begins, and who is trained on, whatever is late or lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.balance.admission import Late
from steelyard.balance.commands import Abort, RoundCommand, Start, TrainOn
from steelyard.balance.events import Aborted, Begun, Ended, PartTrained, TrainerReady, WeightsPublished
from steelyard.balance.rounds import BatchRounds, RoundSettings
from steelyard.balance.rounds.protocol import RoundInput
from steelyard.records import Turn


@dataclass
class World:
    """Rounds, the samples that they have started, and a training job, which do things in any order."""

    made: RoundSettings
    rounds: BatchRounds = field(init=False)
    version: int = 0
    waiting: dict[str, str] = field(default_factory=dict)  # samples that have not begun: their groups
    running: dict[str, str] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)  # versions
    ended: dict[str, str] = field(default_factory=dict)  # and not trained on
    trained: list[tuple[int, str]] = field(default_factory=list)  # steps and samples
    dropped: list[str] = field(default_factory=list)
    coming: list[RoundInput] = field(default_factory=list)  # of the training job
    drawn: int = 0

    def __post_init__(self) -> None:
        self.rounds = BatchRounds(self.made)
        self.tell(WeightsPublished(0.0, 0))
        self.tell(TrainerReady(0.0, 0))

    @property
    def batch(self) -> int:
        return self.made.groups * self.made.size

    def tell(self, event: RoundInput) -> None:
        for command in self.rounds.decide(event):
            self._do(command)
        gone = {name.split("/")[0] for name in self.dropped}  # its samples that have not begun are aborted when they do
        under_way = sum(group not in gone for group in self.waiting.values()) + len(self.running)
        done = len(self.trained) + len(self.ended)
        most = inf if self.made.concurrency is None else self.made.concurrency
        room = min(most - under_way, (self.made.staleness + self.version + 1) * self.batch - done - under_way)
        assert room >= 0, "more began than may"
        assert room < self.made.size or under_way + done == self.made.steps * self.batch, "fewer began than may"

    def begin(self, name: str) -> None:
        self.running[name] = self.waiting.pop(name)
        self.begun[name] = self.version
        self.tell(Begun(0.0, name, "prompt", 1, self.version, group=self.running[name]))

    def end(self, name: str) -> None:
        self.ended[name] = self.running.pop(name)
        self.tell(Ended(0.0, name, 0, Turn(1)))

    def lose(self, name: str) -> None:
        del self.running[name]
        self.tell(Aborted(0.0, name, 0))

    def go_on(self) -> None:
        """The training job has finished a part, or the weights of a step are there."""
        event = self.coming.pop(0)
        if isinstance(event, WeightsPublished):
            self.version = event.version
        self.tell(event)

    def _do(self, command: RoundCommand) -> None:
        match command:
            case Start():
                for group in command.groups:
                    for _ in range(command.samples):
                        self.waiting[f"{group}/{self.drawn}"] = group
                        self.drawn += 1
            case Abort():
                for name in command.trajectories:
                    gone = self.running if name in self.running else self.ended
                    gone.pop(name)
                    self.dropped.append(name)
            case TrainOn():
                for name in command.trajectories:
                    del self.ended[name]
                self.trained += [(command.step, name) for name in command.trajectories]
                step = command.step
                if not command.last:
                    self.coming.append(PartTrained(0.0, step, command.part))
                elif step + 1 < self.made.steps:
                    self.coming += [WeightsPublished(0.0, step + 1), TrainerReady(0.0, step + 1)]


made = st.builds(
    RoundSettings,
    steps=st.integers(1, 5),
    groups=st.integers(1, 9),
    size=st.just(2),
    staleness=st.integers(0, 3),
    streaming=st.booleans(),
    concurrency=st.one_of(st.none(), st.integers(2, 20)),
    late=st.sampled_from(get_args(Late)),
)


@settings(max_examples=500)
@given(made, st.integers(0, 10), st.randoms(use_true_random=False))
def test_every_step_gets_its_groups_and_none_too_old_whatever_is_late_or_lost(
    made: RoundSettings, losses: int, chooser: Random
) -> None:
    world = World(made)
    patience = 4000
    while world.coming or world.waiting or world.running:
        actions = [name for name, some in (("go on", world.coming), ("begin", world.waiting)) if some]
        actions += ["end", *(["lose"] if losses else [])] if world.running else []
        match chooser.choice(actions):
            case "go on":
                world.go_on()
            case "begin":
                world.begin(chooser.choice(list(world.waiting)))
            case "end":
                world.end(chooser.choice(list(world.running)))
            case "lose":
                losses -= 1
                world.lose(chooser.choice(list(world.running)))
        patience -= 1
        assert patience, "it never ends"
    steps = [step for step, _ in world.trained]
    assert [steps.count(step) for step in range(made.steps)] == [world.batch] * made.steps
    names = [name for _, name in world.trained]
    assert len(set(names)) == len(names) and not set(names) & set(world.dropped)
    if made.late != "train":
        assert all(world.begun[name] >= step - made.staleness for step, name in world.trained)
    if made.late != "drop":
        assert not world.dropped


def ages(late: Late, concurrency: int | None, step_takes: int = 4) -> list[int]:
    """Of the samples that 12 steps train on. A sample takes 6 seconds, every fifth one 60, and a training step
    ``step_takes``."""
    world = World(RoundSettings(12, 4, 1, 2, concurrency=concurrency, late=late))
    due: dict[str, int] = {}
    now, free = 0, 0
    while len(world.trained) < 48:
        for name in list(world.waiting):
            due[name] = now + (60 if int(world.waiting[name]) % 5 == 0 else 6)
            world.begin(name)
        for name in [name for name in world.running if due[name] <= now]:
            world.end(name)
        if world.coming and now >= free:
            while world.coming:
                world.go_on()
            free = now + step_takes
        now += 1
        assert now < 10_000, "stuck"
    return [step - world.begun[name] for step, name in world.trained]


def test_who_takes_long_is_waited_for_dropped_or_trained_on_too_late() -> None:
    waited, dropped, overtaken = (ages(late, None) for late in get_args(Late))
    assert max(waited) == max(dropped) == 2 < max(overtaken)
    assert len(set(map(tuple, (waited, dropped, overtaken)))) == 3
    assert sum(dropped) < sum(waited), "the slow are the old"


def test_of_those_who_run_ahead_others_are_fresher_if_few_run_at_once() -> None:
    many, few = ages("train", None), ages("train", 4)
    assert sum(few) < 0.7 * sum(many)


@pytest.mark.parametrize("late", get_args(Late))
def test_a_batch_is_made_of_those_that_ended_first(late: Late) -> None:
    """Group 0 began first, and is not in the first batch; neither is group 5, which began with it."""
    world = World(RoundSettings(4, 2, 1, 2, late=late))
    for name in list(world.waiting):
        world.begin(name)
    for group in (5, 3):
        world.end(f"{group}/{group}")
    assert world.trained == [(0, "5/5"), (0, "3/3")]


def test_a_step_leaves_room_for_groups_that_later_steps_could_not_take() -> None:
    """Four groups begin with version 0 and a bound of 1. Two are trained on; the other two are slow, and the next step
    must not take two that began with version 1 instead."""
    world = World(RoundSettings(4, 2, 1, 1))
    for _ in range(4):
        world.begin(next(iter(world.waiting)))
    world.end("0/0")
    world.end("1/1")
    while world.coming:
        world.go_on()
    for name in list(world.waiting):
        world.begin(name)
        world.end(name)
    assert [step for step, _ in world.trained] == [0, 0]
    world.end("3/3")
    world.end("2/2")
    assert world.trained[2:] == [(1, "3/3"), (1, "2/2")]


def test_a_sample_beyond_those_of_its_group_is_not_begun() -> None:
    rounds = BatchRounds(RoundSettings(1, 1, 1))
    rounds.decide(WeightsPublished(0.0, 0))
    assert rounds.decide(Begun(0.0, "a", "p", 1, group="0")) == []
    assert rounds.decide(Begun(0.0, "b", "p", 1, group="0")) == [Abort(("b",))]
    assert rounds.decide(Begun(0.0, "c", "p", 1, group="7")) == [Abort(("c",))]
