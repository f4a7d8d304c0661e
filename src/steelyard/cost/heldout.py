"""How well a profile predicts points that were held out of it: the error of each family of operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.cost.bundle import Bundle, Row
from steelyard.cost.measured import MeasuredSource
from steelyard.cost.measured.tiles import HeadShape
from steelyard.cost.roofline import Roofline
from steelyard.cost.source import Decodes, Floats, Provenance
from steelyard.hardware import Gpu
from steelyard.model import AttentionOperator, AttentionShape, Gemm, GroupedGemm

ALL = "all"
SUMMED_UP = "as the engine asks"  # with the lengths of decodes summed up
_LEAST_MICROSECONDS = 20.0


@dataclass(frozen=True)
class HeldOutError:
    """Relative errors (predicted over measured, less one) of the held-out points of one kind."""

    family: str
    kind: str
    points: int
    median: float  # of the absolute values, as is the next
    p95: float
    bias: float  # mean of the signed errors


def held_out_errors(bundle: Bundle, gpu: Gpu) -> list[HeldOutError]:
    """For matrices, attention and experts, by kind and over all."""
    source = MeasuredSource(gpu, bundle)
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for family, errors_of in _FAMILIES.items():
        for kind, error in errors_of(source, bundle.held_out.get(family, [])):
            found[family, kind].append(error)
            if SUMMED_UP not in kind:
                found[family, ALL].append(error)
    return [_summary(family, kind, np.array(errors)) for (family, kind), errors in sorted(found.items())]


def held_out_by_class(bundle: Bundle, gpu: Gpu) -> Iterator[tuple[str, Provenance, float]]:
    """Family, class and relative error of held-out points: by the profile, and by the roofline alone.

    Points shorter than 20 µs are left out: most of their time is a kernel's start, and they make little of a step.
    """
    source, roofline = MeasuredSource(gpu, bundle), Roofline(gpu)
    for family, errors_of in _FAMILIES.items():
        rows = [row for row in bundle.held_out.get(family, []) if row["us"] >= _LEAST_MICROSECONDS]
        for kind, error in errors_of(source, rows):
            if SUMMED_UP not in kind:
                yield _CALLED[family], "extrapolated" if kind.startswith("other") else "interpolated", error
        for row in rows:
            yield _CALLED[family], "analytic", _error(_at_roofline(family, row, roofline), row)


def _at_roofline(family: str, row: Row, roofline: Roofline) -> float:
    """Seconds of a point by the roofline."""
    if family == "gemm":
        matrix = Gemm("matrix", k=row["k"], n=row["n"], weight_bytes=2.0, compute="bf16")
        return float(roofline.rows(matrix, np.array([float(row["m"])])).seconds[0])
    if family == "moe":
        own = {"experts": row["experts"], "top_k": row["top_k"], "weight_bytes": 2.0, "compute": "bf16"}
        up = GroupedGemm("experts_gate_up", k=row["hidden"], n=2 * row["inter"], **own)
        down = GroupedGemm("experts_down", k=row["inter"], n=row["hidden"], **own)
        return sum(float(roofline.rows(each, np.array([float(row["m"])])).seconds[0]) for each in (up, down))
    heads = AttentionShape(row["heads"], row["kv_heads"], row["dim"], row["dim"])
    operator = AttentionOperator("attention", "gqa", heads, heads, 2 * heads.kv_heads * heads.qk_dim, None, "bf16")
    pairs = list(zip(row["queries"], row["keys"], strict=True))
    decodes = [float(keys) for queries, keys in pairs if queries == 1]
    chunks = [(queries, keys - queries) for queries, keys in pairs if queries > 1]
    alone = roofline.decode_attention(operator, 2).curve(len(decodes))
    seconds = float(alone.at(np.array([sum(decodes)]))[0]) if decodes else 0.0
    return seconds + (roofline.prefill_attention(operator, 2).seconds(chunks) if chunks else 0.0)


def _summary(family: str, kind: str, errors: Floats) -> HeldOutError:
    median, p95 = np.percentile(np.abs(errors), [50, 95]).tolist()
    return HeldOutError(family, kind, len(errors), median, p95, float(errors.mean()))


def _gemms(source: MeasuredSource, rows: Sequence[Row]) -> Iterator[tuple[str, float]]:
    known = {(row["n"], row["k"]) for row in source.matrices.points}
    for row in rows:
        shape = row["n"], row["k"]
        seconds = source.matrices.seconds(*shape, np.array([float(row["m"])])).seconds[0]
        yield "measured matrices, other rows" if shape in known else "other matrices", _error(seconds, row)


def _experts(source: MeasuredSource, rows: Sequence[Row]) -> Iterator[tuple[str, float]]:
    known = {(row["experts"], row["top_k"], row["hidden"], row["inter"]) for row in source.experts.points}
    for row in rows:
        shape = row["experts"], row["top_k"], row["hidden"], row["inter"]
        seconds = source.experts.seconds(shape, np.array([float(row["m"])])).seconds[0]
        kind = "measured experts, other rows" if shape in known else "other experts"
        yield "skewed routing" if row["zipf"] else kind, _error(seconds, row)


def _attention(source: MeasuredSource, rows: Sequence[Row]) -> Iterator[tuple[str, float]]:
    known = {(row["heads"], row["kv_heads"], row["dim"]) for row in source.attention.points}
    for row in rows:
        shape = HeadShape(row["heads"], row["kv_heads"], row["dim"])
        queries, keys = row["queries"], row["keys"]
        decodes = [key for query, key in zip(queries, keys, strict=True) if query == 1]
        chunks = [(query, key - query) for query, key in zip(queries, keys, strict=True) if query > 1]
        kind = _kind(decodes, chunks) if shape in known else "other heads"
        yield kind, _error(source.attention.batch(shape, queries, keys), row)
        if kind in ("uneven decodes", "prompts among decodes", "several prompts"):
            yield f"{kind}, {SUMMED_UP}", _error(_summed_up(source, shape, decodes, chunks), row)


def _kind(decodes: list[int], chunks: list[tuple[int, int]]) -> str:
    if decodes and chunks:
        return "prompts among decodes"
    if chunks:
        return "one prompt" if len(chunks) == 1 else "several prompts"
    return "even decodes" if len(set(decodes)) == 1 else "uneven decodes"


def _summed_up(source: MeasuredSource, shape: HeadShape, decodes: list[int], chunks: list[tuple[int, int]]) -> float:
    heads = AttentionShape(shape.heads, shape.kv_heads, shape.dim, shape.dim)
    operator = AttentionOperator("attention", "gqa", heads, heads, 2 * shape.kv_heads * shape.dim, None, "bf16")
    if chunks:
        whole = Decodes(len(decodes), sum(decodes), max(decodes)) if decodes else None
        prefill = source.attention.prefill(operator, 2)
        return prefill.seconds(chunks) if whole is None else prefill.together(chunks, whole)
    curve = source.attention.decodes(operator, 2).curve(len(decodes))
    return float(curve.at(np.array([float(sum(decodes))]))[0])


def _error(seconds: float, row: Row) -> float:
    return float(seconds / (row["us"] * 1e-6) - 1.0)


_FAMILIES = {"gemm": _gemms, "attention": _attention, "moe": _experts}
_CALLED = {"gemm": "gemm", "attention": "attention", "moe": "experts"}  # families as costs call them
