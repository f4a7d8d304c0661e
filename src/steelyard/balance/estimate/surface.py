"""A smooth surface over histories, learnt online: recursive least squares on random waves.

Cosines and sines along random directions stand for a Gaussian kernel, so this is kernel ridge regression (or the mean
of a Gaussian process) with a memory that does not grow. Far from all it has seen it returns to the mean, where a linear
model would extrapolate. A few small sets of waves, averaged, are as good as one large set at a fraction of its cost.

Every matrix product here is exact, so it is the same with any BLAS (`portable.py`). Its factors are multiples of powers
of two, whose exponents are below. They leave 53 bits for the largest sum, given how large values can be: a wave is at
most 1/8, the mean's is 1; ``_FREE`` bounds variances; values, weights and errors are cut off at ``_LARGEST``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import pi

import numpy as np

from steelyard.balance.estimate.features import PLAIN
from steelyard.balance.portable import bell, last_bits, to_grid
from steelyard.records import Floats

_SETS = 4
_WAVES = 64  # directions in a set
_WIDTH = 2 * _WAVES + 1  # a cosine and a sine of each, and the mean
_DRIFT = 2.0**-20  # variance that a weight gains with each sample, so that what is old can be unlearnt
_FREE = 2.0**8  # variance of the mean before anything is known; that of all other weights, and of noise, is 1
_LARGEST = 2.0**11  # a root of four million tokens
_CHUNK = 16  # samples in one update
_MOST_PARTS = 2_048  # two kilobytes each

_DOUBT_BITS = 30
_SEEN_BITS = 30
_REDUCED_BITS = 22
_ERROR_BITS = 14
_WEIGHT_BITS = 22

_DRAW = 7  # of directions; docs/estimators.md has what others give
_ANGLES = 4_096  # at which waves are known
_MASK = np.array(_ANGLES - 1)  # numpy takes longer to work with a plain number
_BY_STEP = 2.0**-9  # angles by step along a coordinate and unit of its draw: a kernel of 2 * sqrt(PLAIN) octaves
_TURN = 2 * pi * np.arange(_ANGLES) / _ANGLES
_AT_ANGLE = np.rint(1024 * np.exp(1j * _TURN)) / 1024  # a cosine and a sine
_SCALE = 1 / 8  # one over the root of the number of waves


class Surface:
    """Learns a value at points that are given by plain coordinates and tool shares."""

    def __init__(self) -> None:
        self._plain = np.array([_direction(f"coordinate {number}") for number in range(PLAIN)])
        self._tools: dict[str | None, Floats] = {}  # their directions
        self._parts: dict[tuple[str | None, int], Floats] = {}  # of phases, by tool and its share
        self._weights = np.zeros((_SETS, _WIDTH, 1))
        self._doubt = np.zeros((_SETS, _WIDTH, _WIDTH))  # covariance of the weights
        self._doubt[:] = np.diag([1.0] * (_WIDTH - 1) + [_FREE])
        self._waved = np.zeros(2 * _SETS * _WAVES)  # weights of the waves, in the order of ``_rows``
        self._level = 0.0  # far from all that was seen

    def value(self, plain: Floats, tools: Mapping[str | None, int]) -> float:
        """What is expected at one point: the same as by `waves` and `expect`, which are for many points."""
        phase = plain.dot(self._plain)
        parts = self._parts
        for key in tools.items():
            part = parts.get(key)
            np.add(phase, self._part(key) if part is None else part, phase)
        return self._level + float(_rows(phase).dot(self._waved))

    def waves(self, plain: Sequence[Floats], tools: Sequence[Mapping[str | None, int]]) -> Floats:
        """For each set, a row of waves for each point."""
        phases: Floats = np.array(plain) @ self._plain
        for phase, shares in zip(phases, tools, strict=True):
            for key in shares.items():
                np.add(phase, self._part(key), phase)
        rows = np.ones((_SETS, len(plain), _WIDTH))
        by_set = _rows(phases).reshape(len(plain), _SETS, 2 * _WAVES).swapaxes(0, 1)
        np.multiply(by_set, _SCALE, rows[:, :, :-1])
        return rows

    def expect(self, waves: Floats) -> Floats:
        """The value at each point."""
        return _over_sets((waves @ self._weights)[:, :, 0])

    def add(self, waves: Floats, values: Floats) -> None:
        """Take in points with their values."""
        for first in range(0, len(values), _CHUNK):
            self._update(waves[:, first : first + _CHUNK], values[first : first + _CHUNK])
        self._waved = self._weights[:, :-1, 0].ravel() * (_SCALE / _SETS)
        self._level = float(_over_sets(self._weights[:, -1]).item())

    def _update(self, waves: Floats, values: Floats) -> None:
        """One step of the Kalman filter whose state is the weights."""
        count = len(values)
        doubt, weights = self._doubt, self._weights
        np.einsum("sii->si", doubt)[:] += _DRIFT * count
        seen = to_grid(waves @ doubt, _SEEN_BITS)
        errors = np.clip(values[:, None] - waves @ weights, -_LARGEST, _LARGEST)
        spread = seen @ waves.swapaxes(1, 2) + np.eye(count)
        reduced = _reduce(np.concatenate([spread, seen, errors], axis=2), count)
        gains = to_grid(reduced[:, :, :-1], _REDUCED_BITS).swapaxes(1, 2)
        weights += gains @ to_grid(reduced[:, :, -1:], _ERROR_BITS)
        to_grid(np.clip(weights, -_LARGEST, _LARGEST, weights), _WEIGHT_BITS, weights)
        doubt -= gains @ gains.swapaxes(1, 2)
        to_grid(doubt, _DOUBT_BITS, doubt)

    def _part(self, key: tuple[str | None, int]) -> Floats:
        """What a tool with some share adds to a point's phases; kept, as shares are of few calls and come again."""
        found = self._parts.get(key)
        if found is None:
            if len(self._parts) == _MOST_PARTS:
                self._parts.clear()
            tool, share = key
            found = self._parts[key] = self._direction(tool) * share
        return found

    def _direction(self, tool: str | None) -> Floats:
        """A tool's direction; it follows from its name, so it depends on no order."""
        found = self._tools.get(tool)
        if found is None:
            found = self._tools[tool] = _direction(f"tool {tool or ''}")
        return found


def _direction(name: str) -> Floats:
    """Angles that a step along a coordinate adds to each wave."""
    return bell(f"{name}, draw {_DRAW}", _SETS * _WAVES) * _BY_STEP


def _rows(phases: Floats) -> Floats:
    """A cosine and a sine of each phase, which is used up."""
    rows: Floats = _AT_ANGLE.take(last_bits(phases, _MASK), None, None, "clip").view(np.float64)
    return rows


def _over_sets(each: Floats) -> Floats:
    """The mean over sets."""
    mean: Floats = each.sum(axis=0) / _SETS
    return mean


def _reduce(rows: Floats, count: int) -> Floats:
    """Cholesky's method: of ``rows`` [S | B], with S symmetric and ``count`` wide, the X of L X = B, where L L' is S.

    By numpy's loops over single numbers, which every CPU rounds alike; a linear solver's result depends on BLAS.
    """
    for row in range(count):
        pivot = rows[:, row, row:]
        np.divide(pivot, np.sqrt(pivot[:, :1]), pivot)
        below = rows[:, row + 1 :, row:]
        np.subtract(below, pivot[:, 1 : count - row, None] * pivot[:, None, :], below)
    return rows[:, :, count:]
