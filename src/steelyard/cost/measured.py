"""The measured source: a profile of the GPU, read by what governs each operator's time.

Between measured points time is interpolated over what the hardware sees: rows for a known matrix, bytes for
element-wise work, cached tokens for attention. A matrix that was not measured takes the share of the roofline that its
nearest neighbours reach. What the profile lacks comes from the analytic source, and is called so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from steelyard.cost.bundle import Bundle, Row
from steelyard.cost.source import (
    EXTRAPOLATED,
    INTERPOLATED,
    MEASURED,
    Curve,
    Estimate,
    Floats,
    PrefillAttention,
    RowOperator,
)
from steelyard.hardware import Gpu
from steelyard.model import AttentionOperator, Elementwise, Gemm, GroupedGemm

_NEIGHBOURS = 4
_IDEAL_SECONDS = 2e-6  # start of a kernel, in the roofline that shares are taken of
_BY_NAME = {
    "act": "gated_act",
    "experts_act": "gated_act",
    "shared_act": "gated_act",
    "rope": "rope",
    "kv_write": "kv_write",
}
_IN_THE_EXPERTS = ("experts_down", "experts_act", "experts_sum")  # measured together with experts_gate_up


@dataclass(frozen=True)
class Measured:
    """Operator times from a bundle, in bf16; it knows nothing of other types, latent attention or collectives."""

    gpu: Gpu
    bundle: Bundle

    @property
    def name(self) -> str:
        return f"profile of {self.bundle.about['gpu']}"

    def rows(self, operator: RowOperator, rows: Floats) -> Estimate | None:
        if isinstance(operator, Gemm) and operator.weight_bytes == 2:
            return self._gemm(operator, rows)
        if isinstance(operator, GroupedGemm | Elementwise) and operator.name in _IN_THE_EXPERTS:
            return Estimate.all_of(np.zeros_like(rows), INTERPOLATED)
        if isinstance(operator, GroupedGemm) and operator.weight_bytes == 2:
            return self._experts(operator, rows)
        if isinstance(operator, Elementwise):
            return self._elementwise(operator, rows)
        return None

    # -- matrices -----------------------------------------------------------------------------------------------

    @cached_property
    def _matrices(self) -> dict[tuple[int, int], tuple[Floats, Floats]]:
        """(n, k) -> measured rows and seconds."""
        found: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
        for row in self.bundle.families["gemm"]:
            found[row["n"], row["k"]].append((row["m"], row["us"] * 1e-6))
        return {shape: _columns(points) for shape, points in found.items()}

    def _gemm(self, gemm: Gemm, rows: Floats) -> Estimate:
        exact = self._matrices.get((gemm.n, gemm.k))
        if exact is not None:
            return _along(rows, *exact)
        shapes = np.array(list(self._matrices))
        distance = np.abs(np.log2(shapes / np.array([gemm.n, gemm.k]))).sum(axis=1)
        nearest = np.argsort(distance, kind="stable")[:_NEIGHBOURS]
        weights = 1.0 / distance[nearest] ** 2
        share = np.zeros_like(rows)
        beyond = np.zeros(len(rows), dtype=bool)
        for i, weight in zip(nearest, weights / weights.sum(), strict=True):
            n, k = (int(side) for side in shapes[i])
            there = _along(rows, *self._matrices[n, k])
            share += weight * there.seconds / self._ideal(n, k, rows)
            beyond |= there.provenance == EXTRAPOLATED
        inside = (shapes.min(axis=0) <= (gemm.n, gemm.k)).all() and (shapes.max(axis=0) >= (gemm.n, gemm.k)).all()
        provenance = np.where(beyond | (not inside), EXTRAPOLATED, INTERPOLATED).astype(np.int8)
        seconds = np.where(rows > 0, share * self._ideal(gemm.n, gemm.k, rows), 0.0)
        return Estimate(seconds, provenance)

    def _ideal(self, n: int, k: int, rows: Floats) -> Floats:
        arithmetic = 2.0 * rows * n * k / self.gpu.peak("bf16")
        memory = 2.0 * (n * k + rows * (n + k)) / self.gpu.memory_bandwidth
        return np.maximum(arithmetic, memory) + _IDEAL_SECONDS

    # -- experts ------------------------------------------------------------------------------------------------

    @cached_property
    def _experts_measured(self) -> dict[tuple[int, int, int, int], tuple[Floats, Floats]]:
        """(experts, chosen, hidden, intermediate) -> measured rows and seconds, with even routing."""
        found: dict[tuple[int, int, int, int], list[tuple[float, float]]] = defaultdict(list)
        for row in self.bundle.families["moe"]:
            if not row["zipf"]:
                found[row["experts"], row["top_k"], row["hidden"], row["inter"]].append((row["m"], row["us"] * 1e-6))
        return {shape: _columns(points) for shape, points in found.items()}

    def _experts(self, gemm: GroupedGemm, rows: Floats) -> Estimate:
        wanted = (gemm.experts, gemm.top_k, gemm.k, gemm.n // 2)
        exact = self._experts_measured.get(wanted)
        if exact is not None:
            return _along(rows, *exact)
        shapes = list(self._experts_measured)
        distance = np.abs(np.log2(np.array(shapes) / np.array(wanted))).sum(axis=1)
        nearest = shapes[int(np.argmin(distance))]
        there = _along(rows, *self._experts_measured[nearest])
        scale = self._experts_ideal(wanted, rows) / self._experts_ideal(nearest, rows)
        return Estimate.all_of(there.seconds * scale, EXTRAPOLATED)

    def _experts_ideal(self, shape: tuple[int, int, int, int], rows: Floats) -> Floats:
        experts, chosen, hidden, inter = shape
        touched = experts * (1.0 - (1.0 - chosen / experts) ** rows)
        arithmetic = 6.0 * rows * chosen * hidden * inter / self.gpu.peak("bf16")
        memory = 6.0 * touched * hidden * inter / self.gpu.memory_bandwidth
        return np.maximum(arithmetic, memory) + _IDEAL_SECONDS

    # -- element-wise -------------------------------------------------------------------------------------------

    @cached_property
    def _small(self) -> dict[str, tuple[Floats, Floats]]:
        """Family -> bytes moved and seconds."""
        moved: dict[str, Callable[[Row], float]] = {
            "norm": lambda row: 8 * row["m"] * row["width"],
            "gated_act": lambda row: 6 * row["m"] * row["width"],
            "rope": lambda row: 4 * row["m"] * (row["heads"] + row["kv_heads"]) * row["dim"],
            "kv_write": lambda row: 8 * row["m"] * row["kv_heads"] * row["dim"],
            "greedy": lambda row: 14 * row["m"] * row["vocab"],
        }
        return {
            family: _rising(*_columns([(size(row), row["us"] * 1e-6) for row in self.bundle.families[family]]))
            for family, size in moved.items()
        }

    def _elementwise(self, operator: Elementwise, rows: Floats) -> Estimate:
        family = "greedy" if operator.kind == "sampling" else _BY_NAME.get(operator.name, "norm")
        found = _along(rows * operator.bytes, *self._small[family])
        return Estimate(np.where(rows > 0, found.seconds, 0.0), found.provenance)

    # -- attention ----------------------------------------------------------------------------------------------

    @cached_property
    def _decodes(self) -> dict[tuple[int, int, int], dict[int, tuple[Floats, Floats]]]:
        """Shape -> requests -> cached tokens of all, seconds."""
        found: dict[tuple[int, int, int], dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
        for row in self.bundle.families["attention"]:
            if set(row["queries"]) == {1} and len(set(row["keys"])) == 1:
                found[_shape(row)][len(row["keys"])].append((sum(row["keys"]), row["us"] * 1e-6))
        return {shape: {n: _rising(*_columns(p)) for n, p in by.items()} for shape, by in found.items()}

    @cached_property
    def _unevenness(self) -> dict[tuple[int, int, int], float]:
        """Shape -> how much longer batches of mixed lengths took than even ones with as many cached tokens.

        Requests of a batch are seldom of one length, and the longest holds the kernel up; the median over measured
        batches of lognormal lengths stands for all. Shapes without such batches take the median of those with.
        """
        ratios: dict[tuple[int, int, int], list[float]] = defaultdict(list)
        for row in self.bundle.families["attention"]:
            keys = row["keys"]
            if set(row["queries"]) == {1} and len(set(keys)) > 1:
                even = _on(np.array([float(sum(keys))]), *self._decodes[_shape(row)][len(keys)])[0]
                ratios[_shape(row)].append(row["us"] * 1e-6 / float(even))
        overall = float(np.median([ratio for each in ratios.values() for ratio in each]))
        return {shape: float(np.median(ratios[shape])) if shape in ratios else overall for shape in self._decodes}

    def decode_attention(self, operator: AttentionOperator, kv_bytes: float, requests: int) -> Curve | None:
        if operator.attention == "mla":
            return None
        even = self._even_decode(operator, kv_bytes, requests)
        if requests == 1:
            return even
        uneven = self._unevenness[self._nearest(operator, kv_bytes)[0]]
        return Curve(even.kv, tuple(second * uneven for second in even.seconds), max(even.provenance, INTERPOLATED))

    def _even_decode(self, operator: AttentionOperator, kv_bytes: float, requests: int) -> Curve:
        shape, scale, exact = self._nearest(operator, kv_bytes)
        curves = self._decodes[shape]
        counts = sorted(curves)
        if requests > counts[-1]:
            grow = requests / counts[-1]
            kv, seconds = curves[counts[-1]]
            return Curve(tuple(kv * grow / scale), tuple(seconds * grow), EXTRAPOLATED)
        upper = next(n for n in counts if n >= requests)
        if upper == requests:
            kv, seconds = curves[upper]
            return Curve(tuple(kv / scale), tuple(seconds), MEASURED if exact else INTERPOLATED)
        lower = max(n for n in counts if n < requests)
        part = (requests - lower) / (upper - lower)
        kv = np.unique(np.concatenate([curves[lower][0], curves[upper][0]]))
        seconds = (1 - part) * _on(kv, *curves[lower]) + part * _on(kv, *curves[upper])
        return Curve(tuple(kv / scale), tuple(seconds), INTERPOLATED)

    def _nearest(self, operator: AttentionOperator, kv_bytes: float) -> tuple[tuple[int, int, int], float, bool]:
        """The measured shape most alike, and how many of its bytes one of our cached tokens is worth."""
        ours = (operator.decode.heads, operator.decode.kv_heads, operator.decode.qk_dim)
        shapes = list(self._decodes)
        distance = np.abs(np.log2(np.array(shapes) / np.array(ours))).sum(axis=1)
        shape = shapes[int(np.argmin(distance))]
        scale = operator.kv_elements * kv_bytes / (4.0 * shape[1] * shape[2])
        return shape, scale, shape == ours and kv_bytes == 2

    def prefill_attention(self, operator: AttentionOperator, kv_bytes: float) -> PrefillAttention | None:
        if operator.attention == "mla":
            return None
        shape, _, exact = self._nearest(operator, kv_bytes)
        rows = [
            row
            for row in self.bundle.families["attention"]
            if _shape(row) == shape and len(row["queries"]) == 1 and row["queries"][0] > 1
        ]
        return MeasuredPrefill.of(rows, operator, self.gpu, INTERPOLATED if exact else EXTRAPOLATED)


@dataclass(frozen=True)
class MeasuredPrefill:
    """Prefill attention by its share of the arithmetic peak, over (new tokens, cached tokens before them)."""

    tokens: Floats
    before: Floats
    share: Floats  # ideal over measured seconds, by tokens and before
    per_pair: float  # ideal
    window: int | None
    provenance: int

    @classmethod
    def of(cls, rows: list[Row], operator: AttentionOperator, gpu: Gpu, provenance: int) -> MeasuredPrefill:
        heads, _, dim = _shape(rows[0])
        measured_pair = 4.0 * heads * dim / gpu.peak("bf16")
        tokens = sorted({row["queries"][0] for row in rows})
        before = sorted({row["keys"][0] - row["queries"][0] for row in rows})
        share = np.zeros((len(tokens), len(before)))
        for row in rows:
            new, old = row["queries"][0], row["keys"][0] - row["queries"][0]
            pairs = new * old + new * (new + 1) / 2
            share[tokens.index(new), before.index(old)] = pairs * measured_pair / (row["us"] * 1e-6)
        return cls(
            np.log2(np.array(tokens, dtype=float)),
            np.log2(np.array(before, dtype=float) + 256),
            share,
            operator.prefill.flops_per_pair / gpu.peak(operator.compute),
            operator.window,
            provenance,
        )

    def seconds(self, chunks: Sequence[tuple[int, int]]) -> float:
        """The slowest chunk by itself, and the others at the rate of long prompts, since they fill its gaps."""
        alone, flowing = [], []
        best = float(self.share.max())
        for tokens, old in chunks:
            before = old if self.window is None else min(old, self.window)
            pairs = tokens * before + tokens * (tokens + 1) / 2
            if self.window is not None:
                pairs = min(pairs, tokens * self.window)
            ideal = pairs * self.per_pair
            alone.append(ideal / self._share_at(tokens, before))
            flowing.append(ideal / best)
        slowest = int(np.argmax(alone))
        return alone[slowest] + sum(flowing) - flowing[slowest]

    def _share_at(self, tokens: int, before: int) -> float:
        i, u = _cell(self.tokens, np.log2(tokens))
        j, v = _cell(self.before, np.log2(before + 256))
        low = self.share[i, j] * (1 - v) + self.share[i, j + 1] * v
        high = self.share[i + 1, j] * (1 - v) + self.share[i + 1, j + 1] * v
        return max(float(low * (1 - u) + high * u), 1e-4)


def _cell(knots: Floats, at: float) -> tuple[int, float]:
    i = int(np.clip(np.searchsorted(knots, at) - 1, 0, len(knots) - 2))
    return i, float(np.clip((at - knots[i]) / (knots[i + 1] - knots[i]), 0.0, 1.0))


def _shape(row: Row) -> tuple[int, int, int]:
    return row["heads"], row["kv_heads"], row["dim"]


def _columns(points: list[tuple[float, float]]) -> tuple[Floats, Floats]:
    table = np.array(sorted(points), dtype=np.float64)
    return table[:, 0], table[:, 1]


def _rising(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """One point per x, and never less time for more work."""
    keep = np.unique(x)
    merged = np.array([y[x == value].mean() for value in keep])
    return keep, np.maximum.accumulate(merged)


def _on(at: Floats, x: Floats, y: Floats) -> Floats:
    """Straight between points; beyond the last in proportion to the last slope, before the first flat."""
    slope = (y[-1] - y[-2]) / (x[-1] - x[-2])
    return np.where(at > x[-1], y[-1] + (at - x[-1]) * slope, np.interp(at, x, y))


def _along(at: Floats, x: Floats, y: Floats) -> Estimate:
    inside = np.where(np.isin(at, x), MEASURED, INTERPOLATED)
    provenance = np.where(at > x[-1], EXTRAPOLATED, inside).astype(np.int8)
    return Estimate(np.where(at > 0, _on(at, x, y), 0.0), provenance)
