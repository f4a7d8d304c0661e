"""What tail policies are told beside the events of the rollout: rounds that begin, and trajectories that pause."""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.balance.events import Aborted, Begun, Ended, Paused, Returned


@dataclass(frozen=True, slots=True)
class RoundBegan:
    """A training step wants so many groups of so many samples each; only of those named in ``among``, if any are: then
    others that have begun already are for later steps."""

    at: float
    step: int
    groups: int
    size: int
    among: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Room:
    """So many groups more may begin already, ahead of the rounds that will train on them."""

    at: float
    groups: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """These groups are not waited for any more: they are too stale, or will begin anew."""

    at: float
    groups: tuple[str, ...]


TailEvent = RoundBegan | Room | Paused | Begun | Returned | Ended | Aborted | GivenUp
"""``Aborted`` answers ``AbortRest``, or says that a sample is lost. A trajectory that is resumed may be reported to
have begun once more. One that has ``Paused`` has generated what the cap allows, and waits to be resumed. ``GivenUp``
comes between rounds."""
