"""The time of one step, as the engine needs it."""

from __future__ import annotations

from typing import NamedTuple

# Factor on a prompt's time after a pause: a GPU kept busy with arithmetic reaches its power limit and slows down.
# Prompts of captures took 0.935 of the prediction after 50 ms of idle time and 0.985 in a row (docs/calibration.md).
RESTED = 0.95


class StepTime(NamedTuple):
    """GPU and host seconds of a step.

    The host prepares a step and launches its kernels. The GPU starts with the first of them and cannot end before the
    last has been launched and run. In a captured step everything but the output head is launched at once.
    """

    gpu: float  # all kernels, back to back
    prepare: float  # on the host, until the first kernel is launched
    launch: float  # on the host, from there until the last one is launched
    tail: float  # on the GPU, from the launch of the last kernel to the end
    hindered: float = 0.0  # the part of ``launch`` that is not needed after a pause
    slowed: float = 0.0  # the part of ``gpu`` that the power limit adds, but not after a pause
