"""The input and output of planners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from steelyard.balance.plan.makespan import ReplicaModel
from steelyard.balance.plan.measured import Measured
from steelyard.errors import UserError
from steelyard.records import Ints

Mode = Literal["colocated", "split", "overlapped"]
"""colocated: the same GPUs roll out, then train; split: separate GPUs, in turn; overlapped: separate GPUs, at once."""


@dataclass(frozen=True, slots=True)
class TrainOption:
    """A layout of the training job that fits into memory and divides the batch."""

    name: str
    gpus: int
    pp: int = 1
    dp: int = 1
    budget: int = 8192  # tokens of a micro-batch


@dataclass(frozen=True, slots=True)
class Bucket:
    """Rollout replicas of one degree for trajectories that generate up to ``upto`` tokens. A degree may have several
    buckets."""

    tp: int
    replicas: int
    upto: int

    @property
    def gpus(self) -> int:
        return self.tp * self.replicas


@dataclass(frozen=True, slots=True)
class Plan:
    """A split of the GPUs, and the predicted seconds of a step."""

    training: TrainOption
    buckets: tuple[Bucket, ...]  # by rising degree
    train: float
    rollout: float
    step: float
    why: str = ""  # why it was chosen, for reports
    runner_up: Plan | None = None
    instead: float | None = None  # predicted step time of the plan that it replaces; None if there is none

    @property
    def layout(self) -> tuple[TrainOption, tuple[tuple[int, int], ...]]:
        """Its training layout and replicas. Plans with the same layout differ in predictions only."""
        return self.training, tuple(self.replicas.items())

    @property
    def replicas(self) -> dict[int, int]:
        """Number of replicas by degree, rising."""
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
    """To a microsecond, so that rounding errors never decide between plans."""
    return round(seconds, 6)


def _no_sync(_: TrainOption, __: Sequence[Bucket]) -> float:
    return 0.0


@dataclass(frozen=True)
class World:
    """What does not change from step to step.

    ``train`` gives the seconds of a layout for sequences of given lengths, ``sync`` those of a weight sync.
    ``batches_at_once`` is the number of batches that staleness allows to roll out at once: a makespan is spread over as
    many steps. ``by_length``: the router sends long trajectories to fast buckets; if not, all replicas get equally many
    trajectories of all lengths.
    """

    gpus: int
    mode: Mode
    replicas: Mapping[int, ReplicaModel]  # by degree
    options: Sequence[TrainOption]
    train: Callable[[TrainOption, Ints], float]
    sync: Callable[[TrainOption, Sequence[Bucket]], float] = _no_sync
    batches_at_once: int = 1
    by_length: bool = True
    sticky: bool = True  # turns run on the replica that has their cache
    exchange: Mapping[TrainOption, float] = field(
        default_factory=dict
    )  # share of training in tensor-parallel exchanges

    def __post_init__(self) -> None:
        if not self.replicas or not self.options:
            raise UserError("planner: needs at least one degree for rollout replicas and one training layout that fits")

    def together(self, train: float, rollout: float) -> float:
        """Seconds of a step of both stages, without weight sync."""
        return max(train, rollout) if self.mode == "overlapped" else rounded(train + rollout)

    def train_seconds(self, option: TrainOption, lengths: Ints) -> float:
        """Seconds of a layout for sequences of these lengths, to a microsecond."""
        return rounded(self.train(option, lengths))

    def step_seconds(self, train: float, rollout: float, option: TrainOption, buckets: Sequence[Bucket]) -> float:
        """Seconds of a step of both stages and of the weight sync, to a microsecond."""
        return rounded(self.together(train, rollout) + self.sync(option, buckets))

    def rollout_gpus(self, option: TrainOption) -> int:
        """GPUs that a layout leaves to rollout; 0 if it cannot be used."""
        if self.mode == "colocated":
            return self.gpus if option.gpus == self.gpus else 0
        return max(0, self.gpus - option.gpus)


@dataclass(frozen=True)
class PlannerState:
    """What a planner knows after a step."""

    step: int
    measured: Measured  # recent trajectories
    plan: Plan | None = None  # the plan in force
    train: float = 0.0  # measured seconds of a step's stages
    rollout: float = 0.0
    queued: float = 0.0  # turns that wait for a seat, as a share of all seats
    active: float = 0.0  # share of seats taken
    rejected: int = 0
    switches: Sequence[float] = field(default=())  # seconds of each change of plan so far
    seen: int = 0  # number of known recent trajectories
    left: int | None = None  # steps still to come; None if unknown
    took: float | None = None  # seconds of this step; None while a change of plan still affects it


class Planner(Protocol):
    """Called after each step."""

    def plan(self, state: PlannerState) -> Plan | None:
        """The plan to change to; None: no change."""
