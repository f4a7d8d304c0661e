"""The measured operators, as calls on fresh data, with vLLM's kernels if it is installed.

Weights and caches rotate through more memory than the GPU's L2 cache holds, as in a model. Activations between
operators stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from steelyard.profile import compiled
from steelyard.profile.memory import arena
from steelyard.profile.timer import Call

Point = dict[str, Any]

_ROTATE_BYTES = 256 << 20  # twice the L2 cache of a B200 (126 MB)
_MOST_COPIES = 128  # of small operands; bounds the size of a graph
_BLOCK = 16  # tokens of a KV block, vLLM's default
_SPLIT_TOKENS, _SPLITS = 512, 32  # vLLM splits keys at most 32 times in steps that fit a captured graph
_FP8 = torch.float8_e4m3fn
_REPEATS = 16  # calls in one graph where operands stay the same; chosen
_POSITIONS = 4096  # rows of the table of rotary embeddings; chosen


def _vllm() -> Any | None:
    """vLLM's kernels, or None if it is not installed."""
    try:
        import vllm._custom_ops
        import vllm.vllm_flash_attn
    except ImportError:
        return None
    return vllm


VLLM = _vllm()


def _copies(size: float) -> int:
    return max(1, min(_MOST_COPIES, math.ceil(_ROTATE_BYTES / max(size, 1))))


