"""What planners are given and what they give back. Everything is data or asked of whoever drives the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from steelyard.balance.plan.makespan import ReplicaModel
from steelyard.balance.plan.measured import Measured
from steelyard.errors import UserError
from steelyard.records import Ints

Mode = Literal["colocated", "split", "overlapped"]
"""The same GPUs roll out, then train; GPUs of their own in turn; both at once, on batches that follow each other."""


@dataclass(frozen=True, slots=True)
class TrainOption:
    """A way to lay the training job out that fits its memory and divides its batch."""

    name: str
    gpus: int
    pp: int = 1
    dp: int = 1
    budget: int = 8192  # tokens of a micro-batch


@dataclass(frozen=True, slots=True)
class Bucket:
    """Rollout replicas of one degree, and the most tokens that a trajectory meant for them generates. A degree may have
    several, for different lengths."""

    tp: int
    replicas: int
    upto: int

    @property
    def gpus(self) -> int:
        return self.tp * self.replicas


@dataclass(frozen=True, slots=True)
class Plan:
    """Who trains and who rolls out, and what a step should take."""

    training: TrainOption
    buckets: tuple[Bucket, ...]  # by rising degree
    train: float
    rollout: float
    step: float
    why: str = ""  # it was chosen, as far as the two below do not say
    runner_up: Plan | None = None
    instead: float | None = None  # seconds of a step as it is, by the same reckoning; none if nothing is in force

    @property
    def layout(self) -> tuple[TrainOption, tuple[tuple[int, int], ...]]:
        """What is set up, apart from what is expected of it: plans with the same one are the same to a cluster."""
        return self.training, tuple(self.replicas.items())

    @property
    def replicas(self) -> dict[int, int]:
        """By rising degree."""
        found: dict[int, int] = {}
        for bucket in sorted(self.buckets, key=lambda each: each.tp):
            found[bucket.tp] = found.get(bucket.tp, 0) + bucket.replicas
        return found

    @property
    def rollout_gpus(self) -> int:
        return sum(bucket.gpus for bucket in self.buckets)

    def __str__(self) -> str:
        engines = " + ".join(f"{number} x TP{tp}" for tp, number in self.replicas.items())
        return f"{self.training.gpus} train ({self.training.name}), {self.rollout_gpus} roll out ({engines})"


def rounded(seconds: float) -> float:
    """To a microsecond: plans that differ by less are as good as each other, whatever rounding has made of them."""
    return round(seconds, 6)


def _no_sync(_: TrainOption, __: Sequence[Bucket]) -> float:
    return 0.0


@dataclass(frozen=True)
class World:
    """What does not change from step to step.

    ``train`` says what a layout takes for sequences of these lengths. ``ahead`` is how many batches are rolled out at a
    time, as staleness allows: each is then shared out over as many steps, and its longest trajectory with it.
    ``by_length``: the router sends long trajectories to fast buckets; if not, each replica gets as many of any length.
    """

    gpus: int
    mode: Mode
    replicas: Mapping[int, ReplicaModel]  # by degree
    options: Sequence[TrainOption]
    train: Callable[[TrainOption, Ints], float]
    sync: Callable[[TrainOption, Sequence[Bucket]], float] = _no_sync
    ahead: int = 1
    by_length: bool = True
    sticky: bool = True  # turns stay where their cache is

    def __post_init__(self) -> None:
        if not self.replicas or not self.options:
            raise UserError("planner: needs at least one degree for rollout replicas and one training layout that fits")

    def together(self, train: float, rollout: float) -> float:
        """A step of both stages, weights aside."""
        return max(train, rollout) if self.mode == "overlapped" else rounded(train + rollout)

    def train_seconds(self, option: TrainOption, lengths: Ints) -> float:
        """What a layout takes for sequences of these lengths, to a microsecond."""
        return rounded(self.train(option, lengths))

    def step_seconds(self, train: float, rollout: float, option: TrainOption, buckets: Sequence[Bucket]) -> float:
        """A step of both stages and the weights' way to the replicas, to a microsecond."""
        return rounded(self.together(train, rollout) + self.sync(option, buckets))

    def rollout_gpus(self, option: TrainOption) -> int:
        """GPUs left to roll out with; 0 if a layout cannot be used."""
        if self.mode == "colocated":
            return self.gpus if option.gpus == self.gpus else 0
        return max(0, self.gpus - option.gpus)


@dataclass(frozen=True)
class State:
    """What is known after a step."""

    step: int
    measured: Measured  # the trajectories of late
    plan: Plan | None = None  # that is in force
    train: float = 0.0  # seconds measured with it
    rollout: float = 0.0
    queued: float = 0.0  # turns that wait for a seat, as a share of seats
    active: float = 0.0  # seats taken, as a share
    rejected: int = 0
    switches: Sequence[float] = field(default=())  # seconds that changes of plan have taken so far
    seen: int = 0  # trajectories of late that can be looked at, in all
    left: int | None = None  # steps that are still to come, if anybody knows
    took: float | None = None  # seconds of this step, if the plan in force has been so for long enough to tell by it


class Planner(Protocol):
    """Asked after each step."""

    def plan(self, state: State) -> Plan | None:
        """What to change to; None: leave everything as it is."""
