"""What shared prefixes save in attention: run on a GPU with torch and vLLM.

Times the kernel that `steelyard profile` times, over shared blocks and over as many unshared ones, and prints the share
of its time that is saved: for neighbours that share more and more, which shows the largest saving; for pairs farther
and farther apart in the batch, which shows how much may be read in between; and for batches out of 48 prompts with
eight answers each, mixed and grouped. Beside each is the prediction of `cost/shared_reads.py` with the shipped profile,
which assumes random positions, and the saving relative to the predicted time of repeated reads.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np

from steelyard.cost import MeasuredSource, shipped_bundle
from steelyard.cost.shared_reads import SharedReads
from steelyard.hardware import find_gpu
from steelyard.model import AttentionOperator, AttentionShape
from steelyard.profile.kernels import attention
from steelyard.profile.memory import arena
from steelyard.profile.timer import kernel_time

_GPU = "h200"
_HEADS = AttentionShape(32, 8, 128, 128)  # of Llama-3.1-8B
_OPERATOR = AttentionOperator("attention", "gqa", _HEADS, _HEADS, 2 * 8 * 128, None, "bf16")
_SHAPE = {"heads": 32, "kv_heads": 8, "dim": 128}
_TOKEN_BYTES = 4096
_BLOCK, _POOL = 16, 57_000 * 16  # tokens
_PROMPTS, _ANSWERS = 48, 8
_TRIES = 3  # each with its blocks elsewhere in the cache
_SETTLE_S = 0.01


class Request(NamedTuple):
    """Cached tokens, the first of which are shared with others of the same prompt."""

    tokens: int
    prompt: int
    common: int


Batch = list[Request]


def neighbours() -> Iterator[tuple[str, Batch]]:
    """128 requests, of which some neighbours share a part of their tokens."""
    for tokens in (512, 1024, 2048):
        for group in (2, 8, 128):
            for eighths in (1, 2, 4, 6, 8):
                common = tokens * eighths // 8
                yield (
                    f"{group} in a row, {eighths}/8 in common",
                    [Request(tokens, i // group, common) for i in range(128)],
                )


def pairs(dice: random.Random) -> Iterator[tuple[str, Batch]]:
    """Pairs at a given distance share about a quarter of their tokens."""
    for n, mean in ((128, 500), (128, 1000), (64, 2000)):
        for apart in (1, 2, 4, 8, 12, 16, 24, 32):
            for _ in range(3):
                lengths = [mean // 2 + int(dice.gammavariate(2.0, mean / 4)) for _ in range(n)]
                prompts = [i // (2 * apart) * apart + i % apart for i in range(n)]
                yield f"{n}, {apart} apart", [Request(x, p, mean // 2) for x, p in zip(lengths, prompts, strict=True)]


def answers(dice: random.Random) -> Iterator[tuple[str, Batch]]:
    """Batches of a rollout: later ones have longer and fewer answers."""
    for n, mean in ((128, 60), (128, 200), (128, 450), (96, 700), (64, 900), (40, 1100)):
        prompts = [min(2000, max(60, int(dice.lognormvariate(5.95, 0.6)))) for _ in range(_PROMPTS)]
        everybody = [
            Request(common + int(dice.gammavariate(2.0, mean / 2)), prompt, common)
            for prompt, common in enumerate(prompts)
            for _ in range(_ANSWERS)
        ]
        for _ in range(3):
            yield f"{n} mixed", dice.sample(everybody, n)
        yield f"{n} side by side", everybody[40 : 40 + n]


def sharing(batch: Batch) -> tuple[int, int]:
    """Tokens shared by several requests, and repeated reads of them."""
    holders: dict[int, int] = {}
    for request in batch:
        holders[request.prompt] = holders.get(request.prompt, 0) + 1
    whole = {request.prompt: request.common // _BLOCK * _BLOCK for request in batch}
    several = sum(whole[prompt] for prompt, n in holders.items() if n > 1)
    return several, sum(whole[prompt] * (n - 1) for prompt, n in holders.items())


def microseconds(batch: Batch, shared: bool) -> float:
    """Time of one layer's attention."""
    first: dict[int, int] = {}
    point = {**_SHAPE, "queries": [1] * len(batch), "keys": [request.tokens for request in batch], "pool": _POOL}
    if shared:
        point["prefixes"] = [(first.setdefault(each.prompt, i), each.common) for i, each in enumerate(batch)]
    times = []
    for _ in range(_TRIES):
        arena().reset()
        times.append(kernel_time(attention(point), _SETTLE_S).seconds)
    return statistics.median(times) * 1e6


class Predicted:
    """By the shipped profile."""

    def __init__(self) -> None:
        gpu, bundle = find_gpu(_GPU), shipped_bundle(_GPU)
        assert bundle is not None
        self._attention, self.reads = MeasuredSource(gpu, bundle).attention, SharedReads.of(gpu, _TOKEN_BYTES)

    def share(self, requests: int, tokens: int, without: int) -> float:
        """The share of the kernel's time that is saved if ``without`` of the tokens are not read."""
        curve = self._attention.decodes(_OPERATOR, 2).curve(requests)
        whole, less = curve.at(np.array([tokens, tokens - without], float))
        return float(1 - less / whole)


def main() -> None:
    """Print a line for each batch."""
    predicted, dice = Predicted(), random.Random(5)
    for what, batch in chain(neighbours(), pairs(dice), answers(dice)):
        several, again = sharing(batch)
        n, tokens = len(batch), sum(request.tokens for request in batch)
        apart, together = microseconds(batch, False), microseconds(batch, True)
        gained, added = 1 - together / apart, predicted.share(n, tokens, again)
        by_us = predicted.share(n, tokens, predicted.reads.spared(tokens, several, again).tokens)
        print(f"{what}: {tokens / n:.0f} tokens each, {again / tokens:.1%} read again, {apart:.1f} us, ", end="")
        print(f"{gained:.1%} gained, {by_us:.1%} predicted; {gained / added:.2f} of what those add", flush=True)


if __name__ == "__main__":
    main()