def _fresh(*shape: int) -> Any:
    """Numbers that a kernel may overwrite."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.1


# -- matrices ---------------------------------------------------------------------------------------------------


def gemm(p: Point) -> list[Call]:
    """m rows through a linear layer of k inputs and n outputs."""
    m, n, k = p["m"], p["n"], p["k"]
    x = arena().take(m, k)
    weights = [arena().take(n, k) for _ in range(_copies(2.0 * n * k))]
    return [lambda w=w: F.linear(x, w) for w in weights]  # type: ignore[misc]


def gemm_fp8(p: Point) -> list[Call]:
    """The same with 8-bit weights and rows already quantised, one scale per row and per output."""
    m, n, k = p["m"], p["n"], p["k"]
    x = arena().take(m, k).to(_FP8)
    rows, columns = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")
    weights = [arena().take(n, k).to(_FP8).t() for _ in range(_copies(1.0 * n * k))]
    if VLLM is not None:
        multiply = VLLM._custom_ops.cutlass_scaled_mm
        return [lambda w=w: multiply(x, w, rows, columns, torch.bfloat16) for w in weights]  # type: ignore[misc]
    scaled = torch._scaled_mm
    return [
        lambda w=w: scaled(x, w, scale_a=rows, scale_b=columns, out_dtype=torch.bfloat16)  # type: ignore[misc]
        for w in weights
    ]


def quantize(p: Point) -> list[Call]:
    """m rows to 8 bits, each with its own scale."""
    m, width = p["m"], p["width"]
    rows = [arena().take(m, width) for _ in range(_copies(2.0 * m * width))]
    to_fp8 = _needed()._custom_ops.scaled_fp8_quant
    return [lambda x=x: to_fp8(x, use_per_token_if_dynamic=True) for x in rows]  # type: ignore[misc]


# -- attention --------------------------------------------------------------------------------------------------


def attention(p: Point) -> list[Call]:
    """One attention call over a paged cache: ``queries`` and ``keys`` tokens for each request.

    Blocks lie in random order in a cache no larger than needed, or of ``pool`` tokens. A token's keys and values are
    adjacent. ``kv_bytes`` 1 is an 8-bit cache, with 8-bit queries. ``prefixes`` has, for each request, the request
    whose blocks it shares (its own number for none), and for how many tokens.
    """
    queries, keys = p["queries"], p["keys"]
    heads, kv_heads, dim = p["heads"], p["kv_heads"], p["dim"]
    dtype = _FP8 if p.get("kv_bytes", 2) == 1 else torch.bfloat16
    blocks = torch.tensor([math.ceil(k / _BLOCK) for k in keys])
    need = int(blocks.sum())
    copies = _copies(4.0 * need * _BLOCK * kv_heads * dim)
    pool = max(need * copies, math.ceil(p.get("pool", 0) / _BLOCK))
    cache = arena().take(pool, _BLOCK, kv_heads, 2 * dim).to(dtype)
    q = arena().take(sum(queries), heads, dim).to(dtype)
    tables = torch.zeros(copies, len(keys), int(blocks.max()), dtype=torch.int32, device="cuda")
    order = torch.randperm(pool, device="cuda")[: copies * need].to(torch.int32)
    tables[:, torch.arange(tables.shape[2], device="cuda") < blocks.cuda()[:, None]] = order.view(copies, need)
    for request, (holder, tokens) in enumerate(p.get("prefixes", ())):
        tables[:, request, : tokens // _BLOCK] = tables[:, holder, : tokens // _BLOCK]
    batch = {
        "cu_seqlens_q": torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], device="cuda", dtype=torch.int32),
        "max_seqlen_q": max(queries),
        "max_seqlen_k": max(keys),
        "window_size": (-1, -1) if "window" not in p else (p["window"] - 1, 0),
        "num_splits": _SPLITS if sum(queries) <= _SPLIT_TOKENS else 0,
        "causal": True,
    }
    return _flash(p, q, cache, torch.tensor(keys, device="cuda", dtype=torch.int32), tables, batch)


def _flash(p: Point, q: Any, cache: Any, lengths: Any, tables: Any, batch: dict[str, Any]) -> list[Call]:
    """Attention calls with one schedule for all, as for all layers of a model."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata

    plan = get_scheduler_metadata(
        batch_size=len(lengths),
        num_heads_q=p["heads"],
        num_heads_kv=p["kv_heads"],
        headdim=p["dim"],
        cache_seqlens=lengths,
        qkv_dtype=q.dtype,
        page_size=_BLOCK,
        **batch,
    )
    scales = {}
    if q.dtype == _FP8:
        one = torch.ones(len(lengths), p["kv_heads"], device="cuda")
        scales = {"q_descale": one, "k_descale": one, "v_descale": one}
    keys, values = cache.split(p["dim"], dim=-1)
    out = torch.empty(q.shape, device="cuda", dtype=torch.bfloat16)
    return [
        lambda table=table: flash_attn_varlen_func(  # type: ignore[misc]
            q=q,
            k=keys,
            v=values,
            out=out,
            seqused_k=lengths,
            softmax_scale=p["dim"] ** -0.5,
            block_table=table,
            scheduler_metadata=plan,
            fa_version=3,
            **{**batch, "window_size": list(batch["window_size"])},
            **scales,
        )
        for table in tables
    ]


# -- experts ----------------------------------------------------------------------------------------------------


def moe(p: Point) -> list[Call]:
    """Routed experts over m tokens, from the choices to the layer's output, with a given skew of the routing.

    This includes sorting by expert, gate and up, activation, down, the sum over choices, and the copy from the
    workspace.
    """
    from vllm.model_executor.layers.fused_moe import fused_experts

    m, experts, chosen = p["m"], p["experts"], p["top_k"]
    x = arena().take(m, p["hidden"])
    w1 = arena().take(experts, 2 * p["inter"], p["hidden"])
    w2 = arena().take(experts, p["hidden"], p["inter"])
    out = torch.empty_like(x)
    odds = torch.arange(1, experts + 1, device="cuda", dtype=torch.float32) ** -float(p.get("zipf", 0.0))
    calls: list[Call] = []
    for _ in range(8):
        shuffled = odds[torch.randperm(experts, device="cuda")]
        ids = torch.multinomial(shuffled.expand(m, -1), chosen).to(torch.int32)
        scale = torch.full((m, chosen), 1.0 / chosen, device="cuda", dtype=torch.float32)
        calls.append(lambda ids=ids, scale=scale: out.copy_(fused_experts(x, w1, w2, scale, ids)))  # type: ignore[misc]
    return calls


