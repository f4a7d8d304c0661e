"""Arithmetic that is the same on every CPU: against math's functions, and against whole numbers of any size."""

from __future__ import annotations

import math
from fractions import Fraction
from struct import pack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.balance.estimate.features import PLAIN, SHARE, UNIT
from steelyard.balance.estimate.surface import Surface
from steelyard.balance.portable import OCTAVE, SIGMA, bell, exponential, last_bits, octaves_of, power, to_grid
from steelyard.records import Floats


@given(st.floats(1.0, 1e12))
def test_octaves_are_logarithms_rounded_down(value: float) -> None:
    found = octaves_of(pack("d", value)).item() / OCTAVE
    assert found <= math.log2(value) + 1e-12
    assert found > math.log2(value) - 1 / OCTAVE - 1 / 350  # the table has steps of a 512th at most


@given(st.floats(1.0, 1e12), st.floats(1.0, 1e12))
def test_octaves_rise(one: float, other: float) -> None:
    low, high = sorted((one, other))
    lower, higher, doubled = octaves_of(pack("3d", low, high, 2 * high))
    assert lower <= higher
    assert doubled == higher + OCTAVE


@given(st.floats(-50.0, 50.0))
def test_exponentials_are_maths(value: float) -> None:
    assert exponential(value) == pytest.approx(math.exp(value), rel=1e-14)


def test_a_bell_is_about_normal_and_follows_from_its_name() -> None:
    drawn = bell("a", 20_000)
    assert abs(drawn.mean()) < 6 and drawn.std() == pytest.approx(SIGMA, rel=0.02)
    assert np.mean(np.abs(drawn) < SIGMA) == pytest.approx(0.683, abs=0.01)
    assert np.array_equal(drawn, np.rint(drawn))
    assert np.array_equal(bell("a", 50), drawn[:50])
    assert abs(float(np.corrcoef(drawn, bell("b", 20_000))[0, 1])) < 0.03


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5), st.integers(1, 40))
def test_powers_are_products(bases: list[float], exponent: int) -> None:
    assert power(np.array(bases), exponent).tolist() == pytest.approx([base**exponent for base in bases], rel=1e-13)


@given(st.lists(st.floats(-1e5, 1e5), min_size=1, max_size=9), st.integers(0, 30))
def test_a_grid_has_the_nearest_multiple(values: list[float], bits: int) -> None:
    for value, found in zip(values, to_grid(np.array(values), bits).tolist(), strict=True):
        assert Fraction(found) * 2**bits == round(Fraction(value) * 2**bits)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=9))
def test_last_bits_are_those_of_the_nearest_whole_number(values: list[float]) -> None:
    assert last_bits(np.array(values), np.array(4095)).tolist() == [round(value) % 4096 for value in values]


def whole(values: Floats, bits: int) -> np.ndarray:
    """Numbers of any size, in units of 2 ** -bits; they have to be multiples of it."""
    scaled = [Fraction(value) * 2**bits for value in values.ravel().tolist()]
    assert all(each.denominator == 1 for each in scaled)
    return np.array([int(each) for each in scaled], dtype=object).reshape(values.shape)


@pytest.mark.parametrize("size", [1.0, 30.0, 2000.0])
def test_the_surfaces_products_are_exact(size: float) -> None:
    """Whatever BLAS makes of them is what whole numbers of any size give, also for very long trajectories."""
    rng = np.random.default_rng(3)
    learner = Surface()
    for number in range(12):
        plain = rng.integers(0, 20 * UNIT, size=(16, PLAIN)).tolist()
        tools: list[dict[str | None, int]] = [{"grep": int(each)} for each in rng.integers(0, SHARE, 16)]
        waves = learner.waves(plain, tools)
        if number in (0, 1, 11):
            seen = whole(waves[0], 13).dot(whole(learner._doubt[0], 30))
            assert np.array_equal(whole((waves @ learner._doubt)[0], 43), seen)
            expected = whole(waves[0], 13).dot(whole(learner._weights[0], 22))
            assert np.array_equal(whole((waves @ learner._weights)[0], 35), expected)
        learner.add(waves, np.abs(rng.normal(size=16)) * size)
    assert np.linalg.eigvalsh(learner._doubt).min() > 0
