"""A smooth surface over histories, learnt online: recursive least squares on random waves.

Cosines and sines along random directions stand for a Gaussian kernel, so this is kernel ridge regression (or the mean
of a Gaussian process) with a memory that does not grow. Far from all it has seen it goes back to the mean, instead of
running off as straight lines would. A few small sets of waves, averaged, do what one large set does at a fraction of
its cost, and hang less on the draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt

from steelyard.balance.estimate.features import PLAIN

Array = npt.NDArray[np.float64]

_SETS = 4
_WAVES = 64  # directions in a set
_WIDTH = 2 * _WAVES + 1  # a cosine and a sine of each, and the mean
_LENGTH = 2.0 * PLAIN**0.5  # alike: within a factor of four in every coordinate
_DRIFT = 1e-6  # variance that a weight gains with each sample, so that what is old can be unlearnt
_FREE = 1e4  # variance of the mean before anything is known; that of all other weights, and of noise, is 1
_CHUNK = 16  # samples in one update: small enough for a linear solver to stay on one thread
_SEED = 20_260_603


class Surface:
    """Learns a value at points that are given by plain coordinates and tool shares."""

    def __init__(self) -> None:
        self._plain: Array = np.random.default_rng(_SEED).normal(size=(PLAIN, _SETS * _WAVES)) / _LENGTH
        self._tools: dict[str | None, Array] = {}
        self._weights = np.zeros((_SETS, _WIDTH, 1))
        self._doubt = np.zeros((_SETS, _WIDTH, _WIDTH))  # covariance of the weights
        self._doubt[:] = np.diag([1.0] * (_WIDTH - 1) + [_FREE])

    def waves(self, plain: Sequence[Sequence[float]], tools: Sequence[Mapping[str | None, float]]) -> Array:
        """For each set, a row of waves for each point."""
        phase = np.array(plain, dtype=np.float64) @ self._plain
        for row, shares in enumerate(tools):
            for tool, share in shares.items():
                phase[row] += share * self._direction(tool)
        phase = phase.reshape(len(phase), _SETS, _WAVES).swapaxes(0, 1)
        rows = np.empty((_SETS, phase.shape[1], _WIDTH))
        rows[:, :, :_WAVES] = np.cos(phase)
        rows[:, :, _WAVES:-1] = np.sin(phase)
        rows *= _WAVES**-0.5
        rows[:, :, -1] = 1.0
        return rows

    def expect(self, waves: Array) -> Array:
        """The value at each point."""
        values: Array = (waves @ self._weights)[:, :, 0].mean(axis=0)
        return values

    def add(self, waves: Array, values: Array) -> None:
        """Take in points with their values."""
        for first in range(0, len(values), _CHUNK):
            self._update(waves[:, first : first + _CHUNK], values[first : first + _CHUNK])

    def _update(self, waves: Array, values: Array) -> None:
        """One step of the Kalman filter whose state is the weights."""
        count = len(values)
        self._doubt[:, range(_WIDTH), range(_WIDTH)] += _DRIFT * count
        seen = waves @ self._doubt
        gain = np.linalg.solve(seen @ waves.swapaxes(1, 2) + np.eye(count), seen).swapaxes(1, 2)
        self._weights += gain @ (values[:, None] - waves @ self._weights)
        self._doubt -= gain @ seen
        self._doubt = (self._doubt + self._doubt.swapaxes(1, 2)) / 2  # rounding would make it lopsided

    def _direction(self, tool: str | None) -> Array:
        """A tool's direction follows from its name, so it depends on no order of appearance."""
        found = self._tools.get(tool)
        if found is None:
            seed = (_SEED, crc32((tool or "").encode()))
            drawn: Array = np.random.default_rng(seed).normal(size=_SETS * _WAVES) / _LENGTH
            found = self._tools[tool] = drawn
        return found
