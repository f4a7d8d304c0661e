"""Pipelines of stages: exact times of one-forward-one-backward, and of forward passes alone, for uneven micro-batches.

Times are arrays [case, stage, micro-batch]. Cases (data-parallel ranks, updates) are independent and computed at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def one_forward_one_backward(forward: Floats, backward: Floats, send: Floats) -> Floats:
    """When each case ends. Every stage first runs as many forwards as there are stages after it, then one forward and
    one backward in turn.

    In this order the forward of micro-batch j on stage s is in slot s + 2j and its backward in slot 2p - 1 - s + 2j.
    Each stage has one pass per slot, which waits only for its own last slot and for the previous slot of a neighbour.
    ``send`` is the time to send a micro-batch's activations or gradients to it [case, micro-batch].
    """
    cases, stages, count = forward.shape
    work, wait = _in_slots(forward, backward, send)
    free = np.zeros((cases, stages))
    before, after = np.arange(stages) - 1, (np.arange(stages) + 1) % stages
    even = np.arange(stages) % 2 == 0
    neighbour = (np.where(even, before, after), np.where(even, after, before))  # by parity: which one runs forward
    for slot in range(2 * (count + stages - 1)):
        free = np.maximum(free, free[:, neighbour[slot % 2]] + wait[slot]) + work[slot]
    found: Floats = free.max(axis=1)
    return found


def _in_slots(forward: Floats, backward: Floats, send: Floats) -> tuple[Floats, Floats]:
    """Seconds of each stage in each slot, and the delay after the neighbour's last slot."""
    cases, stages, count = forward.shape
    slots = 2 * (count + stages - 1)
    work, wait = np.zeros((slots, cases, stages)), np.full((slots, cases, stages), -np.inf)
    stage, micro = np.arange(stages)[:, None], np.arange(count)[None, :]
    ahead, back = stage + 2 * micro, 2 * stages - 1 - stage + 2 * micro
    work[ahead, :, stage] = np.moveaxis(forward, 0, 2)
    work[back, :, stage] = np.moveaxis(backward, 0, 2)
    if stages > 1:
        sent = np.broadcast_to(send.T, (stages - 1, count, cases))
        wait[ahead[1:], :, stage[1:]] = sent
        wait[back[:-1], :, stage[:-1]] = sent
    return work, wait


def forward_only(forward: Floats, send: Floats) -> Floats:
    """When the last stage of each case ends, with forward passes only.

    A stage starts a micro-batch when it has arrived and the one before is done.
    """
    arrives = np.zeros((forward.shape[0], forward.shape[2]))
    for stage in range(forward.shape[1]):
        own = forward[:, stage]
        before = np.cumsum(own, axis=1) - own
        done = np.maximum.accumulate(arrives - before, axis=1) + before + own
        arrives = done + send
    found: Floats = done[:, -1]
    return found
