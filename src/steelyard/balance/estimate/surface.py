"""A smooth surface over histories, learnt online: recursive least squares on random waves.

Cosines and sines along random directions stand for a Gaussian kernel, so this is kernel ridge regression (or the mean
of a Gaussian process) with a memory that does not grow. Far from all it has seen it goes back to the mean, instead of
running off as straight lines would. A few small sets of waves, averaged, do what one large set does at a fraction of
its cost, and hang less on the draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from zlib import crc32

import numpy as np
import numpy.typing as npt

from steelyard.balance.estimate.features import PLAIN

Array = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

_SETS = 4
_WAVES = 64  # directions in a set
_WIDTH = 2 * _WAVES + 1  # a cosine and a sine of each, and the mean
_SCALE = _WAVES**-0.5
_LENGTH = 2.0 * PLAIN**0.5  # alike: within a factor of four in every coordinate
_DRIFT = 1e-6  # variance that a weight gains with each sample, so that what is old can be unlearnt
_FREE = 1e4  # variance of the mean before anything is known; that of all other weights, and of noise, is 1
_CHUNK = 16  # samples in one update: small enough for a linear solver to stay on one thread
_MOST_PARTS = 4_096  # a kilobyte each
_SEED = 20_260_603
_POINT = Struct(f"{PLAIN}f")  # packs numbers in half the time that an array takes to take them in


class Surface:
    """Learns a value at points that are given by plain coordinates and tool shares."""

    def __init__(self) -> None:
        self._plain: Array = np.random.default_rng(_SEED).normal(size=(PLAIN, _SETS * _WAVES)) / _LENGTH
        self._tools: dict[str | None, tuple[Array, Singles]] = {}
        self._weights = np.zeros((_SETS, _WIDTH, 1))
        self._doubt = np.zeros((_SETS, _WIDTH, _WIDTH))  # covariance of the weights
        self._doubt[:] = np.diag([1.0] * (_WIDTH - 1) + [_FREE])
        self._own_doubt = np.einsum("sii->si", self._doubt)  # a view: variances of single weights
        self._change = np.empty_like(self._doubt)  # kept from one update to the next
        self._single_plain = self._plain.astype(np.float32)  # these and what follows: what `value` works with
        self._point = np.zeros(PLAIN, np.float32)
        self._into_point = self._point.data
        self._phase = np.zeros(_SETS * _WAVES, np.float32)
        self._parts: dict[tuple[str | None, float], Singles] = {}  # of phases, by tool and its share
        self._row = np.zeros(2 * _SETS * _WAVES, np.float32)  # cosines and sines of one point
        self._cosines, self._sines = self._row.reshape(2, -1)
        self._single_weights = np.zeros_like(self._row)
        self._level = 0.0  # far from all that was seen

    def value(self, plain: Sequence[float], tools: Mapping[str | None, float]) -> float:
        """What is expected at one point: the same as by `waves` and `expect`, which many points are made for.

        In single precision, where numpy's waves take a tenth of the time: that is good for six digits.
        """
        phase = self._phase
        _POINT.pack_into(self._into_point, 0, *plain)
        self._point.dot(self._single_plain, phase)
        for tool, share in tools.items():
            np.add(phase, self._part(tool, share), phase)
        np.cos(phase, self._cosines)
        np.sin(phase, self._sines)
        return self._level + float(self._row.dot(self._single_weights))

    def waves(self, plain: Sequence[Sequence[float]], tools: Sequence[Mapping[str | None, float]]) -> Array:
        """For each set, a row of waves for each point."""
        phase = self._phases(plain, tools).reshape(len(plain), _SETS, _WAVES).swapaxes(0, 1)
        rows = np.empty((_SETS, len(plain), _WIDTH))
        rows[:, :, :_WAVES] = np.cos(phase)
        rows[:, :, _WAVES:-1] = np.sin(phase)
        rows[:, :, :-1] *= _SCALE
        rows[:, :, -1] = 1.0
        return rows

    def expect(self, waves: Array) -> Array:
        """The value at each point."""
        values: Array = np.add.reduce((waves @ self._weights)[:, :, 0], axis=0) / _SETS
        return values

    def _phases(self, plain: Sequence[Sequence[float]], tools: Sequence[Mapping[str | None, float]]) -> Array:
        """A row of phases for each point: its coordinates' part, and each tool's."""
        phases: Array = np.array(plain, dtype=np.float64) @ self._plain
        for tool in {tool: None for shares in tools for tool in shares}:
            phases += np.array([[shares.get(tool, 0.0)] for shares in tools]) * self._direction(tool)[0]
        return phases

    def add(self, waves: Array, values: Array) -> None:
        """Take in points with their values."""
        for first in range(0, len(values), _CHUNK):
            self._update(waves[:, first : first + _CHUNK], values[first : first + _CHUNK])
        waved = self._weights[:, :-1, 0].reshape(_SETS, 2, _WAVES).swapaxes(0, 1)
        self._single_weights[:] = waved.ravel() * (_SCALE / _SETS)
        self._level = float(self._weights[:, -1, 0].mean())

    def _update(self, waves: Array, values: Array) -> None:
        """One step of the Kalman filter whose state is the weights."""
        count = len(values)
        self._own_doubt += _DRIFT * count
        seen = waves @ self._doubt
        gain = np.linalg.solve(seen @ waves.swapaxes(1, 2) + np.eye(count), seen).swapaxes(1, 2)
        self._weights += gain @ (values[:, None] - waves @ self._weights)
        doubt, change = self._doubt, self._change
        doubt -= np.matmul(gain, seen, out=change)
        np.add(doubt, doubt.swapaxes(1, 2), out=change)  # rounding would make it lopsided
        np.multiply(change, 0.5, out=doubt)

    def _part(self, tool: str | None, share: float) -> Singles:
        """What a tool adds to a point's phases; kept, as shares are of few calls and come again."""
        found = self._parts.get((tool, share))
        if found is None:
            if len(self._parts) == _MOST_PARTS:
                self._parts.clear()
            found = self._parts[tool, share] = self._direction(tool)[1] * np.float32(share)
        return found

    def _direction(self, tool: str | None) -> tuple[Array, Singles]:
        """A tool's direction, in either precision; it follows from its name, so it depends on no order."""
        found = self._tools.get(tool)
        if found is None:
            seed = (_SEED, crc32((tool or "").encode()))
            drawn: Array = np.random.default_rng(seed).normal(size=_SETS * _WAVES) / _LENGTH
            found = self._tools[tool] = drawn, drawn.astype(np.float32)
        return found
