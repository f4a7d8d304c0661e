"""Which points are measured: shapes of a model list and a generic grid, so that any model can be predicted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from steelyard.model import Gemm, head_operators, load_model, operators

Point = dict[str, Any]

MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "llama-3.1-70b", "qwen2.5-7b", "qwen3-8b", "mixtral-8x7b", "gpt-oss-20b")
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
SIDES = (512, 1024, 2048, 4096, 8192, 16384, 32768)
SHAPES = ((32, 8, 128), (32, 4, 128), (64, 8, 128), (8, 1, 128), (28, 4, 128), (64, 8, 64))
EXPERTS = ((128, 8, 2048, 768), (8, 2, 4096, 14336), (64, 6, 2048, 1408), (32, 4, 2880, 2880))
FEW_ROWS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
MOST_KEYS = 1 << 20  # cached tokens of one measured batch


def points() -> Iterator[Point]:
    """Every point, the most useful families first."""
    yield {"op": "tiny"}
    for size in (1 << 20, 1 << 24, 1 << 28, 1 << 32):
        yield {"op": "copy", "bytes": size}
    yield from _gemms()
    yield from _decodes()
    yield from _prefills()
    yield from _uneven()
    yield from _experts()
    yield from _small()


def _gemms() -> Iterator[Point]:
    shapes = {(n, k) for n in SIDES for k in SIDES if n * k <= 1 << 29}
    for name in MODELS:
        model = load_model(name)
        for tp in (1, 2, 4):
            found = [op for layer in model.layers for op in operators(model, layer, tp)]
            shapes |= {(op.n, op.k) for op in (*found, *head_operators(model, tp)) if isinstance(op, Gemm)}
    for n, k in sorted(shapes):
        for m in ROWS:
            if m <= 1024 or n < 1 << 16:
                yield {"op": "gemm", "m": m, "n": n, "k": k}


def _attention(shape: tuple[int, int, int], queries: list[int], keys: list[int]) -> Point:
    heads, kv_heads, dim = shape
    return {"op": "attention", "heads": heads, "kv_heads": kv_heads, "dim": dim, "queries": queries, "keys": keys}


def _decodes() -> Iterator[Point]:
    for shape in SHAPES:
        for n in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            for each in (64, 256, 1024, 2048, 4096, 8192, 16384, 32768):
                if n * each <= MOST_KEYS:
                    yield _attention(shape, [1] * n, [each] * n)


def _prefills() -> Iterator[Point]:
    for shape in SHAPES:
        for tokens in (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192):
            for before in (0, 512, 2048, 8192, 32768):
                yield _attention(shape, [tokens], [before + tokens])


def _uneven() -> Iterator[Point]:
    """Batches as they come: decodes of mixed lengths, several prompts at once, prompts among decodes."""
    dice = random.Random(1)
    for shape in SHAPES[:2]:
        for n in (8, 32, 64, 128, 256):
            for median, sigma in ((500, 1.0), (2000, 1.0), (1000, 0.5)):
                keys = [max(16, min(32768, int(dice.lognormvariate(0, sigma) * median))) for _ in range(n)]
                yield _attention(shape, [1] * n, keys)
                for tokens in (9, 256, 1500):
                    yield _attention(shape, [1] * n + [tokens], [*keys, tokens])
        for count in (2, 4, 8):
            yield _attention(shape, [256] * count, [256] * count)
            yield _attention(shape, [100 * (i + 1) for i in range(count)], [100 * (i + 1) for i in range(count)])


def _experts() -> Iterator[Point]:
    for experts, top_k, hidden, inter in EXPERTS:
        base = {"op": "moe", "experts": experts, "top_k": top_k, "hidden": hidden, "inter": inter}
        for m in ROWS:
            yield {**base, "m": m, "zipf": 0.0}
        for m in (16, 128, 1024):
            yield {**base, "m": m, "zipf": 0.8}


def _small() -> Iterator[Point]:
    for m in FEW_ROWS:
        for width in (1024, 2048, 4096, 8192):
            yield {"op": "norm", "m": m, "width": width}
        for width in (768, 4096, 6144, 14336):
            yield {"op": "gated_act", "m": m, "width": width}
        yield {"op": "rope", "m": m, "heads": 32, "kv_heads": 8, "dim": 128}
        yield {"op": "kv_write", "m": m, "kv_heads": 8, "dim": 128}
        if m <= 256:
            for vocab in (32000, 128256, 151936):
                yield {"op": "sampler", "m": m, "vocab": vocab}
                yield {"op": "greedy", "m": m, "vocab": vocab}
