"""What the pool is told: the training job's steps, and what became of its commands.

Whatever answers a command names that command's epoch, so that answers to commands long withdrawn are known as such.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolFormed:
    """The training replicas of a pool with their GPUs: ``core`` ones train for good, ``hybrid`` ones roll out to begin
    with. ``engines`` counts the GPUs of engines that only ever roll out."""

    at: float
    core: tuple[tuple[int, tuple[int, ...]], ...]
    hybrid: tuple[tuple[int, tuple[int, ...]], ...]
    engines: int


@dataclass(frozen=True, slots=True)
class StepBegan:
    """All training replicas stand at the barrier before a step; ``version`` is that of the weights it begins with."""

    at: float
    step: int
    version: int


@dataclass(frozen=True, slots=True)
class Gradient:
    """A replica has its gradient of a step ready, over so many tokens. Core replicas have epoch 0 for ever."""

    at: float
    replica: int
    epoch: int
    step: int
    version: int
    tokens: int


@dataclass(frozen=True, slots=True)
class StepEnded:
    """A step of the loop is over, with what it took: seconds of training, of rollout, and from one step to the next.

    ``pressure`` is how full rollout is, from 0 to 1. ``longest`` is what its longest trajectory would take alone: no
    number of GPUs brings rollout below that. ``train_with`` has the seconds that training would take with so many
    replicas, for lengths as they were in this step; where a driver cannot say, training is taken to be in proportion.
    """

    at: float
    step: int
    train: float
    rollout: float
    seconds: float
    pressure: float
    longest: float = 0.0
    train_with: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Drained:
    """A replica's engines have nothing left to do and have given up their GPUs."""

    at: float
    replica: int
    epoch: int


@dataclass(frozen=True, slots=True)
class JoinAccepted:
    """The training job knows of the replica; fetching its state goes on in the background."""

    at: float
    replica: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """A replica holds weights and optimiser state as of this step."""

    at: float
    replica: int
    epoch: int
    step: int
    version: int


@dataclass(frozen=True, slots=True)
class Synced:
    """A replica has gone through this step's exchange without giving anything, and holds what all others hold."""

    at: float
    replica: int
    epoch: int
    step: int
    version: int


@dataclass(frozen=True, slots=True)
class Serving:
    """A replica's engines take trajectories again: it has left, or is rolled back."""

    at: float
    replica: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Something went wrong with a replica that was on its way, or training."""

    at: float
    replica: int
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; some patience may have run out."""

    at: float


Answer = Drained | JoinAccepted | Fetched | Synced | Serving | Failed
PoolEvent = StepBegan | Gradient | StepEnded | Answer | Tick
