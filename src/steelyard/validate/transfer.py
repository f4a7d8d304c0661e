"""Transferred operator times against NVIDIA's tables of the GPU that they were transferred to.

Matrices, attention and experts are asked for at the points of a table, or a fixed random share of its shapes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from random import Random

import numpy as np

from steelyard.cost.silicon import Database, Silicon, find_database
from steelyard.cost.source import CostSource, Floats
from steelyard.cost.transferred import SIBLINGS, Transferred
from steelyard.hardware import find_gpu, topology_of
from steelyard.model import AttentionOperator, AttentionShape, Gemm, GroupedGemm
from steelyard.sim.sources import shipped

_SHAPES = 300  # of a table, drawn at random
_SEED = 0
_WIDEST = 65536  # columns or inner size of a matrix; larger ones are in no model
_EVEN = "power_law_1.01"  # the tables' routing that is nearest to an even one
_TYPES = {"bfloat16": (2.0, "bf16"), "fp8": (1.0, "fp8")}
_CACHED_BYTES = {"bfloat16": 2.0, "fp8": 1.0}

Errors = dict[str, list[float]]  # by kind of operator


def matrices(database: Database, source: CostSource, shapes: int) -> Iterator[tuple[str, float]]:
    """Predicted over measured seconds, with the kind of operator."""
    for origin in database.origins("gemm", "gemm_perf")[:1]:
        for dtype, (weight, compute) in _TYPES.items():
            table = origin.read("n", "k", "m", "latency", gemm_dtype=dtype)
            for (n, k), here in _shapes(shapes, table["n"], table["k"]):
                if max(n, k) > _WIDEST:
                    continue
                gemm = Gemm("matrix", k=int(k), n=int(n), weight_bytes=weight, compute=compute)
                rows = table["m"][here].astype(np.float64)
                found = source.rows(gemm, rows)
                if found is not None:
                    yield from _ratios(f"matrices, {dtype}", found.seconds, table["latency"][here])


def decodes(database: Database, source: CostSource, shapes: int) -> Iterator[tuple[str, float]]:
    """Decode attention."""
    names = ("num_heads", "num_key_value_heads", "head_dim", "batch_size", "step", "latency")
    for origin in database.origins("attention", "generation_attention_perf")[:1]:
        for dtype, size in _CACHED_BYTES.items():
            table = origin.read(*names, kv_cache_dtype=dtype, window_size=0)
            for (heads, kv_heads, dim, batch), here in _shapes(shapes, *(table[name] for name in names[:4])):
                found = source.decode_attention(_operator(heads, kv_heads, dim), size)
                if found is not None:
                    cached = (table["step"][here] + 1.0) * batch
                    yield from _ratios(
                        f"decodes, {dtype} cache", found.curve(int(batch)).at(cached), table["latency"][here]
                    )


def prompts(database: Database, source: CostSource, shapes: int) -> Iterator[tuple[str, float]]:
    """Attention of whole prompts."""
    names = ("num_heads", "num_key_value_heads", "head_dim", "batch_size", "isl", "latency")
    for origin in database.origins("attention", "context_attention_perf")[:1]:
        table = origin.read(*names, kv_cache_dtype="bfloat16", window_size=0, step=0)
        for (heads, kv_heads, dim, batch), here in _shapes(shapes, *(table[name] for name in names[:4])):
            found = source.prefill_attention(_operator(heads, kv_heads, dim), 2.0)
            if found is not None:
                times = [found.seconds([(int(tokens), 0)] * int(batch)) for tokens in table["isl"][here]]
                yield from _ratios("prompts", np.array(times), table["latency"][here])


def experts(database: Database, source: CostSource, shapes: int) -> Iterator[tuple[str, float]]:
    """Routed experts as a whole."""
    names = ("hidden_size", "inter_size", "moe_tp_size", "topk", "num_experts", "num_tokens", "latency")
    for origin in database.origins("moe", "moe_perf")[:1]:
        for dtype, (weight, compute) in _TYPES.items():
            table = origin.read(*names, moe_dtype=dtype, moe_ep_size=1, distribution=_EVEN)
            for (hidden, inter, parts, top_k, count), here in _shapes(shapes, *(table[name] for name in names[:5])):
                layer = GroupedGemm(
                    "experts_gate_up",
                    k=int(hidden),
                    n=2 * int(inter) // int(parts),
                    experts=int(count),
                    top_k=int(top_k),
                    weight_bytes=weight,
                    compute=compute,
                )
                found = source.rows(layer, table["num_tokens"][here].astype(np.float64))
                if found is not None:
                    yield from _ratios(f"experts, {dtype}", found.seconds, table["latency"][here])


FAMILIES: tuple[Callable[[Database, CostSource, int], Iterator[tuple[str, float]]], ...] = (
    matrices,
    decodes,
    prompts,
    experts,
)


def errors_of(database: Database, source: CostSource, shapes: int = _SHAPES) -> Errors:
    """Relative errors (predicted over measured, less one) by kind of operator, over this many shapes of each."""
    found: Errors = defaultdict(list)
    for family in FAMILIES:
        for kind, ratio in family(database, source, shapes):
            found[kind].append(ratio - 1.0)
    return dict(found)


def transfer_errors(gpu: str, shapes: int = _SHAPES) -> tuple[Errors, Errors, Errors] | None:
    """Three errors by kind of operator; None if NVIDIA's tables are not installed.

    - The sibling's profile that ships with us, transferred, against the tables of the GPU.
    - That profile against the tables of its own GPU: how far two ways of measuring one GPU are apart.
    - The sibling's tables, transferred, against the tables of the GPU: the error of the transfer alone.
    """
    here, there, profile = find_database(gpu), find_database(SIBLINGS[gpu]), shipped(SIBLINGS[gpu])
    if here is None or there is None or profile is None:
        return None
    target, donor = find_gpu(gpu), find_gpu(SIBLINGS[gpu])
    tables = Silicon(donor, topology_of(donor), there)
    return (
        errors_of(here, Transferred(target, profile, donor), shapes),
        errors_of(there, profile, shapes),
        errors_of(here, Transferred(target, tables, donor), shapes),
    )


def _ratios(kind: str, seconds: Floats, milliseconds: Floats) -> Iterator[tuple[str, float]]:
    for predicted, measured in zip(seconds.tolist(), milliseconds.tolist(), strict=True):
        if measured > 0:
            yield kind, predicted / (measured * 1e-3)


def _shapes(most: int, *columns: Floats) -> Iterator[tuple[tuple[float, ...], Floats]]:
    """Distinct shapes, with the places of their points."""
    keys = np.stack(columns, axis=1) if len(columns[0]) else np.zeros((0, len(columns)))
    distinct, place = np.unique(keys, axis=0, return_inverse=True)
    order = list(range(len(distinct)))
    Random(_SEED).shuffle(order)
    for i in sorted(order[:most]):
        yield tuple(distinct[i].tolist()), place == i


def _operator(heads: float, kv_heads: float, dim: float) -> AttentionOperator:
    shape = AttentionShape(int(heads), int(kv_heads), int(dim), int(dim))
    return AttentionOperator("attention", "gqa", shape, shape, 2 * shape.kv_heads * shape.qk_dim, None, "bf16")
