"""What the policy has learnt so far, as far as the trajectories to come depend on it."""

from __future__ import annotations

from steelyard.posttrain.record import LoopRecord
from steelyard.scenario.rollouts import LearningSpec
from steelyard.workload.trajectories.drift import Learning


def learnt(spec: LearningSpec | None, record: LoopRecord) -> float | None:
    """Effective samples trained on, where the scenario says what they are worth."""
    if spec is None:
        return None
    learning = Learning(spec)
    return sum(learning.effective(step.staleness) for step in record.steps)
