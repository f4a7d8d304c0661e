"""Commands of the pool. Each returns at once; an event reports the outcome later."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop sending turns to a replica's engines, let them finish or hand over theirs, and free their GPUs."""

    replica: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Join:
    """Add a drained replica to the training job. It fetches the state of this step in the background."""

    replica: int
    epoch: int
    step: int
    version: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """The job has begun another step while state was being fetched: fetch the state of that step."""

    replica: int
    epoch: int
    step: int
    version: int


@dataclass(frozen=True, slots=True)
class Sync:
    """Take part in the exchange of gradients from here on, with weight 0."""

    replica: int
    epoch: int
    step: int
    version: int


@dataclass(frozen=True, slots=True)
class Activate:
    """From this step on the replica gets its share of samples."""

    replica: int
    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """Sum a step's gradients with these weights, by replica.

    Replicas in ``redo`` have dropped out since the step began: their samples have to be assigned to others.
    """

    step: int
    version: int
    weights: tuple[tuple[int, float], ...]
    redo: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Leave:
    """Take a replica out of training, between two steps, and start its engines."""

    replica: int
    epoch: int


@dataclass(frozen=True, slots=True)
class RollBack:
    """Abandon whatever a replica was doing, on all its GPUs at once, and start its engines again."""

    replica: int
    epoch: int


PoolCommand = Drain | Join | Fetch | Sync | Activate | Reduce | Leave | RollBack


@dataclass(frozen=True, slots=True)
class FormPool:
    """A new layout is in force: report with `PoolFormed` which replicas a pool may move, once all engines are up."""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send a `Tick` at this second: a deadline passes then."""

    at: float
