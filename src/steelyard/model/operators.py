"""The kernels one step runs, in order, with the numbers a cost model needs for each.

All shapes are per GPU after tensor-parallel sharding, and operators are fused as vLLM fuses them:
q, k and v in one GEMM, gate and up in one, a residual add with the norm after it. An operator's
work is per token of the step, or per sequence where only sampled rows take part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from steelyard.model.sharding import check_tp, expert_width_per_gpu, kv_heads_per_gpu, padded_vocab
from steelyard.model.size import kv_elements
from steelyard.model.spec import Attention, DenseFfn, Layer, ModelSpec, MoeFfn
from steelyard.model.weights import (
    Matrix,
    attention_matrices,
    bytes_per_element,
    ffn_matrices,
    lm_head,
)

Per = Literal["token", "sequence"]
_FLOAT32 = 4


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
    """One k x n GEMM per expert that any token chose; each token visits top_k of them."""

    name: str
    k: int
    n: int
    experts: int
    top_k: int
    weight_bytes: float
    compute: str
    kind: Literal["grouped_gemm"] = "grouped_gemm"


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
class AttentionOperator:
    """Attention over the cache.

    mla runs prefill as plain multi-head attention and decode over the latent as if it had one KV
    head; the other kinds run both alike. kv_elements is what one cached token is to read at decode.
    """

    name: str
    attention: str
    prefill: AttentionShape
    decode: AttentionShape
    kv_elements: int
    window: int | None
    compute: str
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
    """Communication inside the tensor-parallel group: bytes of the full tensor per token (or sequence)."""

    name: str
    bytes: int
    per: Per = "token"
    kind: Literal["allreduce", "allgather"] = "allreduce"


Operator = Gemm | GroupedGemm | AttentionOperator | Elementwise | Collective


def operators(model: ModelSpec, layer: Layer, tp: int = 1) -> tuple[Operator, ...]:
    """The operators of one layer of this kind, in the order they run."""
    check_tp(model, tp)
    return (*_attention_block(model, layer, tp), *_ffn_block(model, layer, tp))


def head_operators(model: ModelSpec, tp: int = 1) -> tuple[Operator, ...]:
    """What surrounds the layers: embedding before, final norm, head and sampler after."""
    check_tp(model, tp)
    row = model.hidden * model.dtype_bytes
    logits = padded_vocab(model)
    reduce = Collective("embedding_allreduce", row)
    gather = Collective("logits_gather", logits * model.dtype_bytes, per="sequence", kind="allgather")
    return (
        Elementwise("embedding", 2 * row, kind="embedding"),
        *([reduce] if tp > 1 else []),
        _residual_norm(model, "final_norm"),
        _gemm(model, lm_head(model, tp), per="sequence"),
        *([gather] if tp > 1 else []),
        _sampler(model, logits),
    )


def _sampler(model: ModelSpec, logits: int) -> Elementwise:
    """vLLM runs dense models with its newer model runner, which reads the logits once.

    The older one turns them into float32, then reads them for the softmax and for the pick.
    """
    if any(isinstance(layer.ffn, MoeFfn) for layer in model.layers):
        return Elementwise("sampler", logits * (model.dtype_bytes + 3 * _FLOAT32), per="sequence", kind="sampling")
    return Elementwise("sampler", logits * model.dtype_bytes, per="sequence", kind="one_pass_sampling")


def _attention_block(model: ModelSpec, layer: Layer, tp: int) -> Iterator[Operator]:
    attention, size = layer.attention, model.dtype_bytes
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
    yield Elementwise("kv_write", 2 * kv_elements(attention, tp) * size)
    yield _attention(model, attention, tp)
    yield _gemm(model, output)
    if tp > 1:
        yield Collective("attention_allreduce", model.hidden * size)
    if layer.sandwich_norms:
        yield _norm(model, "post_attention_norm")


def _attention(model: ModelSpec, attention: Attention, tp: int) -> AttentionOperator:
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
        decode=decode,
        kv_elements=kv_elements(attention, tp),
        window=attention.window,
        compute=model.compute,
    )


def _ffn_block(model: ModelSpec, layer: Layer, tp: int) -> Iterator[Operator]:
    yield _residual_norm(model, "pre_ffn_norm" if layer.sandwich_norms else "post_norm")
    if isinstance(layer.ffn, DenseFfn):
        up, down = ffn_matrices(model, layer.ffn, tp)
        yield _gemm(model, up)
        yield _gated_act(model, "act", down.k)
        yield _gemm(model, down)
    else:
        yield from _moe(model, layer.ffn, tp)
    if tp > 1:
        yield Collective("ffn_allreduce", model.hidden * model.dtype_bytes)
    if layer.sandwich_norms:
        yield _norm(model, "post_ffn_norm")


def _moe(model: ModelSpec, ffn: MoeFfn, tp: int) -> Iterator[Operator]:
    size, hidden = model.dtype_bytes, model.hidden
    matrices = {matrix.name: matrix for matrix in ffn_matrices(model, ffn, tp)}
    yield _gemm(model, matrices["router"])
    # Reads the scores; writes a float32 weight and a 32-bit expert number per choice.
    yield Elementwise("router_topk", ffn.experts * size + ffn.top_k * 2 * _FLOAT32)
    yield _grouped(model, matrices["experts_gate_up"], ffn.top_k)
    yield _gated_act(model, "experts_act", ffn.top_k * expert_width_per_gpu(model, ffn, tp))
    yield _grouped(model, matrices["experts_down"], ffn.top_k)
    yield Elementwise("experts_sum", (ffn.top_k + 1) * hidden * size)
    if ffn.shared_intermediate:
        yield _gemm(model, matrices["shared_gate_up"])
        yield _gated_act(model, "shared_act", matrices["shared_down"].k)
        yield _gemm(model, matrices["shared_down"])
        if ffn.shared_gate:
            yield _gemm(model, matrices["shared_gate"])
        yield Elementwise("shared_add", 3 * hidden * size)


def _gemm(model: ModelSpec, matrix: Matrix, per: Per = "token") -> Gemm:
    weight, compute = _precision(model, matrix)
    return Gemm(matrix.name, matrix.k, matrix.n, weight, compute, per)


def _grouped(model: ModelSpec, matrix: Matrix, top_k: int) -> GroupedGemm:
    weight, compute = _precision(model, matrix)
    return GroupedGemm(matrix.name, matrix.k, matrix.n, matrix.experts, top_k, weight, compute)


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
