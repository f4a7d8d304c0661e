"""What the GPUs of a live run did, second by second: their roles, and each engine."""

from __future__ import annotations

import numpy as np

from steelyard.live.fleet_history import FleetHistory
from steelyard.plot import Axis, Chart, Marks


def roles_chart(history: FleetHistory) -> Chart:
    """GPUs by role over time, stacked; lines are where changes of plan were done."""
    at = np.array([*(span.since for span in history.roles), *(span.until for span in history.roles[-1:])])
    training, rollout = (
        _held([each.training for each in history.roles]),
        _held([each.rollout for each in history.roles]),
    )
    whole, nothing = np.full(len(at), float(history.gpus)), np.zeros(len(at))
    changed = np.array(history.changed, dtype=np.float64)
    marks = (
        Marks("steps", at, training, "training", "4", low=nothing, fill=True),
        Marks("steps", at, training + rollout, "rollout", "1", low=training, fill=True),
        Marks("steps", at, whole, "on the way", "soft", low=training + rollout, fill=True),
        Marks("rules", changed, np.ones(len(changed)), "change of plan", "2"),
    )
    up = Axis("GPUs", "whole", 0.0, float(history.gpus))
    return Chart("roles", "GPUs by role", Axis("time", "clock", 0.0, history.seconds), up, marks, group="time")


def engines_chart(history: FleetHistory) -> Chart:
    """Each engine on a line of its own: when it was up, and when it was lost."""
    spans = [(each.since, each.until, float(i)) for i, life in enumerate(history.engines) for each in life.up]
    lost = [(each.until, float(i)) for i, life in enumerate(history.engines) for each in life.up if each.lost]
    since, until, line = np.array(spans, dtype=np.float64).reshape(-1, 3).T
    at, where = np.array(lost, dtype=np.float64).reshape(-1, 2).T
    marks = (
        Marks("bars", since, line + 0.35, "up", "1", low=line - 0.35, ends=until),
        Marks("dots", at, where, "lost", "bad"),
    )
    up = Axis("engine", "whole", -0.5, len(history.engines) - 0.5)
    return Chart("engines", "Engines", Axis("time", "clock", 0.0, history.seconds), up, marks)


def _held(values: list[int]) -> np.ndarray:
    """The last value is held to the end."""
    return np.array([*values, *values[-1:]], dtype=np.float64)
