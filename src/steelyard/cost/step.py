"""One step's time, as the engine needs to know it."""

from __future__ import annotations

from typing import NamedTuple

RESTED = 0.95  # of a prompt's time, after a pause: a GPU kept busy with arithmetic meets its power limit and slows down


class StepTime(NamedTuple):
    """What a step asks of GPU and host, in seconds.

    The host prepares a step and launches its kernels; the GPU starts with the first of them and cannot be done before
    the last has been launched and run. Of a captured step everything but the output head is launched at once.
    """

    gpu: float  # all kernels, back to back
    prepare: float  # on the host, until the first kernel is on its way
    launch: float  # on the host, from there until the last one is
    tail: float  # on the GPU, what is left to run when the last kernel has been launched
    hindered: float = 0.0  # the part of ``launch`` that a host which has had a pause does not need
