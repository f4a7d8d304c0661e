"""Reporting every step to an observer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from steelyard.engine.batch import Batch
from steelyard.engine.group import DecodeGroup


class StepObserver(Protocol):
    """Receives every step as it is scheduled. Parity checks use it; other runs do not pay for it."""

    def step(self, scheduled_at: float, tokens: dict[int, int], preempted: list[int], free: int) -> None:
        """A step was scheduled: tokens by request index, requests preempted for it, blocks left free."""
        ...


def show_step(observer: StepObserver, at: float, batch: Batch, group: DecodeGroup, free: int) -> None:
    """Report a step scheduled at ``at``, given the group and the free blocks right afterwards."""
    observer.step(at, batch.tokens_by_request(group), [r.index for r in batch.preempted], free)


def show_stretch(observer: StepObserver, at: Iterable[float], first: int, group: DecodeGroup, free: int) -> None:
    """Report decode-only steps from ``first`` on, by when each was scheduled, given the free blocks before them."""
    tokens = {r.index: 1 for _, _, r in group.ends}
    for done, second in enumerate(at, 1):
        left = free - group.blocks_needed(first, done) + group.freed(first, done)
        observer.step(second, tokens, [], left)
