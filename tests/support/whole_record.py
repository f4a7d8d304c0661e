"""A record of a post-training run that keeps trajectories themselves, not rows of them only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from steelyard.posttrain.attempt import Attempt
from steelyard.posttrain.record import LoopRecord


@dataclass
class WholeRecord(LoopRecord):
    samples: list[Attempt] = field(default_factory=list)  # in the order in which they ended
    batches: list[list[Attempt]] = field(default_factory=list)  # what each step was trained on
    dropped: list[Attempt] = field(default_factory=list)  # stopped for good, or ended and not trained on

    def end(self, attempt: Attempt) -> None:
        super().end(attempt)
        self.samples.append(attempt)

    def drop(self, attempt: Attempt) -> None:
        super().drop(attempt)
        self.dropped.append(attempt)

    def train(self, step: int, batch: Sequence[Attempt]) -> None:
        super().train(step, batch)
        self.batches.append(list(batch))


def kept(record: LoopRecord) -> WholeRecord:
    """A record that was made whole."""
    assert isinstance(record, WholeRecord)
    return record
