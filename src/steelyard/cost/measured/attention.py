"""Attention: the tiles of a batch are simulated, and corrected by the most similar measured batches.

`batch` predicts a batch whose lengths are all known. The engine only knows the number of its decodes, their cached
tokens in all and the longest, so it uses summaries: `decodes` and `prefill`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import log2
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.bundle import Row
from steelyard.cost.measured.correction import Correction
from steelyard.cost.measured.prefill import MeasuredPrefill
from steelyard.cost.measured.tiles import HeadShape, batch_load, even_decodes, tile_costs
from steelyard.cost.measured.uneven import unevenness
from steelyard.cost.points import Mask, PointTable
from steelyard.cost.source import EXTRAPOLATED, INTERPOLATED, MEASURED, Curve, Floats
from steelyard.hardware import Gpu
from steelyard.model import AttentionOperator, AttentionShape

Kind = Literal["decodes", "prompt", "any"]
Places = dict[HeadShape, NDArray[np.int64]]  # of points, by shape

_LENGTHS = np.array([32, 64, 128, 192, 256, 384, 512, 768, *(1024 << i for i in range(8))], dtype=np.float64)
_ENOUGH = 150  # points of similar shapes to correct by; chosen
_NOT_PLAIN = ("window", "kv_bytes", "pool")


@dataclass(frozen=True)
class MeasuredAttention:
    """Times of attention batches from measured ones."""

    points: Sequence[Row]
    gpu: Gpu
    _corrections: dict[tuple[HeadShape, Kind, float], Correction] = field(default_factory=dict)
    _decodes: dict[tuple[AttentionShape, int | None, float, float], MeasuredDecodes] = field(default_factory=dict)

    def batch(self, shape: HeadShape, queries: Sequence[int], keys: Sequence[int], kv_bytes: float = 2) -> float:
        """Seconds of a batch whose lengths are all known."""
        load = batch_load(shape, queries, keys, self.gpu.sms)
        correction = self._correction(shape, _kind(queries), kv_bytes)
        return 1e-6 * load.microseconds(tile_costs(shape.dim)) * correction.of_batch(shape, queries, keys, load)

    def decodes(self, operator: AttentionOperator, kv_bytes: float, overhead: float = 0.0) -> MeasuredDecodes:
        """Seconds of a step's decodes; ``overhead`` is what each kernel takes longer inside a layer."""
        key = operator.decode, operator.window, kv_bytes, overhead
        if key not in self._decodes:
            self._decodes[key] = self._find_decodes(operator, kv_bytes, overhead)
        return self._decodes[key]

    def _find_decodes(self, operator: AttentionOperator, kv_bytes: float, overhead: float) -> MeasuredDecodes:
        shape = _shape(operator.decode)
        return MeasuredDecodes(
            shape,
            self._correction(shape, "decodes", kv_bytes),
            self.gpu.sms,
            *_lengths(operator),
            measured=shape in self._rows(kv_bytes),
            most_requests=self._most_requests,
            overhead=overhead,
        )

    def prefill(self, operator: AttentionOperator, kv_bytes: float) -> MeasuredPrefill:
        """Seconds of a step's prompt chunks."""
        shape = _shape(operator.prefill)
        provenance = INTERPOLATED if shape in self._rows(kv_bytes) else EXTRAPOLATED
        correction = self._correction(shape, "prompt", kv_bytes)
        return MeasuredPrefill(shape, correction, self.gpu.sms, operator.window, provenance)

    @property
    def lack(self) -> str | None:
        """What there is too little of to predict a time."""
        if not self.points:
            return None
        for cache, places in (("16-bit", self._plain), *((("8-bit", self._eight_bit),) if self._eight_bit else ())):
            batches = (batch for at in places.values() for batch in self._columns.columns["queries"].cells(at))
            kinds = {_kind(queries) for queries in batches}
            for kind, what in (("decodes", "decodes"), ("prompt", "one prompt")):
                if kind not in kinds:
                    return f"no batch of {what} alone over a {cache} cache is measured"
        return None

    def _correction(self, shape: HeadShape, kind: Kind, kv_bytes: float) -> Correction:
        """The correction from batches of this kind of the most similar shapes."""
        key = shape, kind, kv_bytes
        if key not in self._corrections:
            by_shape = self._rows(kv_bytes)
            rows: list[tuple[HeadShape, Row]] = []
            for near in _by_distance(shape, by_shape):
                here = self._columns.rows(by_shape[near])
                rows += [(near, row) for row in here if kind == "any" or _kind(row["queries"]) == kind]
                if len(rows) >= _ENOUGH:
                    break
            self._corrections[key] = Correction.of(rows, self.gpu.sms)
        return self._corrections[key]

    def _rows(self, kv_bytes: float) -> Places:
        return self._plain if kv_bytes != 1 or not self._eight_bit else self._eight_bit

    @cached_property
    def _columns(self) -> PointTable:
        return PointTable.of(self.points)

    @cached_property
    def _plain(self) -> Places:
        """Batches over a 16-bit cache without a window."""
        return _by_shape(self._columns, ~self._columns.has(*_NOT_PLAIN))

    @cached_property
    def _eight_bit(self) -> Places:
        return _by_shape(self._columns, self._columns.are("kv_bytes", 1))

    @cached_property
    def _most_requests(self) -> int:
        return int(self._columns.columns["keys"].lengths.max())


