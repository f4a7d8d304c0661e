"""What tail policies are told beside the events of the rollout: rounds that begin, and trajectories that pause."""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.balance.events import Aborted, Begun, Ended, Returned


@dataclass(frozen=True, slots=True)
class RoundBegan:
    """A training step wants so many groups of so many samples each."""

    at: float
    step: int
    groups: int
    size: int


@dataclass(frozen=True, slots=True)
class Paused:
    """A trajectory has generated what the cap allows, and waits to be resumed; ``generated`` counts all its tokens."""

    at: float
    trajectory: str
    generated: int


TailEvent = RoundBegan | Paused | Begun | Returned | Ended | Aborted
"""``Begun.prompt`` names a sample's group: a prompt that is drawn once more needs another name. ``Aborted`` answers
``AbortRest``, or says that a sample is lost. A trajectory that is resumed may be told to have begun once more."""
