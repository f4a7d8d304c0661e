"""Attention: decodes by their number and cached tokens, prefills by their number and query-key pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from steelyard.cost import source
from steelyard.cost.interpolate import line, rising
from steelyard.cost.silicon.database import Column, Database, Origin, Value, seconds
from steelyard.cost.source import EXTRAPOLATED, INTERPOLATED, MEASURED, Curve, Floats
from steelyard.model import AttentionOperator

Lines = dict[int, tuple[Floats, Floats]]  # requests -> work of all of them, seconds


@dataclass(frozen=True)
class AttentionKernel:
    """The key of an attention table; ``kv_heads`` and ``dim`` are 0 for MLA."""

    heads: int
    kv_heads: int
    dim: int
    window: int  # 0 is none
    kv_dtype: str


@dataclass(frozen=True)
class DecodeTimes:
    """Decode attention of one kernel."""

    lines: Lines
    scale: float  # bytes of one of our cached tokens over those of the measured kernel
    exact: bool

    def curve(self, requests: int) -> Curve:
        """Between two measured batch sizes, time is linear in the requests at the same total of cached tokens."""
        counts = sorted(self.lines)
        if requests > counts[-1]:
            grow = requests / counts[-1]
            kv, time = self.lines[counts[-1]]
            return Curve(tuple(kv * grow / self.scale), tuple(time * grow), EXTRAPOLATED)
        upper = next(n for n in counts if n >= requests)
        if upper == requests:
            kv, time = self.lines[upper]
            return Curve(tuple(kv / self.scale), tuple(time), MEASURED if self.exact else INTERPOLATED)
        lower = max(n for n in counts if n < requests)
        part = (requests - lower) / (upper - lower)
        kv = np.union1d(self.lines[lower][0], self.lines[upper][0])
        time = (1 - part) * line(kv, *self.lines[lower]) + part * line(kv, *self.lines[upper])
        return Curve(tuple(kv / self.scale), tuple(time), INTERPOLATED)


@dataclass(frozen=True)
class PrefillTimes:
    """Prefill attention of one kernel.

    The tables only have whole prompts with nothing cached before them. A chunk with context takes as long as a prompt
    with as many query-key pairs; the chunks of a step as long as equally many prompts with their mean pairs. The tables
    have no decodes beside prompts either; decodes add what they take alone.
    """

    lines: Lines  # over the pairs of one prompt
    scale: float
    window: int
    provenance: int

    def seconds(self, chunks: Sequence[tuple[int, int]]) -> float:
        pairs = sum(_pairs(tokens, before, self.window) for tokens, before in chunks) / len(chunks)
        counts = sorted(self.lines)
        lower = max((n for n in counts if n <= len(chunks)), default=counts[0])
        upper = min((n for n in counts if n >= len(chunks)), default=None)
        below = self._alike(lower, pairs)
        if upper is None:
            return self.scale * below * len(chunks) / lower
        if upper == lower:
            return self.scale * below
        part = (len(chunks) - lower) / (upper - lower)
        return self.scale * ((1 - part) * below + part * self._alike(upper, pairs))

    def together(self, chunks: Sequence[tuple[int, int]], decodes: source.Decodes) -> None:
        return None

    def _alike(self, count: int, pairs: float) -> float:
        return float(line(np.array([pairs]), *self.lines[count])[0])


def find_decodes(database: Database, operator: AttentionOperator, kv_bytes: float) -> tuple[DecodeTimes, Origin] | None:
    """Decode attention from the first table that has the operator's kind."""
    family, table, wanted = _asked(operator, kv_bytes, "generation")
    for origin in database.origins(family, table):
        nearest = _nearest(origin, wanted)
        if nearest is not None:
            lines = _decode_lines(origin, nearest)
            per_token = wanted.kv_heads * wanted.dim / (nearest.kv_heads * nearest.dim) if wanted.dim else 1.0
            return DecodeTimes(lines, per_token, nearest == wanted), origin
    return None


def find_prefills(
    database: Database, operator: AttentionOperator, kv_bytes: float
) -> tuple[PrefillTimes, Origin] | None:
    """Prefill attention from the first table that has the operator's kind."""
    family, table, wanted = _asked(operator, kv_bytes, "context")
    for origin in database.origins(family, table):
        nearest = _nearest(origin, wanted)
        if nearest is not None:
            work = wanted.heads * (wanted.dim or 1) / (nearest.heads * (nearest.dim or 1))
            provenance = INTERPOLATED if nearest == wanted else EXTRAPOLATED
            return PrefillTimes(_prefill_lines(origin, nearest), work, nearest.window, provenance), origin
    return None


