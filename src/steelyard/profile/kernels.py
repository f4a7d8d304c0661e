"""The operators under measurement, as calls on fresh data; with vLLM's kernels where it is installed.

Weights and caches rotate through more memory than the GPU's cache holds, as they do in a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from steelyard.profile.timer import Call

Point = dict[str, Any]

_ROTATE_BYTES = 256 << 20
_MOST_COPIES = 24
_BLOCK = 16


def _vllm() -> Any | None:
    """vLLM's kernels, or None where it is not installed."""
    try:
        import vllm._custom_ops
        import vllm.vllm_flash_attn
    except ImportError:
        return None
    return vllm


VLLM = _vllm()


def _copies(size: float) -> int:
    return max(1, min(_MOST_COPIES, math.ceil(_ROTATE_BYTES / max(size, 1))))


def _random(*shape: int) -> Any:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.1


def gemm(p: Point) -> list[Call]:
    """m rows through a linear layer of k inputs and n outputs."""
    m, n, k = p["m"], p["n"], p["k"]
    x = _random(m, k)
    weights = [_random(n, k) for _ in range(_copies(2.0 * n * k))]
    return [lambda w=w: F.linear(x, w) for w in weights]  # type: ignore[misc]


def attention(p: Point) -> list[Call]:
    """One attention call over a paged cache: ``queries`` and ``keys`` tokens for each request."""
    queries, keys = p["queries"], p["keys"]
    heads, kv_heads, dim = p["heads"], p["kv_heads"], p["dim"]
    total = sum(queries)
    q = _random(total, heads, dim)
    blocks = [math.ceil(k / _BLOCK) for k in keys]
    need = sum(blocks)
    copies = _copies(4.0 * need * _BLOCK * kv_heads * dim)
    pool = need * copies
    cache = _random(2, pool, _BLOCK, kv_heads, dim)
    starts = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], device="cuda", dtype=torch.int32)
    lengths = torch.tensor(keys, device="cuda", dtype=torch.int32)
    calls: list[Call] = []
    for copy in range(copies):
        order = (torch.randperm(need) + copy * need).to(torch.int32)
        table = torch.zeros(len(keys), max(blocks), dtype=torch.int32)
        at = 0
        for row, count in enumerate(blocks):
            table[row, :count] = order[at : at + count]
            at += count
        calls.append(_flash(q, cache, starts, lengths, table.cuda(), max(queries), max(keys), p))
    return calls


def _flash(q: Any, cache: Any, starts: Any, lengths: Any, table: Any, longest: int, most: int, p: Point) -> Call:
    from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata

    out = torch.empty_like(q)
    plan = get_scheduler_metadata(
        batch_size=len(lengths),
        max_seqlen_q=longest,
        max_seqlen_k=most,
        num_heads_q=p["heads"],
        num_heads_kv=p["kv_heads"],
        headdim=p["dim"],
        cache_seqlens=lengths,
        qkv_dtype=torch.bfloat16,
        cu_seqlens_q=starts,
        page_size=_BLOCK,
        causal=True,
        num_splits=32 if longest == 1 else 0,
    )
    return lambda: flash_attn_varlen_func(
        q=q,
        k=cache[0],
        v=cache[1],
        out=out,
        cu_seqlens_q=starts,
        max_seqlen_q=longest,
        seqused_k=lengths,
        max_seqlen_k=most,
        softmax_scale=p["dim"] ** -0.5,
        causal=True,
        block_table=table,
        scheduler_metadata=plan,
        num_splits=32 if longest == 1 else 0,
        fa_version=3,
    )


def moe(p: Point) -> list[Call]:
    """Routed experts over m tokens: gate, up and down of the chosen ones, with a given skew of the routing."""
    from vllm.model_executor.layers.fused_moe import fused_experts

    m, experts, chosen = p["m"], p["experts"], p["top_k"]
    x = _random(m, p["hidden"])
    w1 = _random(experts, 2 * p["inter"], p["hidden"])
    w2 = _random(experts, p["hidden"], p["inter"])
    odds = torch.arange(1, experts + 1, device="cuda", dtype=torch.float32) ** -float(p.get("zipf", 0.0))
    calls: list[Call] = []
    for _ in range(8):
        shuffled = odds[torch.randperm(experts, device="cuda")]
        ids = torch.multinomial(shuffled.expand(m, -1), chosen).to(torch.int32)
        scale = torch.full((m, chosen), 1.0 / chosen, device="cuda", dtype=torch.float32)
        calls.append(lambda ids=ids, scale=scale: fused_experts(x, w1, w2, scale, ids))  # type: ignore[misc]
    return calls


