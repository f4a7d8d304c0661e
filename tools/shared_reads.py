"""What a decode kernel gains where requests of a batch share their prefixes: run on a GPU with torch and Triton.

Prints, for batches out of 48 prompts answered eight times each, mixed and side by side: the mean context, the share of
reads that are of a block read before, the share of the kernel's time that goes if those blocks are the same, and what
`cost/shared_reads.py` foretells.
The kernel reads a paged cache of the shape of Llama-3.1-8B with one block of threads to a multiprocessor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from steelyard.cost.shared_reads import SharedReads
from steelyard.hardware import find_gpu

_BLOCKS, _BLOCK, _GROUPS, _EACH = 57000, 16, 48, 8
_TOKEN_BYTES = 4096


@triton.jit  # type: ignore[misc]
def _decode(q, kv, tables, lengths, out, width):  # type: ignore[no-untyped-def]
    i = tl.program_id(0)
    b, h = i // 8, i % 8
    n = tl.load(lengths + b)
    d, t, r = tl.arange(0, 128), tl.arange(0, 64), tl.arange(0, 16)
    rows = (b * 32 + h * 4 + r[:, None] % 4) * 128 + d[None, :]
    queries = tl.load(q + rows)
    top = tl.full([16], -1e9, tl.float32)
    total = tl.zeros([16], tl.float32)
    sums = tl.zeros([16, 128], tl.float32)
    for start in range(0, n, 64):
        at = start + t
        block = tl.load(tables + b * width + at // 16, mask=at < n, other=0).to(tl.int64)
        where = ((block * 16 + at % 16) * 8 + h) * 256
        keys = tl.load(kv + where[None, :] + d[:, None])
        scores = tl.where(at[None, :] < n, tl.dot(queries, keys) * 0.088, -1e9)
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        scale = tl.exp(top - higher)
        total = total * scale + tl.sum(weights, 1)
        values = tl.load(kv + where[:, None] + 128 + d[None, :])
        sums = sums * scale[:, None] + tl.dot(weights.to(tl.bfloat16), values)
        top = higher
    tl.store(out + rows, (sums / total[:, None]).to(tl.bfloat16))


def _microseconds(cache: Any, batch: Any, shared: bool) -> float:
    """Of a batch with a row of (tokens, prompt, tokens of that) to each request."""
    need = -(-batch[:, 0] // _BLOCK)
    tables = np.zeros((len(batch), need.max()), np.int32)
    order, at = np.random.RandomState(0).permutation(_BLOCKS), 0
    first: dict[int, int] = {}  # request of each prompt
    for i, (_, prompt, common) in enumerate(batch):
        tables[i, : need[i]] = order[at : at + need[i]]
        at += need[i]
        if shared:
            whole = common // _BLOCK
            tables[i, :whole] = tables[first.setdefault(prompt, i), :whole]
    blocks, lengths = torch.tensor(tables).cuda(), torch.tensor(batch[:, 0].astype(np.int32)).cuda()
    q = torch.randn(len(batch), 32, 128, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(q)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for i in range(130):
        if i == 30:
            begin.record()
        _decode[(8 * len(batch),)](q, cache, blocks, lengths, out, tables.shape[1], num_warps=4, num_stages=6)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 10


def main() -> None:
    """Print the table."""
    dice, reads = np.random.RandomState(5), SharedReads.of(find_gpu("h200"), _TOKEN_BYTES)
    cache = torch.randn(_BLOCKS * _BLOCK * 8 * 32, device="cuda", dtype=torch.bfloat16).repeat(8)
    for n, answer in ((128, 60), (128, 200), (128, 450), (96, 700), (64, 900), (40, 1100)):
        prompts = np.clip(np.exp(dice.normal(5.95, 0.6, _GROUPS)), 60, 2000).astype(int)
        every = [(p + int(dice.gamma(2.0, answer / 2.0)), g, p) for g, p in enumerate(prompts) for _ in range(_EACH)]
        for how in ("mixed", "mixed", "side by side"):
            batch = np.array(every)[dice.permutation(len(every))[:n] if how == "mixed" else np.arange(40, 40 + n)]
            _, members, holders = np.unique(batch[:, 1], return_index=True, return_counts=True)
            common = batch[members, 2] // _BLOCK * _BLOCK
            again, tokens = int((common * (holders - 1)).sum()), int(batch[:, 0].sum())
            foretold = reads.spared(tokens, int(common[holders > 1].sum()), again).tokens / tokens
            apart, together = (min(_microseconds(cache, batch, s) for _ in range(2)) for s in (False, True))
            gained = f"{1 - together / apart:.1%} of {apart:.0f} us gained, {foretold:.1%} foretold"
            print(f"{n} {how}: {tokens / n:.0f} tokens each, {again / tokens:.0%} read again, {gained}")


if __name__ == "__main__":
    main()
