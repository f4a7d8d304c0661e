"""Ways to deal with the last few trajectories of a round, each by three answers: how to open a round, when it is over,
and what to do meanwhile."""

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
    """How a round begins, and what becomes of groups that are not complete when it is over.

    Carried ones keep what they have, ended samples and tokens of others, and come first in the next round; deferred
    ones begin anew when a policy says ``again``.
    """

    fresh: int  # prompts not asked for before
    samples: int  # of each
    first: int = 0  # of these, served before all others
    again: int = 0  # deferred prompts to begin now
    cap: int | None = None
    leftovers: Leftovers = "carry"


class TailPolicy(Protocol):
    """Asked at every event of a round, when the round knows of it. Whole groups, and each sample once, are not its
    business: see ``Tail``."""

    def open(self, round_: Round) -> Opening:
        """A round begins, with what was carried over already in it."""

    def over(self, round_: Round) -> bool:
        """Whether to train on what is complete now, and leave the rest."""

    def react(self, round_: Round, event: TailEvent) -> list[TailCommand]:
        """What else to do now: whom to resume, whom to move."""


@dataclass(frozen=True)
class Plain:
    """No policy: start what is wanted and wait for the last of it."""

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
    """RollPacker's: short rounds race more prompts, and more samples of each, than they need; prompts that lose are
    deferred until they fill a long round of their own, which waits for the last of them."""

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
    """Kimi's: a trajectory generates so many tokens a round; those that are not done by then go on in the next.

    A round trains on the groups that are complete, which may be fewer than wanted. Where none is, all go on.
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
    """Seer's: trajectories run in chunks and queue again after each, so that load evens out; the first sample of a
    group is served before all others, and what it took tells how long the rest will take. The longest go first.

    A group of which none has ended may be as long as any, and so may a sample that has outgrown those that have.
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
        if not group.done and event.trajectory == group.probe:  # shortest first among those that tell something
            return [Resume(event.trajectory, event.generated - 2 * self.longest)]
        left = group.longest - event.generated
        return [Resume(event.trajectory, -left, left) if left > 0 else Resume(event.trajectory, -self.longest)]
