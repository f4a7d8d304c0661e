"""When a replica should change its role: the time of a step with another split, and whether a move pays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, Protocol

from steelyard.balance.pool.events import StepEnded

Side = Literal["training", "rollout"]


@dataclass(frozen=True, slots=True)
class Split:
    """GPUs of each stage, in units of a training replica. Rollout has engines of other sizes, so its number may be a
    fraction."""

    training: int
    rollout: float

    def moved(self, replicas: int) -> Split:
        """With this many more replicas in training; negative: fewer."""
        return Split(self.training + replicas, self.rollout - replicas)

    def without(self, replicas: int) -> Split:
        """While the replicas that move are in neither role."""
        return Split(self.training + min(replicas, 0), self.rollout - max(replicas, 0))


class StepModel(Protocol):
    """Predicts the time of a step."""

    def seconds(self, measured: StepEnded, now: Split, then: Split) -> float:
        """Seconds from one step to the next with the split ``then``, given a step measured with the split ``now``."""


@dataclass(frozen=True, slots=True)
class ProportionalStep:
    """Training and rollout take time in inverse proportion to their replicas, but rollout at least the time of its
    longest trajectory. Measured time beyond both (weight sync, checkpoints) does not change."""

    overlapped: bool = True  # training of a batch runs beside the rollout of the next; if not, one follows the other

    def seconds(self, measured: StepEnded, now: Split, then: Split) -> float:
        if then.rollout <= 0 or then.training <= 0:
            return inf
        train = measured.train * now.training / then.training
        rollout = max(measured.rollout * now.rollout / then.rollout, min(measured.longest, measured.rollout))
        return self._together(train, rollout) + max(
            0.0, measured.seconds - self._together(measured.train, measured.rollout)
        )

    def _together(self, train: float, rollout: float) -> float:
        return max(train, rollout) if self.overlapped else train + rollout


@dataclass(frozen=True, slots=True)
class TimedTraining:
    """Rollout as in `ProportionalStep`; training as the driver has timed it, since micro-batches do not divide."""

    plain: ProportionalStep

    def seconds(self, measured: StepEnded, now: Split, then: Split) -> float:
        if min(then.training, then.rollout) <= 0:
            return inf
        timed = dict(measured.train_with)
        if now.training not in timed or then.training not in timed:
            return self.plain.seconds(measured, now, then)
        train = measured.train * timed[then.training] / timed[now.training]
        same = replace(measured, train=train, seconds=measured.seconds + self._longer(measured, train))
        return self.plain.seconds(same, replace(now, training=then.training), then)

    def _longer(self, measured: StepEnded, train: float) -> float:
        """Seconds by which a step with this training is longer, so that time beyond the stages does not change."""
        if self.plain.overlapped:
            return max(train, measured.rollout) - max(measured.train, measured.rollout)
        return train - measured.train


@dataclass(frozen=True, slots=True)
class View:
    """The input of a rule."""

    measured: StepEnded
    split: Split
    idle: int  # hybrid replicas in rollout that could be lent to training
    lent: int  # those in training
    model: StepModel
    away: Mapping[Side, float]  # measured seconds in neither role on the way to a side


class Rule(Protocol):
    """Asked after each step that was measured with the current split."""

    def change(self, view: View) -> int:
        """Replicas to lend to training; negative: to give back."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Libra's (arXiv 2606.03077): by the ratio of the stages, one replica at a time; nothing between both ratios."""

    borrow: float = 1.15
    give_back: float = 0.90
    pressure: float = 0.8  # of rollout, above which no replica is borrowed

    def change(self, view: View) -> int:
        train, rollout = view.measured.train, view.measured.rollout
        if train >= self.borrow * rollout and view.idle and view.measured.pressure <= self.pressure:
            return 1
        return -1 if train <= self.give_back * rollout and view.lent else 0


@dataclass(frozen=True, slots=True)
class Payoff:
    """Ours: the move that gains most over the next steps, less the loss while replicas are in neither role.

    It must gain a share of a step, so that noise moves nothing. Libra's bound on pressure holds, too.
    """

    horizon: int = 10  # steps for which lengths are expected to stay about the same
    margin: float = 0.05  # of a step, as in Libra's planner
    pressure: float = 0.8

    def change(self, view: View) -> int:
        now = self._seconds(view, view.split)
        best, gained = 0, 0.0
        idle = view.idle if view.measured.pressure <= self.pressure else 0
        for change in sorted(range(-view.lent, idle + 1), key=abs):
            gain = now - self._seconds(view, view.split.moved(change))
            if gain < self.margin * now:
                continue
            meanwhile = self._seconds(view, view.split.without(change))
            lost = view.away["training" if change > 0 else "rollout"] * (1 - now / meanwhile)
            if self.horizon * gain - lost > gained:
                best, gained = change, self.horizon * gain - lost
        return best

    @staticmethod
    def _seconds(view: View, split: Split) -> float:
        return view.model.seconds(view.measured, view.split, split)
