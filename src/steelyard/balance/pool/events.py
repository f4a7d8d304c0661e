"""Events for the pool: the training job's steps, and the outcomes of its commands.

An outcome carries the epoch of its command, so that answers to withdrawn commands are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolFormed:
    """The training replicas of a pool with their GPUs. ``core`` replicas always train; ``hybrid`` ones roll out at
    first. ``engines`` counts the GPUs of engines that always roll out."""

    at: float
    core: tuple[tuple[int, tuple[int, ...]], ...]
    hybrid: tuple[tuple[int, tuple[int, ...]], ...]
    engines: int


@dataclass(frozen=True, slots=True)
class PoolDissolved:
    """A change of plan begins, which takes over all GPUs as they are: lent replicas are part of the training job, and
    replicas on their way have no role. `PoolFormed` follows once the new layout is in force."""

    at: float


@dataclass(frozen=True, slots=True)
class StepBegan:
    """All training replicas are at the barrier before a step. ``version`` is that of the weights it begins with."""

    at: float
    step: int
    version: int


@dataclass(frozen=True, slots=True)
class Gradient:
    """A replica has its gradient of a step ready, over this many tokens. Core replicas always have epoch 0."""

    at: float
    replica: int
    epoch: int
    step: int
    version: int
    tokens: int


@dataclass(frozen=True, slots=True)
class StepEnded:
    """A step of the loop is over: seconds of training, of rollout, and from one step to the next.

    ``pressure`` is how full rollout is, from 0 to 1. ``longest`` is the time of its longest trajectory alone: no number
    of GPUs brings rollout below that. ``train_with`` has (replicas, seconds of training) for lengths as in this step.
    If a driver does not know it, training is taken to be in inverse proportion to its replicas.
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
    """A replica's engines have nothing left to do and have freed their GPUs."""

    at: float
    replica: int
    epoch: int


@dataclass(frozen=True, slots=True)
class JoinAccepted:
    """The training job has added the replica, which fetches its state in the background."""

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
    """A replica has taken part in this step's exchange with weight 0, and has the same state as all others."""

    at: float
    replica: int
    epoch: int
    step: int
    version: int


@dataclass(frozen=True, slots=True)
class Serving:
    """A replica's engines take trajectories again: it has left training, or is rolled back."""

    at: float
    replica: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A replica failed, on its way or in training."""

    at: float
    replica: int
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. A deadline may have passed, too."""

    at: float


Answer = Drained | JoinAccepted | Fetched | Synced | Serving | Failed
PoolEvent = StepBegan | Gradient | StepEnded | Answer | Tick