def experts_kernel(p: Point) -> str:
    """The compiled kernel that runs the experts of m tokens: the engine has one for each tiling."""
    from vllm.model_executor.layers.fused_moe.fused_moe import try_get_optimal_moe_config

    experts, hidden, inter = p["experts"], p["hidden"], p["inter"]
    tiles = try_get_optimal_moe_config((experts, 2 * inter, hidden), (experts, hidden, inter), p["top_k"], None, p["m"])
    return "-".join(str(tiles[name]) for name in sorted(tiles))


def topk(p: Point) -> list[Call]:
    """The choice of experts: softmax over the router's scores of m tokens, and top-k."""
    m, experts, chosen = p["m"], p["experts"], p["top_k"]
    choose = _needed()._custom_ops.topk_softmax
    weights = torch.empty(m, chosen, device="cuda", dtype=torch.float32)
    ids, source = (torch.empty(m, chosen, device="cuda", dtype=torch.int32) for _ in range(2))
    scores = [arena().take(m, experts) for _ in range(16)]
    return [lambda x=x: choose(weights, ids, source, x, True) for x in scores]  # type: ignore[misc]


# -- element-wise -----------------------------------------------------------------------------------------------


def norm(p: Point) -> list[Call]:
    """Residual add and RMS norm of m rows."""
    m, width = p["m"], p["width"]
    x, residual, weight = _fresh(m, width), _fresh(m, width), _fresh(width)
    return [lambda: compiled.add_norm((x, residual), weight)] * _REPEATS


def qk_norm(p: Point) -> list[Call]:
    """RMS norm of each head of q and of k."""
    q, k, weight = *_heads(p), _fresh(p["dim"])
    return [lambda: compiled.both_norms((q, k), weight)] * _REPEATS


def gated_act(p: Point) -> list[Call]:
    """SiLU of the gate times up: 2 x width in, width out."""
    x = _fresh(p["m"], 2 * p["width"])
    return [lambda: compiled.gated((x,))] * _REPEATS


def rope(p: Point) -> list[Call]:
    """Rotary embedding of q and k."""
    q, k = _heads(p)
    table = _fresh(_POSITIONS, p["dim"])
    positions = torch.arange(p["m"], device="cuda") % _POSITIONS
    return [lambda: compiled.rotate((q, k, positions), table)] * _REPEATS


def _heads(p: Point) -> tuple[Any, Any]:
    """q and k as slices of one projection's output, as in a model."""
    m, heads, kv_heads, dim = p["m"], p["heads"], p["kv_heads"], p["dim"]
    q, k, _ = _fresh(m, heads + 2 * kv_heads, dim).split([heads, kv_heads, kv_heads], dim=1)
    return q, k


def kv_write(p: Point) -> list[Call]:
    """New keys and values into the paged cache."""
    m, kv_heads, dim = p["m"], p["kv_heads"], p["dim"]
    k, v = arena().take(m, kv_heads, dim), arena().take(m, kv_heads, dim)
    pool = math.ceil(m / _BLOCK) * 4 + 4
    keys, values = _fresh(pool, _BLOCK, kv_heads, 2 * dim).split(dim, dim=-1)
    slots = torch.randperm(pool * _BLOCK, device="cuda")[:m].to(torch.int64)
    one = torch.ones((), device="cuda", dtype=torch.float32)
    write = torch.ops._C_cache_ops.reshape_and_cache_flash
    return [lambda: write(k, v, keys, values, slots, "auto", one, one)] * 16