def norm(p: Point) -> list[Call]:
    """Residual add and RMS norm of m rows."""
    m, width = p["m"], p["width"]
    weight = _random(width)
    rows = [(_random(m, width), _random(m, width)) for _ in range(_copies(4.0 * m * width))]
    return [lambda x=x, r=r: torch.ops._C.fused_add_rms_norm(x, r, weight, 1e-6) for x, r in rows]  # type: ignore[misc]


def gated_act(p: Point) -> list[Call]:
    """SiLU of the gate times up: 2 x width in, width out."""
    m, width = p["m"], p["width"]
    rows = [(_random(m, 2 * width), _random(m, width)) for _ in range(_copies(6.0 * m * width))]
    return [lambda x=x, y=y: torch.ops._C.silu_and_mul(y, x) for x, y in rows]  # type: ignore[misc]


def rope(p: Point) -> list[Call]:
    """Rotary embedding of q and k."""
    m, heads, kv_heads, dim = p["m"], p["heads"], p["kv_heads"], p["dim"]
    positions = torch.arange(m, device="cuda")
    table = _random(max(m, 4096), dim)
    rows = [(_random(m, heads * dim), _random(m, kv_heads * dim)) for _ in range(4)]
    return [
        lambda q=q, k=k: torch.ops._C.rotary_embedding(positions, q, k, dim, table, True)  # type: ignore[misc]
        for q, k in rows
    ]


def kv_write(p: Point) -> list[Call]:
    """New keys and values into the paged cache."""
    m, kv_heads, dim = p["m"], p["kv_heads"], p["dim"]
    k, v = _random(m, kv_heads, dim), _random(m, kv_heads, dim)
    pool = math.ceil(m / _BLOCK) * 4 + 4
    cache = _random(2, pool, _BLOCK, kv_heads, dim)
    slots = torch.randperm(pool * _BLOCK, device="cuda")[:m].to(torch.int64)
    one = torch.ones((), device="cuda", dtype=torch.float32)
    write = torch.ops._C_cache_ops.reshape_and_cache_flash
    return [lambda: write(k, v, cache[0], cache[1], slots, "auto", one, one)]


def sampler(p: Point) -> list[Call]:
    """Softmax, noise and pick over float32 logits of m rows, as for plain random sampling."""
    m, vocab = p["m"], p["vocab"]
    logits = [_random(m, vocab) for _ in range(_copies(2.0 * m * vocab))]

    def sample(x: Any) -> Any:
        probabilities = torch.softmax(x.float(), dim=-1)
        noise = torch.empty_like(probabilities).exponential_(1.0)
        return probabilities.div_(noise).argmax(dim=-1)

    return [lambda x=x: sample(x) for x in logits]  # type: ignore[misc]


def greedy(p: Point) -> list[Call]:
    """The largest of m rows of logits, as for greedy sampling."""
    m, vocab = p["m"], p["vocab"]
    logits = [_random(m, vocab) for _ in range(_copies(2.0 * m * vocab))]
    return [lambda x=x: x.float().argmax(dim=-1) for x in logits]  # type: ignore[misc]


def copy(p: Point) -> list[Call]:
    """Read and write a buffer of so many bytes on the GPU."""
    source = torch.empty(p["bytes"], device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return [lambda: target.copy_(source)]


def tiny(p: Point) -> list[Call]:
    """The smallest kernel there is: its time in a graph is the gap between kernels, launched it is the launch."""
    x = torch.zeros(1, device="cuda")
    return [lambda: x.add_(1.0)] * 64


KERNELS: dict[str, Callable[[Point], list[Call]]] = {
    "gemm": gemm,
    "attention": attention,
    "moe": moe,
    "norm": norm,
    "gated_act": gated_act,
    "rope": rope,
    "kv_write": kv_write,
    "sampler": sampler,
    "greedy": greedy,
    "copy": copy,
    "tiny": tiny,
}
