"""A lower bound on the GPU seconds of training on sequences, whatever is packed together and overlapped."""

from __future__ import annotations

import numpy as np

from steelyard.posttrain.training.cost import TrainingCost
from steelyard.posttrain.training.efficiency import ATTENTION_BACKWARD, HIDDEN_AT_MOST
from steelyard.posttrain.training.layout import FSDP
from steelyard.posttrain.training.tables import (
    BACKWARD,
    CP_BACKWARD,
    CP_FORWARD,
    EP_BACKWARD,
    EP_FORWARD,
    FORWARD,
    RECOMPUTED,
    TP_BACKWARD,
    TP_FORWARD,
)
from steelyard.records import Ints

_THERE = [FORWARD, TP_FORWARD, EP_FORWARD, CP_FORWARD]
_BACK = [BACKWARD, RECOMPUTED, TP_BACKWARD, EP_BACKWARD, CP_BACKWARD]


def least_seconds(cost: TrainingCost, lengths: Ints) -> float:
    """GPU seconds of a layout for sequences of these lengths: every token in the size of micro-batch that suits it
    best, no rank or stage ever waiting."""
    layout, settings = cost.layout, cost.settings
    updates, passes = settings.epochs * settings.trained, settings.forward_passes
    stages = cost.tables[cost.stage_of]
    there, back = (stages[:, rows].sum(axis=(0, 1)) for rows in (_THERE, _BACK))
    shown = 1.0 - HIDDEN_AT_MOST if settings.overlap else 1.0
    fetched = shown * cost.exchanges.weights * len(stages) if layout.zero >= FSDP else 0.0
    reduced = shown * cost.exchanges.gradients * len(stages) if layout.zero >= 2 else 0.0
    whole = updates * (there + back + 2 * fetched + reduced) + passes * (there + fetched)
    per_token = float(np.min(whole[1:] / cost.grid[1:]))  # of one GPU; tables are straight lines in between
    again = 2.0 if layout.recompute != "none" else 1.0
    times = updates * (again + ATTENTION_BACKWARD) + passes
    attention = sum(
        part.layers * float(part.time.seconds(lengths.astype(np.float64)).sum())
        for stage in cost.stage_of.tolist()
        for part in cost.attention[stage]
    )
    return float(layout.tp * (per_token * lengths.sum() + times * attention))