def sampler(p: Point) -> list[Call]:
    """Temperature, softmax, noise and argmax over float32 logits of m rows, as separate kernels."""
    m, vocab = p["m"], p["vocab"]
    logits = [arena().take(m, vocab) for _ in range(min(8, _copies(2.0 * m * vocab)))]
    temperatures = torch.ones(m, 1, device="cuda")

    def sample(x: Any) -> Any:
        probabilities = torch.softmax(x.float().div_(temperatures), dim=-1, dtype=torch.float32)
        noise = torch.empty_like(probabilities).exponential_(1.0)
        return probabilities.div_(noise).argmax(dim=-1)

    return [lambda x=x: sample(x) for x in logits]  # type: ignore[misc]


def gumbel(p: Point) -> list[Call]:
    """The same in one pass, as in vLLM's newer model runner."""
    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

    m, vocab = p["m"], p["vocab"]
    logits = [arena().take(m, vocab) for _ in range(min(8, _copies(2.0 * m * vocab)))]
    rows = torch.arange(m, device="cuda", dtype=torch.int32)
    temperatures, seeds = torch.ones(m, device="cuda"), rows.to(torch.int64)
    return [
        lambda x=x: gumbel_sample(x, rows, temperatures, seeds, seeds, apply_temperature=True)  # type: ignore[misc]
        for x in logits
    ]


def greedy(p: Point) -> list[Call]:
    """Greedy sampling: the argmax of m rows of logits."""
    m, vocab = p["m"], p["vocab"]
    logits = [arena().take(m, vocab) for _ in range(min(8, _copies(2.0 * m * vocab)))]
    return [lambda x=x: x.float().argmax(dim=-1) for x in logits]  # type: ignore[misc]


# -- whole layers -----------------------------------------------------------------------------------------------


def layer_parts(p: Point) -> list[list[Call]]:
    """The operators of a dense layer in a decode step of m requests with ``cached`` tokens each."""
    m, hidden, inter = p["m"], p["hidden"], p["inter"]
    shape = {"m": m, "heads": p["heads"], "kv_heads": p["kv_heads"], "dim": p["dim"]}
    inner = p["heads"] * p["dim"]
    return [
        norm({"m": m, "width": hidden}),
        gemm({"m": m, "n": inner + 2 * p["kv_heads"] * p["dim"], "k": hidden}),
        rope(shape),
        kv_write(shape),
        attention({**shape, "queries": [1] * m, "keys": [p["cached"]] * m}),
        gemm({"m": m, "n": hidden, "k": inner}),
        norm({"m": m, "width": hidden}),
        gemm({"m": m, "n": 2 * inter, "k": hidden}),
        gated_act({"m": m, "width": inter}),
        gemm({"m": m, "n": hidden, "k": inter}),
    ]


def layer(p: Point) -> list[Call]:
    """The same operators in sequence, as one call."""
    parts = layer_parts(p)

    def run(index: int) -> None:
        for part in parts:
            part[index % len(part)]()

    return [lambda index=index: run(index) for index in range(_REPEATS)]  # type: ignore[misc]


def copy(p: Point) -> list[Call]:
    """Copy a buffer of ``bytes`` on the GPU."""
    source = torch.empty(p["bytes"], device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return [lambda: target.copy_(source)]


def tiny(p: Point) -> list[Call]:
    """The smallest kernel: in a graph its time is the gap between kernels, launched by the host it is the launch."""
    x = torch.zeros(1, device="cuda")
    return [lambda: x.add_(1.0)] * 64


def _needed() -> Any:
    if VLLM is None:
        raise ImportError("vLLM is not installed")
    return VLLM


KERNELS: dict[str, Callable[[Point], list[Call]]] = {
    "gemm": gemm,
    "gemm_fp8": gemm_fp8,
    "quantize": quantize,
    "attention": attention,
    "moe": moe,
    "topk": topk,
    "norm": norm,
    "qk_norm": qk_norm,
    "gated_act": gated_act,
    "rope": rope,
    "kv_write": kv_write,
    "sampler": sampler,
    "gumbel": gumbel,
    "greedy": greedy,
    "layer": layer,
    "copy": copy,
    "tiny": tiny,
}
