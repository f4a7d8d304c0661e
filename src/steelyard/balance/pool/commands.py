"""What the pool wants done. No command waits: each returns at once, and an event tells later what came of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Drain:
    """Let a replica's engines finish, or hand on, what they have, take nothing new, and give up their GPUs."""

    replica: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Join:
    """Make a drained replica known to the training job, and have it fetch the state of this step in the background."""

    replica: int
    epoch: int
    step: int
    version: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """The job has gone on to another step while state was being fetched: fetch that one's."""

    replica: int
    epoch: int
    step: int
    version: int


@dataclass(frozen=True, slots=True)
class Sync:
    """Take part in the exchange of gradients from here on, with nothing to give."""

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
    """Add a step's gradients up with these weights, replica by replica.

    Replicas in ``redo`` have dropped out since the step began: whoever deals out samples deals theirs out again.
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
    """Whatever a replica was doing: forget it, all its GPUs at once, and start its engines again."""

    replica: int
    epoch: int


PoolCommand = Drain | Join | Fetch | Sync | Activate | Reduce | Leave | RollBack


@dataclass(frozen=True, slots=True)
class FormPool:
    """Layouts have settled: say which replicas a pool is to move, with `PoolFormed`."""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send a `Tick` at this second: some patience runs out then."""

    at: float
