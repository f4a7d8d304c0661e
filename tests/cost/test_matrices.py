"""Matrices over rows: two staircases, one for rows in whole tiles of eight and one for all others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.cost.bundle import Row, shipped_bundle
from steelyard.cost.measured.matrices import Matrices
from steelyard.cost.source import EXTRAPOLATED, INTERPOLATED, MEASURED, Floats
from steelyard.hardware import find_gpu

GPU = find_gpu("h200")


def matrices(points: Sequence[Row]) -> Matrices:
    return Matrices(points, GPU, 2.0, "bf16")


def shipped() -> Matrices:
    bundle = shipped_bundle("h200")
    assert bundle is not None
    return matrices(bundle.families["gemm"])


SHIPPED = shipped()
SHAPES = sorted({(row["n"], row["k"]) for row in SHIPPED.points})


def points(n: int, k: int, times: dict[int, float]) -> list[Row]:
    return [{"m": m, "n": n, "k": k, "us": us} for m, us in times.items()]


def micros(of: Matrices, n: int, k: int, rows: list[int]) -> Floats:
    return of.seconds(n, k, np.array(rows, dtype=np.float64)).seconds * 1e6


def test_rows_go_along_those_of_their_kind() -> None:
    """Whole tiles are slow here, others fast: neither takes anything from the other."""
    both = {8: 20.0, 16: 22.0, 32: 26.0, 4: 10.0, 13: 11.0, 29: 13.0}
    found = micros(matrices(points(512, 512, both)), 512, 512, [8, 16, 24, 32, 9, 15, 13, 21, 31])
    assert found == pytest.approx([20, 22, 24, 26, 11, 11, 11, 12, 13])


def test_a_profile_of_one_kind_of_rows_serves_for_both() -> None:
    one = matrices(points(512, 512, {1: 10.0, 4: 10.0, 16: 12.0, 32: 16.0}))
    assert micros(one, 512, 512, [4, 16, 24, 21]) == pytest.approx([10, 12, 14, 14])


def test_what_was_measured_is_told_from_what_was_not() -> None:
    some = matrices(points(512, 512, {8: 20.0, 16: 22.0, 13: 11.0, 29: 13.0}))
    rows = np.array([8, 13, 14, 20, 31, 33, 24], dtype=np.float64)
    wanted = [MEASURED, MEASURED, INTERPOLATED, INTERPOLATED, INTERPOLATED, EXTRAPOLATED, EXTRAPOLATED]
    assert some.seconds(512, 512, rows).provenance.tolist() == wanted
    carried = matrices(
        [*points(512, 512, {8: 20.0, 16: 22.0}), {"m": 24, "n": 512, "k": 512, "us": 25.0, "carried": True}]
    )
    found = carried.seconds(512, 512, np.array([16.0, 24.0]))
    assert found.provenance.tolist() == [MEASURED, INTERPOLATED] and found.seconds[1] == pytest.approx(25e-6)


def test_a_shape_measured_at_few_rows_goes_on_as_its_neighbours_do() -> None:
    """And at its own level: a straight line from its last two points would miss the step at 64 rows."""
    rows = {8: 10.0, 16: 10.0, 32: 10.0, 48: 10.0, 64: 30.0, 128: 60.0}
    neighbours = [point for n in (1024, 2048) for point in points(n, 512, rows)]
    short = points(1448, 512, {m: 2 * us for m, us in rows.items() if m <= 48})
    assert micros(matrices([*neighbours, *short]), 1448, 512, [64, 128]) == pytest.approx([60, 120], rel=0.05)


def test_beyond_the_last_row_one_odd_step_says_little() -> None:
    stairs = matrices(points(4096, 4096, {1024: 100.0, 2048: 200.0, 4096: 400.0, 7168: 790.0, 8192: 800.0}))
    assert micros(stairs, 4096, 4096, [16384]) == pytest.approx([1600.0])


@settings(max_examples=60)
@given(st.sampled_from(SHAPES), st.integers(1, 1023))
def test_rows_of_one_tile_take_the_same_time(shape: tuple[int, int], tile: int) -> None:
    found = micros(SHIPPED, *shape, list(range(8 * tile + 1, 8 * tile + 8)))
    assert (found == found[0]).all()


@settings(max_examples=60)
@given(st.dictionaries(st.integers(1, 999), st.floats(0, 50), min_size=2), st.integers(0, 7))
def test_between_points_that_rise_time_never_falls(steps: dict[int, float], part: int) -> None:
    """Among rows of one kind, beyond the last point too; and never outside of the two points around."""
    tiles = sorted(steps)
    times = np.cumsum([1.0 + steps[tile] for tile in tiles])
    rows = [8 * tile + part for tile in tiles]
    stairs = matrices(points(512, 512, dict(zip(rows, times.tolist(), strict=True))))
    every = [m for m in range(rows[0], 10_000, 3) if (m % 8 == 0) == (part == 0)]
    found = micros(stairs, 512, 512, every)
    assert (np.diff(found) >= -1e-9).all()
    after = np.searchsorted(np.array(tiles) * 8 + (8 if part else 0), np.array(every))
    inside = after < len(tiles)
    assert (found[inside] <= times[after[inside]] * (1 + 1e-9)).all()
    assert (found[inside] >= times[np.maximum(after[inside] - 1, 0)] * (1 - 1e-9)).all()


@settings(max_examples=60)
@given(st.tuples(st.integers(256, 30_000), st.integers(256, 16_000)) | st.sampled_from(SHAPES), st.integers(1, 8192))
def test_no_matrix_is_faster_than_its_weights_are_read(shape: tuple[int, int], rows: int) -> None:
    n, k = shape
    assert micros(SHIPPED, n, k, [rows])[0] >= 2e6 * n * k / GPU.memory_bandwidth
