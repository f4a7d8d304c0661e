"""What a post-training run leaves behind, for whoever sums it up or draws it."""

from __future__ import annotations

from dataclasses import dataclass, field

from steelyard.posttrain.rollout import Attempt
from steelyard.posttrain.training import TrainingTime


@dataclass(frozen=True)
class StepRecord:
    """One training step: when its samples were there, when it was trained, when engines had its weights."""

    step: int
    waited_from: float  # when the trainer had nothing to do
    begun: float
    trained: float
    synced: float
    time: TrainingTime
    samples: int
    tokens: int  # generated ones of its samples
    staleness: tuple[int, ...]  # of each sample: versions behind


@dataclass
class LoopRecord:
    """All that happened."""

    steps: list[StepRecord] = field(default_factory=list)
    samples: list[Attempt] = field(default_factory=list)  # in the order in which they ended
