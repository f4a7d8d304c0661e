"""Samples: checked, split, and packed for the way to other processes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import UserError
from steelyard.live.train.samples import Sample, check, packed, row_of, shares, staleness, unpacked
from support.trainers import samples_of

GOOD = Sample("t", "g", [1, 2, 3, 4], [False, True, False, True], [-1.0, -2.0], [3, 4], 0.5)


def test_a_good_sample_passes() -> None:
    check(GOOD, 5)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tokens": [1]}, "marks"),
        ({"generated": [True, True, False, False]}, "prompt before it"),
        ({"logprobs": [-1.0]}, "1 logprobs"),
        ({"versions": [1, 2, 3]}, "3 versions"),
        ({"tokens": [1, 2, 3, 5]}, "0 to 4"),
        ({"tokens": [1, 2, 3, -1]}, "0 to 4"),
        ({"logprobs": [-1.0, float("-inf")]}, "finite"),
        ({"reward": float("nan")}, "finite"),
    ],
)
def test_others_are_refused_by_name(change: dict[str, object], told: str) -> None:
    with pytest.raises(UserError, match=rf"trajectory t: .*{told}"):
        check(replace(GOOD, **change), 5)  # type: ignore[arg-type]


@given(st.lists(st.integers(1, 500), max_size=60), st.integers(1, 8))
def test_shares_have_every_row_once_and_are_even(lengths: list[int], parts: int) -> None:
    found = shares(lengths, parts)
    assert sorted(row for share in found for row in share) == list(range(len(lengths)))
    loads = [sum(lengths[row] for row in share) for share in found]
    assert max(loads) - min(loads) <= max(lengths, default=0)


@pytest.mark.parametrize("later", [False, True])
def test_rows_come_back_as_they_were(later: bool) -> None:
    rows = [row_of(sample, 0.25 * place) for place, sample in enumerate(samples_of(1))]
    rows = [row.seen(row.behaviour - 1) for row in rows] if later else rows
    for row, found in zip(rows, unpacked(packed(rows)), strict=True):
        assert torch.equal(row.tokens, found.tokens) and torch.equal(row.generated, found.generated)
        assert torch.equal(row.behaviour, found.behaviour) and row.advantage == pytest.approx(found.advantage)
        assert (found.proximal is None) is not later
        if row.proximal is not None and found.proximal is not None:
            assert torch.equal(row.proximal, found.proximal)


def test_no_rows_are_no_rows() -> None:
    assert unpacked(packed([])) == []


def test_staleness_counts_tokens() -> None:
    assert staleness([GOOD, replace(GOOD, versions=[4, 4])], 5) == ((1, 3), (2, 1))
