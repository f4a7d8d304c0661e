"""The weights one GPU holds, matrix by matrix: the single place that knows their shapes.

Sizes add these up and operators multiply by them, so the two cannot disagree. With tp=1 the
shapes are the model's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.model.layout import Layout, as_layout
from steelyard.model.sharding import expert_width_per_gpu, experts_per_gpu, kv_heads_per_gpu, padded_vocab
from steelyard.model.spec import Attention, DenseFfn, Layer, ModelSpec, MoeFfn, Part


@dataclass(frozen=True)
class Matrix:
    """A weight that activations are multiplied by: k inputs, n outputs, `experts` copies of it."""

    name: str
    k: int
    n: int
    part: Part
    experts: int = 1

    @property
    def elements(self) -> int:
        return self.k * self.n * self.experts


def attention_matrices(attention: Attention, hidden: int, tp: int = 1) -> tuple[Matrix, ...]:
    """The projections around attention, fused the way vLLM fuses them.

    Low-rank ones (mla's and mfa's down-projections) are whole on every GPU.
    """
    heads = attention.heads // tp
    if attention.kind == "mla":
        return _mla_matrices(attention, hidden, heads)
    kv = kv_heads_per_gpu(attention, tp) * attention.head_dim
    queries = heads * attention.head_dim
    output = Matrix("o_proj", queries, hidden, "attention")
    if attention.kind == "mfa" and attention.q_lora_rank is not None:
        down = Matrix("qkv_a_proj", hidden, attention.q_lora_rank + 2 * kv, "attention")
        return down, Matrix("q_b_proj", attention.q_lora_rank, queries, "attention"), output
    return Matrix("qkv_proj", hidden, queries + 2 * kv, "attention"), output


def _mla_matrices(attention: Attention, hidden: int, heads: int) -> tuple[Matrix, ...]:
    latent = attention.kv_lora_rank + attention.qk_rope_dim
    query = heads * (attention.qk_nope_dim + attention.qk_rope_dim)
    if attention.q_lora_rank is None:
        inputs: tuple[Matrix, ...] = (
            Matrix("q_proj", hidden, query, "attention"),
            Matrix("kv_a_proj", hidden, latent, "attention"),
        )
    else:
        inputs = (
            Matrix("qkv_a_proj", hidden, attention.q_lora_rank + latent, "attention"),
            Matrix("q_b_proj", attention.q_lora_rank, query, "attention"),
        )
    expand = heads * (attention.qk_nope_dim + attention.v_head_dim)
    return (
        *inputs,
        Matrix("kv_b_proj", attention.kv_lora_rank, expand, "attention"),
        Matrix("o_proj", heads * attention.v_head_dim, hidden, "attention"),
    )


def ffn_matrices(model: ModelSpec, ffn: DenseFfn | MoeFfn, layout: int | Layout = 1) -> tuple[Matrix, ...]:
    """Gate and up fused, down; for experts also the router, which every GPU holds whole.

    Shared experts are split like attention, so every data-parallel rank has all of them.
    """
    layout = as_layout(layout)
    hidden, tp = model.hidden, layout.tp
    if isinstance(ffn, DenseFfn):
        width = ffn.intermediate // tp
        return (
            Matrix("gate_up_proj", hidden, 2 * width, "ffn"),
            Matrix("down_proj", width, hidden, "ffn"),
        )
    width, experts = expert_width_per_gpu(model, ffn, layout), experts_per_gpu(ffn, layout)
    matrices = [
        Matrix("router", hidden, ffn.experts, "plain"),
        Matrix("experts_gate_up", hidden, 2 * width, "experts", experts),
        Matrix("experts_down", width, hidden, "experts", experts),
    ]
    if ffn.shared_intermediate:
        shared = ffn.shared_intermediate // tp
        matrices.append(Matrix("shared_gate_up", hidden, 2 * shared, "ffn"))
        matrices.append(Matrix("shared_down", shared, hidden, "ffn"))
    if ffn.shared_gate:
        matrices.append(Matrix("shared_gate", hidden, 1, "plain"))
    return tuple(matrices)


def layer_matrices(model: ModelSpec, layer: Layer, layout: int | Layout = 1) -> tuple[Matrix, ...]:
    layout = as_layout(layout)
    return (
        *attention_matrices(layer.attention, model.hidden, layout.tp),
        *ffn_matrices(model, layer.ffn, layout),
    )


def lm_head(model: ModelSpec, tp: int = 1) -> Matrix:
    """The output head on one GPU, padded as vLLM pads it. The embedding table has the same shape."""
    return Matrix("lm_head", model.hidden, padded_vocab(model) // tp, "plain")


def vector_elements(model: ModelSpec, layer: Layer, layout: int | Layout = 1) -> int:
    """Norms, biases and sinks of one layer on one GPU: small, and never quantised."""
    layout = as_layout(layout)
    attention, ffn, hidden, tp = layer.attention, layer.ffn, model.hidden, layout.tp
    total = hidden * (4 if layer.sandwich_norms else 2)
    if attention.kind != "gqa":
        total += (attention.q_lora_rank or 0) + attention.kv_lora_rank  # norms of the low ranks
    if attention.qk_norm:
        total += 2 * attention.head_dim
    if attention.qkv_bias:
        total += attention_matrices(attention, hidden, tp)[0].n
    if attention.o_bias:
        total += hidden
    if attention.sinks:
        total += attention.heads // tp
    if isinstance(ffn, DenseFfn):
        return total + (2 * (ffn.intermediate // tp) + hidden if ffn.bias else 0)
    if ffn.router_bias:
        total += ffn.experts
    if ffn.expert_bias:
        total += experts_per_gpu(ffn, layout) * (2 * expert_width_per_gpu(model, ffn, layout) + hidden)
    return total


def bytes_per_element(model: ModelSpec, matrix: Matrix) -> float:
    """Bytes of one weight of this matrix, with all scales except those per output."""
    stored = model.quantization
    if stored is not None and matrix.part in stored.parts:
        return stored.weight_bytes
    return float(model.dtype_bytes)


def matrix_bytes(model: ModelSpec, matrix: Matrix) -> float:
    """Bytes of the whole matrix, with all its scales."""
    stored, weights = model.quantization, matrix.elements * bytes_per_element(model, matrix)
    if stored is not None and matrix.part in stored.parts:
        return weights + matrix.n * matrix.experts * stored.channel_bytes
    return weights
