"""Tail policies. Each answers three questions: how to open a round, when it is over, and what to do in between."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal, Protocol

from steelyard.balance.commands import Resume
from steelyard.balance.events import Paused
from steelyard.balance.tail.commands import TailCommand
from steelyard.balance.tail.events import TailEvent
from steelyard.balance.tail.groups import Round

Leftovers = Literal["carry", "defer"]


@dataclass(frozen=True, slots=True)
class Opening:
    """How a round begins, and what happens to groups that are not complete when it is over.

    Carried groups keep their ended samples and their tokens, and come first in the next round. Deferred groups begin
    again when a policy says ``again``.
    """

    fresh: int  # new prompts
    samples: int  # of each
    first: int = 0  # samples of each that are served before all others
    again: int = 0  # deferred prompts to begin now
    cap: int | None = None
    leftovers: Leftovers = "carry"


class TailPolicy(Protocol):
    """Asked at every event of a round, after the event was applied. ``Tail`` makes sure that only whole groups are
    trained on, and each sample once."""

    def open(self, round_: Round) -> Opening:
        """A round begins. Groups that were carried over are already in it."""

    def over(self, round_: Round) -> bool:
        """Whether to train on what is complete now, and leave the rest."""

    def react(self, round_: Round, event: TailEvent) -> list[TailCommand]:
        """What else to do now: which samples to resume or to move."""


@dataclass(frozen=True)
class Plain:
    """No policy: start the wanted groups and wait for the last of them."""

    def open(self, round_: Round) -> Opening:
        return Opening(max(0, round_.wanted - len(round_.groups)), round_.size)

    def over(self, round_: Round) -> bool:
        return round_.ready >= round_.wanted

    def react(self, round_: Round, event: TailEvent) -> list[TailCommand]:
        return []


@dataclass(frozen=True)
class OverSampling(Plain):
    """APRIL's: run more groups than wanted, stop when enough are complete, go on with the others next time."""

    factor: float = 2.0

    def open(self, round_: Round) -> Opening:
        return Opening(max(0, ceil(self.factor * round_.wanted) - len(round_.groups)), round_.size)


@dataclass(frozen=True)
class TailBatching(Plain):
    """RollPacker's: short rounds run more prompts, and more samples of each, than they need. Prompts that are not
    complete in time are deferred until they fill a long round of their own, which waits for the last of them."""

    groups: float = 1.25
    samples: float = 1.25

    def open(self, round_: Round) -> Opening:
        there = len(round_.groups)
        if len(round_.deferred) + there >= round_.wanted:
            return Opening(0, round_.size, again=round_.wanted - min(there, round_.wanted), leftovers="defer")
        fresh = max(0, ceil(self.groups * round_.wanted) - there)
        return Opening(fresh, ceil(self.samples * round_.size), leftovers="defer")


@dataclass(frozen=True)
class PartialRollout(Plain):
    """Kimi's: a trajectory generates up to ``budget`` tokens a round; those that have not ended go on in the next.

    A round trains on the complete groups, which may be fewer than wanted. If none is complete, all go on.
    """

    budget: int

    def open(self, round_: Round) -> Opening:
        return Opening(max(0, round_.wanted - len(round_.groups)), round_.size, cap=self.budget)

    def over(self, round_: Round) -> bool:
        return round_.idle and bool(round_.complete)

    def react(self, round_: Round, event: TailEvent) -> list[TailCommand]:
        if not round_.idle or round_.complete:
            return []
        return [Resume(name) for group in round_.groups.values() for name in group.held]


@dataclass(frozen=True)
class Divided(Plain):
    """Seer's: trajectories run in chunks and queue again after each, so that load evens out. The first sample of a
    group is served before all others, and its length predicts the rest. The longest go first.

    A group without an ended sample may be as long as any, and so may a sample that is longer than the ended ones.
    """

    chunk: int
    longest: int = 1 << 20  # tokens; more than any trajectory has

    def open(self, round_: Round) -> Opening:
        plain = super().open(round_)
        return Opening(plain.fresh, plain.samples, first=1, cap=self.chunk)

    def react(self, round_: Round, event: TailEvent) -> list[TailCommand]:
        group = round_.homes.get(event.trajectory) if isinstance(event, Paused) else None
        if not isinstance(event, Paused) or group is None or event.trajectory not in group.held:
            return []
        if not group.done and event.trajectory == group.probe:  # shortest first among first samples
            return [Resume(event.trajectory, event.generated - 2 * self.longest)]
        left = group.longest - event.generated
        return [Resume(event.trajectory, -left, left) if left > 0 else Resume(event.trajectory, -self.longest)]
