"""What the policy has learnt so far, on which later trajectories depend."""

from __future__ import annotations

from steelyard.posttrain.record import LoopRecord
from steelyard.scenario.rollouts import LearningSpec
from steelyard.workload.trajectories.drift import Learning


def learnt(spec: LearningSpec | None, record: LoopRecord) -> float | None:
    """Effective samples trained on so far; None if the scenario has no learning curve."""
    if spec is None:
        return None
    learning = Learning(spec)
    return sum(learning.effective(step.staleness) for step in record.steps)
