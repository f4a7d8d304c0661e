"""The points to measure: shapes of the catalog's models and a generic grid, so that any model can be predicted.

Points come in series, and series in tiers of value. Within a tier the families advance together, so that an interrupted
profile has some points of every family. Within a series the load changes little, so that the GPU's clocks stay steady.
About one point in thirty is held out: off the grid, random but the same each time, measured among similar points and
never used to predict others. Rows, shapes and sizes of the grid are chosen.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, product
from typing import Any, NamedTuple

from steelyard.errors import UserError
from steelyard.model import (
    AttentionOperator,
    Gemm,
    GroupedGemm,
    Operator,
    head_operators,
    load_model,
    model_names,
    operators,
    parameters,
)
from steelyard.profile import batches

Point = dict[str, Any]
Experts = tuple[int, int, int, int]

FIRST_MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "qwen2.5-7b", "qwen3-8b", "llama-3.2-1b", "llama-3.2-3b", "qwen3-4b")
FITS_BYTES = 140e9  # weights per GPU up to which a model is expected there: the memory of an H200
# Dense where libraries change their tiles, and as far as graphs are captured, which are padded to multiples of 8.
# Larger steps rarely have such rows, except for limits such as 2,048.
SOME_ROWS = (
    *(1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128, 136, 144, 160, 176, 192, 200, 208, 224, 240, 256),
    *(272, 288, 320, 336, 352, 384, 400, 416, 448, 480, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072),
    *(4096, 6144, 8192),
)
MORE_ROWS = (88, 104, 120, 152, 168, 184, 216, 232, 248, 304, 368, 432, 464, 496)
ROWS = tuple(sorted((*SOME_ROWS, *MORE_ROWS)))
# Rows that 8 does not divide have their own kernels, the same up to the next multiple: one of seven suffices.
ODD_ROWS = (
    *(6, 13, 29, 45, 61, 69, 77, *range(93, 254, 16), *range(269, 510, 16), *range(541, 1022, 32)),
    *(*range(1085, 1790, 64), 1917, 2045, *range(2301, 3582, 256), *range(4093, 8190, 1024)),
)
BANDS = (0, 64, 256, 512, 1024, 2048, ROWS[-1])
FP8_ROWS = (1, 4, 16, 32, 64, 72, 96, 128, 136, 192, 256, 272, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 4096, 8192)
FEW_ROWS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
MOST_ROWS_OF_A_HEAD = 1024  # logits have one row per request
SIDES = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
ANY_BATCHES = 4  # random ones for every sixteen of the grid
SHAPES = ((32, 8, 128), (32, 4, 128), (28, 4, 128), (64, 8, 128), (8, 1, 128))
MORE_SHAPES = ((40, 8, 128), (16, 8, 128), (24, 8, 128), (32, 32, 128), (64, 8, 64), (16, 8, 256), (16, 2, 128))
WINDOWED = (((64, 8, 64), 128), ((16, 8, 256), 1024), ((32, 8, 128), 4096))
# Experts, top_k, hidden and intermediate size. Fused experts are tuned for each shape, by rows.
EXPERTS = ((128, 8, 2048, 768), (8, 2, 4096, 14336), (64, 6, 2048, 1408), (64, 8, 3584, 2560), (32, 4, 2880, 2880))
EXPERT_ROWS = (
    *(1, 2, 4, 6, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 104, 112, 128, 136, 160, 192, 200, 224, 256, 320, 384),
    *(392, 448, 512, 520, 640, 768, 776, 896, 1024, 1280, 1288, 1536, 1792, 2048, 2560, 3072, 4096, 6144, 8192),
)
# Whole layers: of Llama-3.1-8B and Qwen3-4B.
LAYERS = (
    {"hidden": 4096, "heads": 32, "kv_heads": 8, "dim": 128, "inter": 14336},
    {"hidden": 2560, "heads": 32, "kv_heads": 8, "dim": 128, "inter": 9728},
)
LAYER_ROWS = (1, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512)
UNKNOWN_MATRICES = 16  # of no model in the catalog, like the following
UNKNOWN_EXPERTS = ((60, 4, 2048, 1408), (16, 2, 4096, 6400), (128, 8, 2880, 1024), (64, 6, 4096, 1024))


class Series(NamedTuple):
    """Points measured in sequence, each with whether it is held out; the lowest tier is measured first."""

    tier: int
    points: list[tuple[Point, bool]]


def points() -> Iterator[tuple[Point, bool]]:
    """Every point and whether it is held out, the most useful first."""
    placed: list[tuple[float, int, Series]] = []
    seen: set[str] = set()
    for family in (_small, _gemms, _attention, _experts, _fp8):
        runs = list(family())
        for tier in sorted({run.tier for run in runs}):
            here = [run for run in runs if run.tier == tier]
            placed += [(tier + (i + 0.5) / len(here), len(placed) + i, run) for i, run in enumerate(here)]
    for _, _, run in sorted(placed, key=lambda each: each[:2]):
        for point, held_out in run.points:
            if (key := str(point)) not in seen:
                seen.add(key)
                yield point, held_out


def _plain(tier: int, points: Iterable[Point]) -> Series:
    return Series(tier, [(point, False) for point in points])


def _by_rows(tier: int, rows: Sequence[int], extra: Iterable[int], point: Callable[[int], Point]) -> Series:
    """Points of one shape, with held-out ones at further numbers of rows."""
    held_out = {m for m in extra if m <= rows[-1]} - set(rows)
    return Series(tier, [(point(m), m in held_out) for m in sorted({*rows, *held_out})])


def _catalog(wanted: type[Operator], tiers: Callable[[str, int], int | None]) -> Iterator[tuple[Any, int]]:
    """Operators of a kind in models that fit their GPUs, each with the lowest tier of its models."""
    for name in model_names():
        model = load_model(name)
        for tp in (1, 2, 4, 8):
            tier = tiers(name, tp)
            if tier is None or 2 * parameters(model).total / tp > FITS_BYTES:
                continue
            try:
                found = [op for layer in model.layers for op in operators(model, layer, tp)]
            except UserError:  # heads that cannot be split so
                continue
            for op in (*found, *head_operators(model, tp)):
                if isinstance(op, wanted):
                    yield op, tier


def _by_parallelism(name: str, tp: int) -> int:
    return 0 if name in FIRST_MODELS and tp == 1 else {1: 1, 2: 2}.get(tp, 3)


def _gemms() -> Iterator[Series]:
    """All shapes at a band of rows, then at the next, so that points with a high load follow each other."""
    tiers = {(n, k): 1 for n in SIDES for k in SIDES if n * k <= 1 << 29}
    tokens = set(tiers)
    for op, tier in _catalog(Gemm, _by_parallelism):
        shape = op.n, op.k
        tiers[shape] = min(tier, tiers.get(shape, tier))
        if op.per == "token":
            tokens.add(shape)
    dice, more = random.Random("gemm"), random.Random("more gemm")
    whole: list[Series] = []
    for (n, k), tier in tiers.items():
        most = ROWS[-1] if (n, k) in tokens else MOST_ROWS_OF_A_HEAD
        rows = sorted(m for m in (*(ROWS if tier < 3 else SOME_ROWS), *ODD_ROWS) if m <= most)
        whole.append(_by_rows(tier, rows, _any_rows(dice, 3) | _any_rows(more, 3), _gemm(n, k)))
    for _ in range(UNKNOWN_MATRICES):
        n, k = (128 * round(2 ** dice.uniform(2.5, 8)) for _ in range(2))
        whole.append(Series(1, [(_gemm(n, k)(m), True) for m in sorted(_any_rows(dice, 9))]))
    for tier, (low, high) in product(range(4), pairwise(BANDS)):
        here = (each for run in whole if run.tier == tier for each in run.points)
        yield Series(tier, [(point, held_out) for point, held_out in here if low < point["m"] <= high])


def _gemm(n: int, k: int) -> Callable[[int], Point]:
    return lambda m: {"op": "gemm", "m": m, "n": n, "k": k}


def _any_rows(dice: random.Random, count: int) -> set[int]:
    return {round(2 ** dice.uniform(0, 13)) for _ in range(count)}


def _attention() -> Iterator[Series]:
    dice, more = random.Random("attention"), random.Random("more attention")
    for tier, shapes in enumerate((SHAPES, MORE_SHAPES)):
        for shape in shapes:
            parts = {
                "even": batches.even_decodes(shape),
                "uneven": batches.uneven_decodes(shape),
                "prompt": batches.prompts(shape),
                "prompts": batches.prompts_together(shape),
                "mixed": batches.mixed(shape, thorough=shape in SHAPES[:3]),
            }
            for kind, part in parts.items():
                for at in range(0, len(part), 16):
                    run = _plain(tier, part[at : at + 16])
                    held_out = batches.any_batch(dice, shape, kind)
                    known = [batches.any_batch(more, shape, kind) for _ in range(ANY_BATCHES)]
                    yield run._replace(points=[*run.points, *((point, False) for point in known), (held_out, True)])
    yield from (_plain(1, batches.others(shape)) for shape in SHAPES[:2])
    yield from (_plain(1, batches.windowed(shape, window)) for shape, window in WINDOWED)
    rest = {
        op.decode: None for op, _ in _catalog(AttentionOperator, lambda name, tp: 0) if op.attention in ("gqa", "mfa")
    }
    for each in rest:
        shape = (each.heads, each.kv_heads, each.qk_dim)
        if shape not in (*SHAPES, *MORE_SHAPES):
            yield _plain(2, batches.even_decodes(shape, (1, 8, 32, 128), (128, 512, 2048, 8192)))
            yield _plain(2, batches.prompts(shape, (64, 256, 512, 1024, 2048, 8192), (0, 2048, 16384)))
            yield _plain(2, batches.uneven_decodes(shape, (4, 32, 128)))


def _moe(shape: Experts, zipf: float = 0.0) -> Callable[[int], Point]:
    experts, top_k, hidden, inter = shape
    base = {"op": "moe", "experts": experts, "top_k": top_k, "hidden": hidden, "inter": inter}
    return lambda m: {**base, "m": m, "zipf": zipf}


def _experts() -> Iterator[Series]:
    tiers = dict.fromkeys(EXPERTS, 0)
    for op, tier in _catalog(GroupedGemm, _by_parallelism):
        if op.weight_bytes == 2 and op.name == "experts_gate_up":
            tiers.setdefault((op.experts, op.top_k, op.k, op.n // 2), max(1, tier))
    choices = sorted({shape[:2] for shape in tiers} | {(256, 8)})
    yield _plain(0, ({"op": "topk", "m": m, "experts": e, "top_k": k} for e, k in choices for m in FEW_ROWS))
    dice = random.Random("experts")
    for shape, tier in tiers.items():
        yield _by_rows(tier, EXPERT_ROWS, _any_rows(dice, 4), _moe(shape))
        if tier < 2:
            yield _plain(tier, (_moe(shape, zipf)(m) for m in (8, 32, 128, 512, 2048) for zipf in (0.4, 0.8, 1.2)))
    for shape in UNKNOWN_EXPERTS:
        yield Series(2, [(_moe(shape)(m), True) for m in (1, 7, 40, 150, 600, 2500)])


def _small() -> Iterator[Series]:
    yield _plain(0, [{"op": "tiny"}, *({"op": "copy", "bytes": 1 << bits} for bits in (20, 24, 28, 32))])
    for shape in LAYERS:
        yield _plain(0, ({"op": "layer", "m": m, "cached": 512, **shape} for m in LAYER_ROWS))
    for m in FEW_ROWS:
        here: list[Point] = [{"op": "norm", "m": m, "width": width} for width in (1024, 2048, 4096, 8192)]
        here += [{"op": "gated_act", "m": m, "width": width} for width in (4096, 14336)]
        for heads, kv_heads in ((32, 8), (8, 1)):
            dims = {"m": m, "heads": heads, "kv_heads": kv_heads, "dim": 128}
            here += [{"op": "rope", **dims}, {"op": "qk_norm", **dims}]
        here += [{"op": "kv_write", "m": m, "kv_heads": kv_heads, "dim": 128} for kv_heads in (1, 4, 8, 32)]
        here += [{"op": "quantize", "m": m, "width": width} for width in (2048, 4096, 14336)]
        if m <= 512:
            vocabs = (32000, 128256, 151936)
            here += [{"op": op, "m": m, "vocab": vocab} for vocab in vocabs for op in ("sampler", "gumbel", "greedy")]
        yield _plain(0, here)


def _fp8() -> Iterator[Series]:
    shapes: dict[tuple[int, int], None] = {}
    for name in ("llama-3.1-8b", "llama-3.1-70b", "qwen2.5-7b", "qwen3-30b-a3b"):
        model = load_model(name)
        for tp in (1, 2):
            for layer in model.layers:
                shapes |= {(op.n, op.k): None for op in operators(model, layer, tp) if isinstance(op, Gemm)}
    shapes |= {(n, k): None for n in (1024, 4096, 16384) for k in (1024, 4096, 16384)}
    for n, k in shapes:
        if n % 16 == 0 and k % 16 == 0:
            yield _plain(1, ({"op": "gemm_fp8", "m": m, "n": n, "k": k} for m in FP8_ROWS))
