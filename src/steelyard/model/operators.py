"""The kernels one step runs, in order, with the numbers a cost model needs for each.

All shapes are per GPU in the engine's layout, and operators are fused as vLLM fuses them:
q, k and v in one GEMM, gate and up in one, a residual add with the norm after it. An operator's
work is per token of the step, per sequence where only sampled rows take part, or per token of all
data-parallel ranks together (pooled), which is what routed experts see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.model.layout import Layout, as_layout
from steelyard.model.routing import RankLoad, Routing, rank_load
from steelyard.model.sharding import check_layout, check_tp, expert_width_per_gpu, kv_heads_per_gpu, padded_vocab
from steelyard.model.size import kv_elements
from steelyard.model.spec import Attention, DenseFfn, Layer, ModelSpec, MoeFfn
from steelyard.model.weights import (
    Matrix,
    attention_matrices,
    bytes_per_element,
    ffn_matrices,
    lm_head,
)

Floats = NDArray[np.float64]
Per = Literal["token", "sequence", "pooled"]
CollectiveKind = Literal["allreduce", "allgather", "reducescatter", "alltoall", "send"]
_FLOAT32 = 4  # bytes
_FP8_ROW = 1.0 + 4 / 128  # bytes of a value sent in 8 bits, with a scale for every 128 of them
EVEN = Routing()


@dataclass(frozen=True)
class Gemm:
    """rows x k times k x n. weight_bytes is per weight; compute names the tensor-core dtype."""

    name: str
    k: int
    n: int
    weight_bytes: float
    compute: str
    per: Per = "token"
    kind: Literal["gemm"] = "gemm"


@dataclass(frozen=True)
class GroupedGemm:
    """One k x n GEMM per expert that any token chose; each token visits top_k of them.

    ``experts`` are those of one GPU, which get ``share`` of all choices on average. ``load`` is the load of the busiest
    GPU, or None if one GPU has all experts and they are chosen evenly. ``elsewhere`` are choices of local tokens whose
    expert is on another GPU.
    """

    name: str
    k: int
    n: int
    experts: int
    top_k: int
    weight_bytes: float
    compute: str
    per: Per = "token"
    share: float = 1.0
    load: RankLoad | None = None
    elsewhere: float = 0.0
    kind: Literal["grouped_gemm"] = "grouped_gemm"

    @property
    def choices(self) -> float:
        """Experts of this GPU that a token visits on average."""
        return self.top_k * self.share

    def visits(self, rows: Floats) -> Floats:
        """Rows of all experts of the busiest GPU, for each number of tokens."""
        return rows * self.top_k if self.load is None else self.load.visits(rows)

    def touched(self, rows: Floats) -> Floats:
        """Experts of the busiest GPU that any token chose: the weights of others are not read."""
        if self.load is None:
            return self.experts * (1.0 - (1.0 - self.top_k / self.experts) ** rows)
        return self.load.touched(rows)


@dataclass(frozen=True)
class AttentionShape:
    """Heads and dims a kernel sees; kv_heads < heads means queries share keys."""

    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int

    @property
    def flops_per_pair(self) -> int:
        """Floating-point operations for one query token against one key token, all heads."""
        return 2 * self.heads * (self.qk_dim + self.v_dim)


@dataclass(frozen=True)
class ContextParallel:
    """Cached tokens are split over ``ranks`` adjacent GPUs, which exchange values of ``value_bytes``."""

    ranks: int
    value_bytes: int


@dataclass(frozen=True)
class AttentionOperator:
    """Attention over the cache.

    mla runs prefill as plain multi-head attention and decode over the latent as if it had one KV
    head; the other kinds run both alike. kv_elements are the values read per cached token at decode.
    With context parallelism a decode has the heads of all its GPUs and the tokens of one.
    """

    name: str
    attention: str
    prefill: AttentionShape
    decode: AttentionShape
    kv_elements: int
    window: int | None
    compute: str
    context_parallel: ContextParallel | None = None
    kind: Literal["attention"] = "attention"


@dataclass(frozen=True)
class Elementwise:
    """Work bound by memory: bytes read and written per token (or per sequence)."""

    name: str
    bytes: int
    per: Per = "token"
    kind: Literal["elementwise", "embedding", "sampling", "one_pass_sampling"] = "elementwise"


@dataclass(frozen=True)
class Collective:
    """Communication among ``ranks`` GPUs of an engine: ``first`` and others at multiples of ``stride`` from it.

    ``bytes`` per row are those of the whole tensor that is reduced, gathered or scattered, or of the message of a send.
    In an all-to-all, whose rows are the tokens of one rank, they are those of one copy of a token sent to ``top_k`` of
    all ``experts``, or back; ``mode`` names DeepEP's kernels.
    """

    name: str
    bytes: int
    per: Per = "token"
    kind: CollectiveKind = "allreduce"
    ranks: int = 2
    mode: Literal["high_throughput", "low_latency"] | None = None
    top_k: int = 1
    experts: int = 1
    stride: int = 1
    first: int = 0


Operator = Gemm | GroupedGemm | AttentionOperator | Elementwise | Collective


def operators(model: ModelSpec, layer: Layer, tp: int | Layout = 1, routing: Routing = EVEN) -> tuple[Operator, ...]:
    """The operators of one layer of this kind, in the order they run."""
    layout = _checked(model, tp)
    return (*_attention_block(model, layer, layout), *_ffn_block(model, layer, layout, routing))


def embedding_operators(model: ModelSpec, tp: int | Layout = 1) -> tuple[Operator, ...]:
    """The operators before the first layer."""
    layout = _checked(model, tp)
    row = model.hidden * model.dtype_bytes
    reduce = Collective("embedding_allreduce", row, ranks=layout.tp)
    return (Elementwise("embedding", 2 * row, kind="embedding"), *([reduce] if layout.tp > 1 else []))


def output_operators(model: ModelSpec, tp: int | Layout = 1) -> tuple[Operator, ...]:
    """The operators after the last layer: final norm, head and sampler."""
    layout = _checked(model, tp)
    logits = padded_vocab(model)
    size = logits * model.dtype_bytes
    gather = Collective("logits_gather", size, per="sequence", kind="allgather", ranks=layout.tp)
    return (
        _residual_norm(model, "final_norm"),
        _gemm(model, lm_head(model, layout.tp), per="sequence"),
        *([gather] if layout.tp > 1 else []),
        _sampler(model, logits),
    )


def head_operators(model: ModelSpec, tp: int | Layout = 1) -> tuple[Operator, ...]:
    """The operators around the layers: embedding before, final norm, head and sampler after."""
    return (*embedding_operators(model, tp), *output_operators(model, tp))


def send_operators(model: ModelSpec, tp: int | Layout = 1, stage: int = 0) -> tuple[Operator, ...]:
    """What a pipeline stage sends to the next: hidden state and residual, a slice by each GPU of a tensor-parallel
    group, which the next stage's GPUs gather."""
    layout = _checked(model, tp)
    size = 2 * model.hidden * model.dtype_bytes
    send = Collective("stage_send", size // layout.tp, kind="send", stride=layout.tp, first=stage * layout.tp)
    gather = Collective("stage_gather", size, kind="allgather", ranks=layout.tp)
    return (send, *([gather] if layout.tp > 1 else []))


def _checked(model: ModelSpec, tp: int | Layout) -> Layout:
    if isinstance(tp, int):
        check_tp(model, tp)
    else:
        check_layout(model, replace(tp, pp=1))  # a stage has fewer layers than its model
    return as_layout(tp)


def _sampler(model: ModelSpec, logits: int) -> Elementwise:
    """vLLM runs dense models with its newer model runner, which reads the logits once.

    The older one converts them to float32, then reads them for the softmax and for the sample.
    """
    if any(isinstance(layer.ffn, MoeFfn) for layer in model.layers):
        return Elementwise("sampler", logits * (model.dtype_bytes + 3 * _FLOAT32), per="sequence", kind="sampling")
    return Elementwise("sampler", logits * model.dtype_bytes, per="sequence", kind="one_pass_sampling")


def _attention_block(model: ModelSpec, layer: Layer, layout: Layout) -> Iterator[Operator]:
    attention, size, tp = layer.attention, model.dtype_bytes, layout.tp
    *inputs, output = attention_matrices(attention, model.hidden, tp)
    heads, kv_heads = attention.heads // tp, kv_heads_per_gpu(attention, tp)
    yield _residual_norm(model, "input_norm")
    for matrix in inputs:
        yield _gemm(model, matrix)
        if matrix.name in ("qkv_a_proj", "kv_a_proj"):
            ranks = (attention.q_lora_rank or 0) + attention.kv_lora_rank
            yield Elementwise("latent_norm", 2 * ranks * size)
    if attention.qk_norm:
        yield Elementwise("qk_norm", 2 * (heads + kv_heads) * attention.head_dim * size)
    if attention.kind == "mla":
        rotated = (heads + 1) * attention.qk_rope_dim
    else:
        rotated = (heads + kv_heads) * attention.head_dim
    yield Elementwise("rope", 2 * rotated * size)
    yield Elementwise("kv_write", 2 * kv_elements(attention, tp) * size // layout.dcp)
    yield _attention(model, attention, layout)
    yield _gemm(model, output)
    if tp > 1:
        yield Collective("attention_allreduce", model.hidden * size, ranks=tp)
    if layer.sandwich_norms:
        yield _norm(model, "post_attention_norm")


def _attention(model: ModelSpec, attention: Attention, layout: Layout) -> AttentionOperator:
    tp, dcp = layout.tp, layout.dcp
    heads, kv_heads = attention.heads // tp, kv_heads_per_gpu(attention, tp)
    if attention.kind == "mla":
        prefill = AttentionShape(heads, heads, attention.head_dim, attention.v_head_dim)
        latent = attention.kv_lora_rank
        decode = AttentionShape(heads, 1, latent + attention.qk_rope_dim, latent)
    else:
        prefill = decode = AttentionShape(heads, kv_heads, attention.head_dim, attention.head_dim)
    return AttentionOperator(
        name="attention",
        attention=attention.kind,
        prefill=prefill,
        decode=replace(decode, heads=heads * dcp),
        kv_elements=kv_elements(attention, tp),
        window=attention.window,
        compute=model.compute,
        context_parallel=ContextParallel(dcp, model.dtype_bytes) if dcp > 1 else None,
    )


def _ffn_block(model: ModelSpec, layer: Layer, layout: Layout, routing: Routing) -> Iterator[Operator]:
    yield _residual_norm(model, "pre_ffn_norm" if layer.sandwich_norms else "post_norm")
    row, tp = model.hidden * model.dtype_bytes, layout.tp
    if isinstance(layer.ffn, DenseFfn):
        up, down = ffn_matrices(model, layer.ffn, layout)
        yield _gemm(model, up)
        yield _gated_act(model, "act", down.k)
        yield _gemm(model, down)
    else:
        yield from _moe(model, layer.ffn, layout, routing)
    if tp > 1 and isinstance(layer.ffn, MoeFfn) and layout.dp > 1 and layout.expert_parallel:
        # Each GPU of a tensor-parallel group sent a part of the tokens to the experts and received that part back.
        yield Collective("ffn_allgather", row, kind="allgather", ranks=tp)
    elif tp > 1:
        yield Collective("ffn_allreduce", row, ranks=tp)
    if layer.sandwich_norms:
        yield _norm(model, "post_ffn_norm")


def _moe(model: ModelSpec, ffn: MoeFfn, layout: Layout, routing: Routing) -> Iterator[Operator]:
    size, hidden = model.dtype_bytes, model.hidden
    matrices = {matrix.name: matrix for matrix in ffn_matrices(model, ffn, layout)}
    experts = _Experts(model, ffn, layout, routing)
    yield _gemm(model, matrices["router"])
    # Reads the scores; writes a float32 weight and a 32-bit expert number per choice.
    yield Elementwise("router_topk", ffn.experts * size + ffn.top_k * 2 * _FLOAT32)
    if layout.dp > 1:
        yield experts.dispatch()
    yield experts.grouped(matrices["experts_gate_up"])
    width = expert_width_per_gpu(model, ffn, layout)
    yield Elementwise("experts_act", round(3 * experts.choices * width) * size, per=experts.per)
    yield experts.grouped(matrices["experts_down"])
    yield Elementwise("experts_sum", round((experts.choices + 1) * hidden) * size, per=experts.per)
    if experts.elsewhere:
        rows = round(experts.elsewhere * (5 * width + 2 * hidden))
        yield Elementwise("experts_elsewhere", rows * size, per=experts.per)
    if layout.dp > 1:
        yield experts.combine()
    if ffn.shared_intermediate:
        yield _gemm(model, matrices["shared_gate_up"])
        yield _gated_act(model, "shared_act", matrices["shared_down"].k)
        yield _gemm(model, matrices["shared_down"])
        if ffn.shared_gate:
            yield _gemm(model, matrices["shared_gate"])
        yield Elementwise("shared_add", 3 * hidden * size)


@dataclass(frozen=True)
class _Experts:
    """The routed experts of one GPU, with dispatch and combine for the tokens of several data-parallel ranks."""

    model: ModelSpec
    ffn: MoeFfn
    layout: Layout
    routing: Routing

    @property
    def per(self) -> Per:
        return "pooled" if self.layout.dp > 1 else "token"

    @property
    def choices(self) -> float:
        """Experts of this GPU that a token visits on average."""
        return self.ffn.top_k / self.layout.expert_ranks

    @property
    def elsewhere(self) -> float:
        """Choices of a local token whose expert is on another GPU: they are still zeroed, activated and summed."""
        sent = self.layout.dp > 1 and self.layout.all2all != "allgather_reducescatter"
        return 0.0 if sent else self.ffn.top_k - self.choices

    def grouped(self, matrix: Matrix) -> GroupedGemm:
        ffn, layout = self.ffn, self.layout
        weight, compute = _precision(self.model, matrix)
        share = matrix.experts / (ffn.experts + layout.redundant_experts)
        load = rank_load(self.routing, ffn.experts, ffn.top_k, layout.expert_ranks, layout.redundant_experts)
        name, k, n = matrix.name, matrix.k, matrix.n
        away = self.elsewhere
        return GroupedGemm(name, k, n, matrix.experts, ffn.top_k, weight, compute, self.per, share, load, away)

    def dispatch(self) -> Collective:
        """Tokens are gathered, with each choice and its weight, or sent to the GPUs of the chosen experts."""
        if self.layout.all2all == "allgather_reducescatter":
            row = self.model.hidden * self.model.dtype_bytes + self.ffn.top_k * 2 * _FLOAT32
            ranks, stride = self._gathering
            return Collective("dispatch", row, "pooled", "allgather", ranks, stride=stride)
        value = _FP8_ROW if self._low_latency else float(self.model.dtype_bytes)
        return self._all_to_all("dispatch", value)

    def combine(self) -> Collective:
        """The results, in 16 bits."""
        row = self.model.hidden * self.model.dtype_bytes
        if self.layout.all2all == "allgather_reducescatter":
            ranks, stride = self._gathering
            return Collective("combine", row, "pooled", "reducescatter", ranks, stride=stride)
        return self._all_to_all("combine", float(self.model.dtype_bytes))

    def _all_to_all(self, name: str, value_bytes: float) -> Collective:
        """The GPUs of a tensor-parallel group send a part of its tokens each."""
        size = round(self.model.hidden * value_bytes / self.layout.tp)
        mode: Literal["low_latency", "high_throughput"] = "low_latency" if self._low_latency else "high_throughput"
        ranks = self.layout.tp * self.layout.dp
        return Collective(name, size, "token", "alltoall", ranks, mode, self.ffn.top_k, self.ffn.experts)

    @property
    def _gathering(self) -> tuple[int, int]:
        """How many GPUs gather, and their stride. With expert parallelism all GPUs do, each with a part of its group's
        tokens; otherwise GPUs with the same slice, one of each data-parallel rank."""
        layout = self.layout
        return (layout.expert_ranks, 1) if layout.expert_parallel else (layout.dp, layout.tp * layout.pp)

    @property
    def _low_latency(self) -> bool:
        return self.layout.all2all == "deepep_low_latency"


def _gemm(model: ModelSpec, matrix: Matrix, per: Per = "token") -> Gemm:
    weight, compute = _precision(model, matrix)
    return Gemm(matrix.name, matrix.k, matrix.n, weight, compute, per)


def _precision(model: ModelSpec, matrix: Matrix) -> tuple[float, str]:
    """Bytes per weight read and the dtype multiplied in; mla's up-projection runs from 16 bits."""
    stored = model.quantization
    if stored is None or matrix.part not in stored.parts or matrix.name == "kv_b_proj":
        return float(model.dtype_bytes), model.compute
    return bytes_per_element(model, matrix), stored.compute or model.compute


def _residual_norm(model: ModelSpec, name: str) -> Elementwise:
    """Add the residual and norm in one kernel: reads two rows, writes two."""
    return Elementwise(name, 4 * model.hidden * model.dtype_bytes)


def _norm(model: ModelSpec, name: str) -> Elementwise:
    return Elementwise(name, 2 * model.hidden * model.dtype_bytes)


def _gated_act(model: ModelSpec, name: str, width: int) -> Elementwise:
    """Activate the gate and multiply by up: reads two widths, writes one."""
    return Elementwise(name, 3 * width * model.dtype_bytes)