@dataclass(frozen=True)
class MeasuredDecodes:
    """Decodes of different lengths, over the cached tokens of all."""

    shape: HeadShape
    correction: Correction
    sms: int
    lengths: Floats  # cached tokens of a request that are tabulated
    worked_on: Floats  # how many of them are read
    measured: bool  # whether batches of exactly this shape were measured
    most_requests: int  # of any measured batch
    overhead: float
    _curves: dict[int, Curve] = field(default_factory=dict)

    def curve(self, requests: int) -> Curve:
        if requests not in self._curves:
            self._curves[requests] = self._curve(requests)
        return self._curves[requests]

    def _curve(self, requests: int) -> Curve:
        even = even_decodes(self.shape, requests, self.worked_on, self.sms)
        correction = self.correction.of_even_decodes(self.shape, requests, self.worked_on, even)
        seconds = 1e-6 * correction * even.smooth * unevenness(self.shape, requests, self.worked_on, self.sms)
        provenance = MEASURED if requests == 1 and self.measured else INTERPOLATED
        if requests > self.most_requests:
            provenance = EXTRAPOLATED
        rising = (np.maximum.accumulate(seconds) + self.overhead).tolist()
        return Curve(tuple((requests * self.lengths).tolist()), tuple(rising), provenance)


def _by_distance(shape: HeadShape, shapes: Iterable[HeadShape]) -> list[HeadShape]:
    """The most similar first."""

    def apart(other: HeadShape) -> float:
        pairs = ((shape.sharing, other.sharing), (shape.kv_heads, other.kv_heads), (shape.dim, other.dim))
        return sum(abs(log2(ours / theirs)) for ours, theirs in pairs)

    return sorted(shapes, key=apart)


def _kind(queries: Sequence[int]) -> Kind:
    if max(queries) == 1:
        return "decodes"
    return "prompt" if len(queries) == 1 else "any"


def _shape(shape: AttentionShape) -> HeadShape:
    return HeadShape(shape.heads, shape.kv_heads, shape.qk_dim)


def _lengths(operator: AttentionOperator) -> tuple[Floats, Floats]:
    """Cached tokens of a request to tabulate, and how many of them are read.

    A full window reaches into one more block than its tokens fill.
    """
    if operator.window is None:
        return _LENGTHS, _LENGTHS
    lengths = np.array([*_LENGTHS[operator.window > _LENGTHS], float(operator.window)])
    worked_on = lengths.copy()
    worked_on[-1] += tile_costs(operator.decode.qk_dim).small_keys
    return lengths, worked_on


def _by_shape(points: PointTable, chosen: Mask) -> Places:
    """Places of the chosen points by shape, shapes in the order of measurement."""
    found: dict[HeadShape, list[int]] = defaultdict(list)
    dimensions = (points.array(name)[chosen].tolist() for name in ("heads", "kv_heads", "dim"))
    for place, *shape in zip(np.flatnonzero(chosen).tolist(), *dimensions, strict=True):
        found[HeadShape(*shape)].append(place)
    return {shape: np.array(places) for shape, places in found.items()}
