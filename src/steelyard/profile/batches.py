"""Attention batches to measure: even and uneven decodes, single and several prompts, and mixed batches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

Point = dict[str, Any]
Shape = tuple[int, int, int]  # query heads, key heads, head size

# Requests, cached tokens, new tokens and context of the measured batches; chosen.
COUNTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
NEW = (16, 32, 64, 128, 192, 256, 384, 512, 528, 768, 1024, 1536, 2048, 3072, 4096, 8192)
BEFORE = (0, 512, 2048, 8192, 32768)
MOST_KEYS = 1 << 20  # cached tokens of one measured batch


def batch(shape: Shape, queries: list[int], keys: list[int], **more: int) -> Point:
    """A point: query and key tokens of each request."""
    heads, kv_heads, dim = shape
    dims = {"op": "attention", "heads": heads, "kv_heads": kv_heads, "dim": dim}
    return {**dims, "queries": queries, "keys": keys, **more}


def even_decodes(shape: Shape, counts: tuple[int, ...] = COUNTS, lengths: tuple[int, ...] = LENGTHS) -> list[Point]:
    """Requests of one length."""
    return [batch(shape, [1] * n, [each] * n) for n in counts for each in lengths if n * each <= MOST_KEYS]


def uneven_decodes(shape: Shape, counts: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 128, 256)) -> list[Point]:
    """Random lengths, and one request much longer than the rest."""
    dice = random.Random(f"uneven {shape}")
    found = []
    for n in counts:
        for median, sigma in ((300, 1.0), (1500, 0.5), (1500, 1.0), (3000, 1.5)):
            found.append(batch(shape, [1] * n, lognormal(dice, n, median, sigma)))
        for longest, rest in ((4096, 256), (16384, 256), (32768, 1024), (8192, 2048)):
            found.append(batch(shape, [1] * n, [longest] + [rest] * (n - 1)))
    return [point for point in found if sum(point["keys"]) <= MOST_KEYS]


def prompts(shape: Shape, new: tuple[int, ...] = NEW, before: tuple[int, ...] = BEFORE) -> list[Point]:
    """One chunk of a prompt with context before it."""
    return [batch(shape, [tokens], [old + tokens]) for tokens in new for old in before]


def prompts_together(shape: Shape) -> list[Point]:
    """Several chunks in one step."""
    dice = random.Random(f"together {shape}")
    found = []
    for count in (2, 3, 4, 8, 16):
        for tokens in (64, 128, 256, 512, 1024):
            if count * tokens <= 8192:
                found.append(batch(shape, [tokens] * count, [tokens] * count))
        for total in (1024, 2048, 8192):
            queries = _cut(dice, total, count)
            found.append(batch(shape, queries, queries))
            found.append(batch(shape, queries, [q + dice.choice((0, 512, 2048, 8192)) for q in queries]))
    return found


def mixed(shape: Shape, thorough: bool) -> list[Point]:
    """Chunks of prompts among decodes."""
    dice = random.Random(f"mixed {shape}")
    counts, lengths = ((1, 4, 16, 64, 128, 250), (256, 1024, 4096)) if thorough else ((8, 64, 200), (512, 2048))
    found = []
    for n in counts:
        for each in lengths:
            for tokens in (16, 128, 256, 512, 1024, 2000, 8000) if thorough else (64, 512, 1800):
                found.append(batch(shape, [1] * n + [tokens], [each] * n + [tokens]))
            found.append(batch(shape, [1] * n + [512], [each] * n + [4096 + 512]))
        keys = lognormal(dice, n, 1000, 1.0)
        for total, count in ((400, 2), (1500, 3), (2000, 1), (4000, 8)):
            queries = _cut(dice, total, count)
            found.append(batch(shape, [1] * n + queries, keys + queries))
    return found


def others(shape: Shape) -> Iterator[Point]:
    """A larger cache than the batch needs, 8-bit caches and sliding windows."""
    for n, each in ((8, 1024), (64, 512), (64, 2048), (256, 1024)):
        yield batch(shape, [1] * n, [each] * n, pool=MOST_KEYS)
    for n in (1, 8, 64, 256):
        for each in (256, 1024, 4096, 16384):
            if n * each <= MOST_KEYS:
                yield batch(shape, [1] * n, [each] * n, kv_bytes=1)
    for tokens in (128, 512, 2048, 8192):
        yield batch(shape, [tokens], [tokens], kv_bytes=1)


def windowed(shape: Shape, window: int) -> Iterator[Point]:
    """Layers with a sliding window."""
    for n in (1, 8, 64, 256):
        for each in (window // 2, window, 4 * window):
            yield batch(shape, [1] * n, [each] * n, window=window)
    for tokens in (128, 512, 2048, 8192):
        for old in (0, 8192):
            yield batch(shape, [tokens], [old + tokens], window=window)


def any_batch(dice: random.Random, shape: Shape, kind: str) -> Point:
    """A random batch, with sizes and lengths between those listed above.

    ``kind`` is "even", "uneven", "prompt", "prompts" or "mixed".
    """
    decodes: list[int] = []
    if kind in ("even", "uneven", "mixed"):
        n, median = round(2 ** dice.uniform(0, 8)), round(2 ** dice.uniform(7, 12))
        decodes = [median] * n if kind == "even" else lognormal(dice, n, median, dice.uniform(0.3, 1.2))
    while sum(decodes) > MOST_KEYS:
        decodes = [max(16, key // 2) for key in decodes]
    chunks = {"prompt": 1, "mixed": 1, "prompts": dice.randint(2, 8)}.get(kind, 0)
    queries = _cut(dice, round(2 ** dice.uniform(9 if chunks > 1 else 4, 13)), chunks)
    keys = [query + dice.choice((0, 0, round(2 ** dice.uniform(6, 15)))) for query in queries]
    return batch(shape, [1] * len(decodes) + queries, decodes + keys)


def lognormal(dice: random.Random, n: int, median: float, sigma: float) -> list[int]:
    """Lengths distributed like prompts and outputs."""
    return [max(16, min(32768, int(dice.lognormvariate(0, sigma) * median))) for _ in range(n)]


def _cut(dice: random.Random, total: int, count: int) -> list[int]:
    """``total`` tokens in ``count`` chunks of random sizes."""
    parts = [dice.uniform(0.2, 1.0) for _ in range(count)]
    return [max(2, round(total * part / sum(parts))) for part in parts]