def _asked(operator: AttentionOperator, kv_bytes: float, phase: str) -> tuple[str, str, AttentionKernel]:
    """Family, table and kernel that answer for an operator."""
    dtype = "fp8" if kv_bytes == 1 else "bfloat16"
    shape = operator.prefill if phase == "context" else operator.decode
    if operator.attention == "mla":
        return "mla", f"{phase}_mla_perf", AttentionKernel(shape.heads, 0, 0, 0, dtype)
    kernel = AttentionKernel(shape.heads, shape.kv_heads, shape.qk_dim, operator.window or 0, dtype)
    return "attention", f"{phase}_attention_perf", kernel


@cache
def _kernels(origin: Origin) -> tuple[AttentionKernel, ...]:
    """Every kernel of a table."""
    if not origin.has("head_dim"):
        latent = origin.read("num_heads", "kv_cache_dtype")
        kinds = set(zip(latent["num_heads"].tolist(), latent["kv_cache_dtype"].tolist(), strict=True))
        return tuple(AttentionKernel(heads, 0, 0, 0, dtype) for heads, dtype in sorted(kinds))
    columns = ("num_heads", "num_key_value_heads", "head_dim", "window_size", "kv_cache_dtype")
    if origin.has("window_size"):
        keys = set(zip(*(column.tolist() for column in origin.read(*columns).values()), strict=True))
    else:
        plain = origin.read(*(column for column in columns if column != "window_size"))
        keys = {(*sizes, 0, dtype) for *sizes, dtype in zip(*(each.tolist() for each in plain.values()), strict=True)}
    return tuple(AttentionKernel(*key) for key in sorted(keys))


def _nearest(origin: Origin, wanted: AttentionKernel) -> AttentionKernel | None:
    """The most similar measured kernel with the same cache type, and with a window if the wanted one has one."""

    def distance(kernel: AttentionKernel) -> tuple[float, float]:
        sides = ((kernel.heads, wanted.heads), (kernel.kv_heads, wanted.kv_heads), (kernel.dim, wanted.dim))
        apart = sum(abs(float(np.log2((a or 1) / (b or 1)))) for a, b in sides)
        return abs(float(np.log2((kernel.window or 1) / (wanted.window or 1)))), apart

    alike = [each for each in _kernels(origin) if each.kv_dtype == wanted.kv_dtype]
    alike = [each for each in alike if bool(each.window) == bool(wanted.window)]
    return min(alike, key=distance, default=None)


def _rows(origin: Origin, kernel: AttentionKernel, *columns: str) -> dict[str, Column]:
    if not kernel.dim:
        return origin.read(*columns, num_heads=kernel.heads, kv_cache_dtype=kernel.kv_dtype)
    windows: dict[str, Value] = {"window_size": kernel.window} if origin.has("window_size") else {}
    return origin.read(
        *columns,
        num_heads=kernel.heads,
        num_key_value_heads=kernel.kv_heads,
        head_dim=kernel.dim,
        kv_cache_dtype=kernel.kv_dtype,
        **windows,
    )


@cache
def _decode_lines(origin: Origin, kernel: AttentionKernel) -> Lines:
    """A request longer than the window takes as long as the longest; up to it, time grows with its tokens."""
    table = _rows(origin, kernel, "batch_size", "step", "latency")
    cached = table["step"].astype(np.float64) + 1
    lines = {}
    for requests, here in _batches(table["batch_size"]):
        each, time = cached[here], seconds(table["latency"][here])
        if kernel.window and (each > kernel.window).any():
            outgrown = each > kernel.window
            plateau = float(np.median(time[outgrown]))
            short = each < kernel.window
            each, time = np.append(each[short], kernel.window), np.append(time[short], plateau)
        if len(each) > 1:
            lines[requests] = rising(each * requests, time)
    return lines


@cache
def _prefill_lines(origin: Origin, kernel: AttentionKernel) -> Lines:
    table = _rows(origin, kernel, "batch_size", "isl", "step", "latency")
    lines = {}
    for requests, here in _batches(table["batch_size"]):
        whole = here & (table["step"] == 0)
        pairs = np.array([_pairs(int(tokens), 0, kernel.window) for tokens in table["isl"][whole]])
        if len(pairs) > 1:
            lines[requests] = rising(pairs, seconds(table["latency"][whole]))
    return lines


def _batches(sizes: Column) -> Iterator[tuple[int, Column]]:
    for size in np.unique(sizes).tolist():
        yield int(size), sizes == size


def _pairs(tokens: int, before: int, window: int) -> float:
    """Query-key pairs: a token attends to itself and the tokens before it, within the window."""
    if not window or before + tokens <= window:
        return tokens * before + tokens * (tokens + 1) / 2
    growing = max(0, window - before)
    return growing * before + growing * (growing + 1) / 2 + (tokens - growing) * window
