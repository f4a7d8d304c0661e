"""The kernels one step runs, in order, with the numbers a cost model needs for each.

All shapes are per GPU in the engine's layout, and operators are fused as vLLM fuses them:
q, k and v in one GEMM, gate and up in one, a residual add with the norm after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from steelyard.model.layout import Layout, as_layout
from steelyard.model.operator_kinds import (
    AttentionOperator,
    AttentionShape,
    Collective,
    ContextParallel,
    Elementwise,
    Gemm,
    GroupedGemm,
    Operator,
    Per,
    Recurrence,
)
from steelyard.model.routing import Routing, rank_load
from steelyard.model.sharding import (
    check_layout,
    check_tp,
    expert_width_per_gpu,
    kv_heads_per_gpu,
    padded_vocab,
    state_groups_per_gpu,
)
from steelyard.model.size import index_bytes, kv_elements
from steelyard.model.spec import Attention, DenseFfn, Indexer, Layer, ModelSpec, MoeFfn, Recurrent
from steelyard.model.weights import (
    Matrix,
    attention_matrices,
    bytes_per_element,
    conv_channels,
    ffn_matrices,
    lm_head,
    recurrent_matrices,
)

_FLOAT32 = 4  # bytes
FP8_VALUE_BYTES = 1.0 + 4 / 128  # bytes of a value sent in 8 bits, with a scale for every 128 of them
EVEN = Routing()


def operators(model: ModelSpec, layer: Layer, tp: int | Layout = 1, routing: Routing = EVEN) -> tuple[Operator, ...]:
    """The operators of one layer of this kind, in the order they run."""
    layout = _checked(model, tp)
    found: list[Operator] = []
    if layer.attention is not None:
        found += _attention_block(model, layer, layer.attention, layout)
    if layer.recurrent is not None:
        found += _recurrent_block(model, layer.recurrent, layout)
    if layer.ffn is not None:
        found += _ffn_block(model, layer, layer.ffn, layout, routing)
    return tuple(found)


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


def _attention_block(model: ModelSpec, layer: Layer, attention: Attention, layout: Layout) -> Iterator[Operator]:
    size, tp = model.dtype_bytes, layout.tp
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
    if attention.rope:
        yield Elementwise("rope", 2 * rotated * size)
    yield Elementwise("kv_write", 2 * kv_elements(attention, tp) * size // layout.dcp)
    if attention.indexer is not None:
        yield from _indexer(model, attention, attention.indexer)
    yield _attention(model, attention, layout)
    if attention.gated:
        yield Elementwise("attention_gate", 3 * heads * attention.head_dim * size)
    yield _gemm(model, output)
    if tp > 1:
        yield Collective("attention_allreduce", model.hidden * size, ranks=tp)
    if layer.sandwich_norms:
        yield _norm(model, "post_attention_norm")


def _attention(model: ModelSpec, attention: Attention, layout: Layout) -> AttentionOperator:
    tp, dcp = layout.tp, layout.dcp
    heads, kv_heads = attention.heads // tp, kv_heads_per_gpu(attention, tp)
    kind, window = str(attention.kind), attention.window
    if attention.kind == "mla":
        latent = attention.kv_lora_rank
        decode = AttentionShape(heads, 1, latent + attention.qk_rope_dim, latent)
        prefill = AttentionShape(heads, heads, attention.head_dim, attention.v_head_dim)
        if attention.indexer is not None:
            kind, prefill, window = "sparse", decode, attention.indexer.top_k
    else:
        prefill = decode = AttentionShape(heads, kv_heads, attention.head_dim, attention.head_dim)
    return AttentionOperator(
        name="attention",
        attention=kind,
        prefill=prefill,
        decode=replace(decode, heads=heads * dcp),
        kv_elements=kv_elements(attention, tp),
        window=window,
        compute=model.compute,
        context_parallel=ContextParallel(dcp, model.dtype_bytes) if dcp > 1 else None,
        chunked=attention.chunked,
    )


def _indexer(model: ModelSpec, attention: Attention, indexer: Indexer) -> Iterator[Operator]:
    """Scores in 8 bits, of which the best are selected. It is not split over GPUs."""
    size, values = model.dtype_bytes, indexer.heads * indexer.head_dim
    yield Elementwise("index_queries", values * (size + 1))  # rotated and quantised
    yield Elementwise("index_write", indexer.head_dim * size + index_bytes(attention))
    shape = AttentionShape(indexer.heads, 1, indexer.head_dim, 0)
    yield AttentionOperator(
        name="indexer",
        attention="indexer",
        prefill=shape,
        decode=shape,
        kv_elements=indexer.head_dim,
        window=None,
        compute="fp8",
        value_bytes=index_bytes(attention) / indexer.head_dim,
        pair_bytes=2 * _FLOAT32,
    )


def _recurrent_block(model: ModelSpec, recurrent: Recurrent, layout: Layout) -> Iterator[Operator]:
    size, tp = model.dtype_bytes, layout.tp
    heads, inner, channels = recurrent.heads // tp, recurrent.inner // tp, conv_channels(recurrent, tp)
    *inputs, output = recurrent_matrices(recurrent, model.hidden, tp)
    yield _residual_norm(model, "input_norm")
    for matrix in inputs:
        yield _gemm(model, matrix)
    yield Elementwise("short_conv", 2 * channels * size)
    yield Recurrence(
        name="recurrence",
        recurrence=recurrent.kind,
        heads=heads,
        head_dim=recurrent.head_dim,
        state_dim=recurrent.state_dim,
        groups=state_groups_per_gpu(recurrent, tp),
        chunk=recurrent.chunk,
        state_bytes=heads * recurrent.head_dim * recurrent.state_dim * recurrent.state_bytes
        + (recurrent.conv - 1) * channels * size,
        value_bytes=recurrent.state_bytes,
        token_bytes=(channels + inner) * size,
        compute=model.compute,
    )
    yield Elementwise("gated_norm", 3 * inner * size)
    yield _gemm(model, output)
    if tp > 1:
        yield Collective("attention_allreduce", model.hidden * size, ranks=tp)


def _ffn_block(
    model: ModelSpec, layer: Layer, ffn: DenseFfn | MoeFfn, layout: Layout, routing: Routing
) -> Iterator[Operator]:
    yield _residual_norm(model, "pre_ffn_norm" if layer.sandwich_norms else "post_norm")
    row, tp = model.hidden * model.dtype_bytes, layout.tp
    if isinstance(ffn, DenseFfn):
        up, down = ffn_matrices(model, ffn, layout)
        yield _gemm(model, up)
        yield _act(model, "act", down.k, ffn.gated)
        yield _gemm(model, down)
    else:
        yield from _moe(model, ffn, layout, routing)
    if tp > 1 and isinstance(ffn, MoeFfn) and layout.dp > 1 and layout.expert_parallel:
        # Each GPU of a tensor-parallel group sent a part of the tokens to the experts and received that part back.
        yield Collective("ffn_allgather", row, kind="allgather", ranks=tp)
    elif tp > 1:
        yield Collective("ffn_allreduce", row, ranks=tp)
    if layer.sandwich_norms:
        yield _norm(model, "post_ffn_norm")


def _moe(model: ModelSpec, ffn: MoeFfn, layout: Layout, routing: Routing) -> Iterator[Operator]:
    size, hidden = model.dtype_bytes, ffn.latent or model.hidden
    matrices = {matrix.name: matrix for matrix in ffn_matrices(model, ffn, layout)}
    experts = _Experts(model, ffn, layout, routing)
    yield _gemm(model, matrices["router"])
    # Reads the scores; writes a float32 weight and a 32-bit expert number per choice.
    yield Elementwise("router_topk", ffn.experts * size + ffn.top_k * 2 * _FLOAT32)
    if ffn.latent:
        yield _gemm(model, matrices["latent_down"])
    if layout.dp > 1:
        yield experts.dispatch()
    yield experts.grouped(matrices["experts_gate_up"])
    width, plain = expert_width_per_gpu(model, ffn, layout), "" if ffn.gated else "plain_"
    yield Elementwise(f"{plain}experts_act", round(ffn.matrices * experts.choices * width) * size, per=experts.per)
    yield experts.grouped(matrices["experts_down"])
    yield Elementwise(f"{plain}experts_sum", round((experts.choices + 1) * hidden) * size, per=experts.per)
    if experts.elsewhere:
        rows = round(experts.elsewhere * ((2 * ffn.matrices - 1) * width + 2 * hidden))
        yield Elementwise("experts_elsewhere", rows * size, per=experts.per)
    if layout.dp > 1:
        yield experts.combine()
    if ffn.latent:
        yield _gemm(model, matrices["latent_up"])
    if ffn.shared_intermediate:
        yield _gemm(model, matrices["shared_gate_up"])
        yield _act(model, "shared_act", matrices["shared_down"].k, ffn.gated)
        yield _gemm(model, matrices["shared_down"])
        if ffn.shared_gate:
            yield _gemm(model, matrices["shared_gate"])
        yield Elementwise("shared_add", 3 * model.hidden * size)


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

    @property
    def _row(self) -> int:
        """Values of a token as experts see it."""
        return self.ffn.latent or self.model.hidden

    def grouped(self, matrix: Matrix) -> GroupedGemm:
        ffn, layout = self.ffn, self.layout
        weight, compute = _precision(self.model, matrix)
        share = matrix.experts / (ffn.experts + layout.redundant_experts)
        load = rank_load(self.routing, ffn.experts, ffn.top_k, layout.expert_ranks, layout.redundant_experts)
        name, k, n = matrix.name if ffn.gated else f"plain_{matrix.name}", matrix.k, matrix.n
        away, gated = self.elsewhere, ffn.gated
        return GroupedGemm(name, k, n, matrix.experts, ffn.top_k, weight, compute, self.per, share, load, away, gated)

    def dispatch(self) -> Collective:
        """Tokens are gathered, with each choice and its weight, or sent to the GPUs of the chosen experts."""
        if self.layout.all2all == "allgather_reducescatter":
            row = self._row * self.model.dtype_bytes + self.ffn.top_k * 2 * _FLOAT32
            ranks, stride = self._gathering
            return Collective("dispatch", row, "pooled", "allgather", ranks, stride=stride)
        value = FP8_VALUE_BYTES if self._low_latency else float(self.model.dtype_bytes)
        return self._all_to_all("dispatch", value)

    def combine(self) -> Collective:
        """The results, in 16 bits."""
        row = self._row * self.model.dtype_bytes
        if self.layout.all2all == "allgather_reducescatter":
            ranks, stride = self._gathering
            return Collective("combine", row, "pooled", "reducescatter", ranks, stride=stride)
        return self._all_to_all("combine", float(self.model.dtype_bytes))

    def _all_to_all(self, name: str, value_bytes: float) -> Collective:
        """The GPUs of a tensor-parallel group send a part of its tokens each."""
        size = round(self._row * value_bytes / self.layout.tp)
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


def _act(model: ModelSpec, name: str, width: int, gated: bool) -> Elementwise:
    """Activate the gate and multiply by up: reads two widths (one without a gate), writes one."""
    return Elementwise(name, (2 + gated) * width * model.dtype_bytes)
