"""Events for tail policies beside those of the rollout: a round begins, there is room, groups are dropped."""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.balance.events import Aborted, Begun, Ended, Paused, Returned


@dataclass(frozen=True, slots=True)
class RoundBegan:
    """A training step wants ``groups`` groups of ``size`` samples each. If ``among`` names groups, it takes only those;
    others that have begun already are for later steps."""

    at: float
    step: int
    groups: int
    size: int
    among: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Room:
    """This many more groups may begin now, before the rounds that will train on them."""

    at: float
    groups: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """These groups are dropped: they are too stale, or will begin again."""

    at: float
    groups: tuple[str, ...]


TailEvent = RoundBegan | Room | Paused | Begun | Returned | Ended | Aborted | GivenUp
"""``Aborted`` answers ``AbortRest``, or says that a sample is lost. A resumed trajectory may be reported as ``Begun``
again. A ``Paused`` one has generated what the cap allows, and waits to be resumed. ``GivenUp`` comes between rounds."""
