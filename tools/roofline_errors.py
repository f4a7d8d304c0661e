"""The roofline against a shipped profile: `python -m tools.roofline_errors h200`.

For each efficiency of `cost/roofline.py` prints what share of the peak the measured kernels reach, and how far off the
roofline's times are. Only points of at least 50 µs count, in which a kernel's start matters little. `docs/profiles.md`
has the table.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from steelyard.cost.bundle import Bundle, Row, shipped_bundle
from steelyard.cost.roofline import (
    ATTENTION_ARITHMETIC,
    ATTENTION_MEMORY,
    ELEMENTWISE_MEMORY,
    GEMM_ARITHMETIC,
    GEMM_MEMORY,
    GROUPED_ARITHMETIC,
    GROUPED_MEMORY,
    Roofline,
)
from steelyard.errors import UserError
from steelyard.hardware import Gpu, find_gpu
from steelyard.model import AttentionOperator, AttentionShape, Elementwise, Gemm, GroupedGemm

LEAST_SECONDS = 50e-6
EFFICIENCIES = {
    "gemm, arithmetic": GEMM_ARITHMETIC,
    "gemm, memory": GEMM_MEMORY,
    "experts, arithmetic": GROUPED_ARITHMETIC,
    "experts, memory": GROUPED_MEMORY,
    "attention, arithmetic": ATTENTION_ARITHMETIC,
    "attention, memory": ATTENTION_MEMORY,
    "elementwise, memory": ELEMENTWISE_MEMORY,
}


class Ideal(NamedTuple):
    """Seconds of a kernel at the peak rates, and by the roofline."""

    family: str
    arithmetic: float
    memory: float
    predicted: float


class Against(NamedTuple):
    """One measured kernel: what bounds it, the share of that bound it reaches, and the roofline's relative error."""

    bound: str
    reached: float
    error: float


def compare(ideal: Ideal, seconds: float) -> Against:
    """What bounds a kernel is what takes longer with the roofline's efficiencies."""
    arithmetic = EFFICIENCIES.get(f"{ideal.family}, arithmetic", 1.0)
    memory = EFFICIENCIES[f"{ideal.family}, memory"]
    error = ideal.predicted / seconds - 1
    if ideal.arithmetic / arithmetic > ideal.memory / memory:
        return Against(f"{ideal.family}, arithmetic", ideal.arithmetic / seconds, error)
    return Against(f"{ideal.family}, memory", ideal.memory / seconds, error)


def gemm(row: Row, gpu: Gpu) -> Ideal:
    """A 16-bit matrix multiplication."""
    m, n, k = row["m"], row["n"], row["k"]
    predicted = Roofline(gpu).rows(Gemm("any", k, n, 2.0, "bf16"), np.array([float(m)])).seconds[0]
    moved = 2.0 * (n * k + m * k + m * n)
    return Ideal("gemm", 2.0 * m * n * k / gpu.peak("bf16"), moved / gpu.memory_bandwidth, float(predicted))


def experts(row: Row, gpu: Gpu) -> Ideal:
    """Both matrices of routed experts, with activation and sum."""
    m, count, top_k, hidden, inter = (row[key] for key in ("m", "experts", "top_k", "hidden", "inter"))
    up = GroupedGemm("up", hidden, 2 * inter, count, top_k, 2.0, "bf16")
    down = GroupedGemm("down", inter, hidden, count, top_k, 2.0, "bf16")
    small = (Elementwise("experts_act", 6 * top_k * inter), Elementwise("experts_sum", 2 * (top_k + 1) * hidden))
    rows, roofline = np.array([float(m)]), Roofline(gpu)
    predicted = sum(float(roofline.rows(each, rows).seconds[0]) for each in (up, down, *small))
    read = float(up.touched(rows)[0]) * 6.0 * hidden * inter
    moved = read + m * sum(each.bytes for each in small)
    return Ideal(
        "experts", 6.0 * m * top_k * hidden * inter / gpu.peak("bf16"), moved / gpu.memory_bandwidth, predicted
    )


def attention(row: Row, gpu: Gpu) -> Ideal:
    """Decodes over their caches, or whole prompts."""
    heads, kv_heads, dim = row["heads"], row["kv_heads"], row["dim"]
    shape = AttentionShape(heads, kv_heads, dim, dim)
    operator = AttentionOperator("attention", "gqa", shape, shape, 2 * kv_heads * dim, None, "bf16")
    keys, roofline = sum(row["keys"]), Roofline(gpu)
    memory = keys * 4.0 * kv_heads * dim / gpu.memory_bandwidth
    chunks = [(query, key - query) for query, key in zip(row["queries"], row["keys"], strict=True)]
    pairs = sum(tokens * before + tokens * (tokens + 1) // 2 for tokens, before in chunks)
    if max(row["queries"]) == 1:
        predicted = float(roofline.decode_attention(operator, 2.0).curve(len(chunks)).at(np.array([float(keys)]))[0])
    else:
        predicted = roofline.prefill_attention(operator, 2.0).seconds(chunks)
    return Ideal("attention", pairs * shape.flops_per_pair / gpu.peak("bf16"), memory, predicted)


def elementwise(row: Row, gpu: Gpu) -> Ideal:
    """A norm with the residual added: two rows read, two written."""
    operator = Elementwise("norm", 8 * row["width"])
    predicted = float(Roofline(gpu).rows(operator, np.array([float(row["m"])])).seconds[0])
    return Ideal("elementwise", 0.0, row["m"] * operator.bytes / gpu.memory_bandwidth, predicted)


FAMILIES = {"gemm": gemm, "moe": experts, "attention": attention, "norm": elementwise}


def comparisons(bundle: Bundle, gpu: Gpu) -> Iterator[Against]:
    """Every plain point that is long enough: no window, small cache or skew, and not prompts among decodes."""
    for family, ideal_of in FAMILIES.items():
        for row in bundle.families.get(family, []):
            queries = row.get("queries", [1])
            plain = not any(row.get(key) for key in ("window", "kv_bytes", "zipf", "carried"))
            if plain and row["us"] * 1e-6 >= LEAST_SECONDS and (max(queries) == 1 or min(queries) > 1):
                yield compare(ideal_of(row, gpu), row["us"] * 1e-6)


def table(found: list[Against]) -> str:
    """As Markdown, in the order of the efficiencies."""
    by_bound: dict[str, list[Against]] = defaultdict(list)
    for each in found:
        by_bound[each.bound].append(each)
    lines = [
        "| bound by | efficiency | points | reached: 10th, 50th, 90th percentile | roofline's median error | bias |",
        "| --- | --: | --: | --: | --: | --: |",
    ]
    for bound, efficiency in EFFICIENCIES.items():
        points = by_bound[bound]
        if points:
            reached = ", ".join(
                f"{value:.2f}" for value in np.percentile([each.reached for each in points], (10, 50, 90))
            )
            errors = np.array([each.error for each in points])
            error = f"{np.median(np.abs(errors)):.0%} | {errors.mean():+.0%}"
            lines.append(f"| {bound} | {efficiency:.2f} | {len(points):,} | {reached} | {error} |")
    return "\n".join(lines)


def main(name: str) -> None:
    """Print the table for the bundle shipped for a GPU."""
    bundle = shipped_bundle(name)
    if bundle is None:
        raise UserError(f"no profile is shipped for {name!r}; one can be measured with `steelyard profile`")
    print(table(list(comparisons(bundle, find_gpu(name)))))


if __name__ == "__main__":
    main(*sys.argv[1:2])
