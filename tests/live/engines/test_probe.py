"""Whether log-probs are those of a trainer's weights."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.live.engines.probe import BFLOAT16, FLOAT32, Tolerance, WeightProbe, compare

logprobs = st.lists(st.floats(-20, 0), min_size=1, max_size=50)


def probe(values: list[float], before: list[float] | None = None) -> WeightProbe:
    return WeightProbe(tuple(range(len(values) + 1)), tuple(values), tuple(before or ()))


@given(logprobs, st.sampled_from([FLOAT32, BFLOAT16]))
def test_equal_log_probs_pass(values: list[float], tolerance: Tolerance) -> None:
    found = compare([probe(values)], [values], tolerance)
    assert found == ("", 0.0, None)


@given(logprobs, st.floats(-1, 1), st.sampled_from([FLOAT32, BFLOAT16]))
def test_the_mean_difference_decides(values: list[float], shift: float, tolerance: Tolerance) -> None:
    found = compare([probe(values)], [[each + shift for each in values]], tolerance)
    assert math.isclose(found.difference, abs(shift), abs_tol=1e-12)
    if abs(abs(shift) - tolerance.mean) > 1e-12:
        assert bool(found.why) == (abs(shift) > tolerance.mean)


def test_the_worst_sequence_counts() -> None:
    good, bad = [-1.0] * 100, [-1.0]
    assert compare([probe(good), probe(bad)], [good, [-2.0]], BFLOAT16).why


def test_log_probs_that_are_no_numbers_never_pass() -> None:
    assert compare([probe([-1.0])], [[math.nan]], BFLOAT16).why


def test_old_weights_are_told_within_the_tolerance_if_the_change_is_known() -> None:
    before = [-2.0 - 0.01 * (place % 7) for place in range(2000)]
    after = [each + (0.03 if place % 2 else -0.03) for place, each in enumerate(before)]
    blurred = [each + (0.04 if place % 3 else -0.08) for place, each in enumerate(before)]
    assert not compare([probe(after)], [blurred], BFLOAT16).why  # it cannot tell
    stale = compare([probe(after, before)], [blurred], BFLOAT16)
    assert stale.share is not None and abs(stale.share) < 0.1 and "weights before" in stale.why
    fresh = compare(
        [probe(after, before)],
        [[one + two - three for one, two, three in zip(after, blurred, before, strict=True)]],
        BFLOAT16,
    )
    assert fresh.share is not None and abs(fresh.share - 1) < 0.1 and not fresh.why


def test_a_change_that_is_too_small_tells_nothing() -> None:
    before = [-2.0] * 100
    after = [-2.001] * 100
    found = compare([probe(after, before), probe(after)], [before, after], BFLOAT16)
    assert found.share is None and not found.why


@pytest.mark.parametrize(
    ("tokens", "values", "before"),
    [((1,), (), ()), ((1, 2), (), ()), ((1, 2), (-1.0,), (-1.0, -1.0)), ((1, 2), (math.nan,), ())],
)
def test_probes_are_checked(tokens: tuple[int, ...], values: tuple[float, ...], before: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"log-prob"):
        WeightProbe(tokens, values, before)
