"""What is read off the record of a run."""

from __future__ import annotations

from itertools import accumulate

import pytest

from steelyard.posttrain.record import LoopRecord, StepRecord
from steelyard.posttrain.training import TrainingTime
from steelyard.posttrain.training.result import TimeSplit


def ended(step: int, synced: float, tokens: int) -> StepRecord:
    time = TrainingTime(TimeSplit(*[0.0] * 11), 0, 1, 1, 0.0, 0.0, 1, 1.0)
    return StepRecord(step, 0.0, 0.0, 0.0, synced, time, 1, tokens, (0,), (), 0.0, 0.0, 1, 1)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([100.0], 10 / 100),
        ([100.0, 110.0], 20 / 10),
        ([100.0, 110.0, 130.0, 140.0, 141.0, 142.0], 40 / 10),  # the fourth alone: half is over, two are left
        ([9.0, 12.0, 13.0, 15.0, 18.0, 22.0, 22.5, 23.0], (50 + 60) / (18 - 15 + 22 - 18)),
    ],
)
def test_throughput_is_settled_from_half_of_the_steps_on_without_the_last_two(
    ends: list[float], expected: float
) -> None:
    record = LoopRecord([ended(step, end, 10 * (step + 1)) for step, end in enumerate(ends)])
    assert record.settled == pytest.approx(expected)


@pytest.mark.parametrize("steps", range(16, 30))
def test_batches_that_take_turns_in_being_long_are_counted_in_whole_rounds(steps: int) -> None:
    ends = list(accumulate([700.0, 100.0, 100.0][step % 3] for step in range(steps)))
    assert LoopRecord([ended(step, end, 90) for step, end in enumerate(ends)]).settled == pytest.approx(270 / 900)
