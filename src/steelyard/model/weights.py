"""The weights one GPU holds, matrix by matrix: the single place that knows their shapes.

Sizes add these up and operators multiply by them, so the two cannot disagree. With tp=1 the
shapes are the model's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.model.layout import Layout, as_layout
from steelyard.model.sharding import (
    expert_width_per_gpu,
    experts_per_gpu,
    kv_heads_per_gpu,
    padded_vocab,
    state_groups_per_gpu,
)
from steelyard.model.spec import Attention, DenseFfn, Indexer, Layer, ModelSpec, MoeFfn, Part, Recurrent


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
    wide = 2 * queries if attention.gated else queries
    return Matrix("qkv_proj", hidden, wide + 2 * kv, "attention"), output


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
    if attention.indexer is not None:
        inputs = (*inputs, *_indexer_matrices(attention.indexer, attention.q_lora_rank or hidden, hidden))
    expand = heads * (attention.qk_nope_dim + attention.v_head_dim)
    return (
        *inputs,
        Matrix("kv_b_proj", attention.kv_lora_rank, expand, "attention"),
        Matrix("o_proj", heads * attention.v_head_dim, hidden, "attention"),
    )


def _indexer_matrices(indexer: Indexer, queries: int, hidden: int) -> tuple[Matrix, ...]:
    """Whole on every GPU. That for its key and the weights of its heads stays in 16 bits."""
    return (
        Matrix("index_q_proj", queries, indexer.heads * indexer.head_dim, "attention"),
        Matrix("index_k_proj", hidden, indexer.head_dim + indexer.heads, "plain"),
    )


def recurrent_matrices(recurrent: Recurrent, hidden: int, tp: int = 1) -> tuple[Matrix, ...]:
    """The projections around a recurrent block: values, gate, keys and queries, and a number or two for each head."""
    heads, inner = recurrent.heads // tp, recurrent.inner // tp
    wide = 2 * inner + 2 * state_groups_per_gpu(recurrent, tp) * recurrent.state_dim
    output = Matrix("out_proj", inner, hidden, "attention")
    if recurrent.kind == "mamba2":
        return Matrix("in_proj", hidden, wide + heads, "attention"), output
    return Matrix("in_proj", hidden, wide, "attention"), Matrix("ba_proj", hidden, 2 * heads, "attention"), output


def conv_channels(recurrent: Recurrent, tp: int = 1) -> int:
    """Channels of the short convolution on one GPU: values, keys and queries."""
    return recurrent.inner // tp + 2 * state_groups_per_gpu(recurrent, tp) * recurrent.state_dim


def ffn_matrices(model: ModelSpec, ffn: DenseFfn | MoeFfn, layout: int | Layout = 1) -> tuple[Matrix, ...]:
    """Gate and up fused (or up alone), down; for experts also the router, which every GPU holds whole.

    Shared experts are split like attention, so every data-parallel rank has all of them.
    """
    layout = as_layout(layout)
    hidden, tp = model.hidden, layout.tp
    if isinstance(ffn, DenseFfn):
        width = ffn.intermediate // tp
        return (
            Matrix("gate_up_proj", hidden, (1 + ffn.gated) * width, "ffn"),
            Matrix("down_proj", width, hidden, "ffn"),
        )
    width, experts = expert_width_per_gpu(model, ffn, layout), experts_per_gpu(ffn, layout)
    inside = ffn.latent or hidden
    matrices = [
        Matrix("router", hidden, ffn.experts, "plain"),
        Matrix("experts_gate_up", inside, (1 + ffn.gated) * width, "experts", experts),
        Matrix("experts_down", width, inside, "experts", experts),
    ]
    if ffn.latent:
        matrices.append(Matrix("latent_down", hidden, ffn.latent, "ffn"))
        matrices.append(Matrix("latent_up", ffn.latent, hidden, "ffn"))
    if ffn.shared_intermediate:
        shared = ffn.shared_intermediate // tp
        matrices.append(Matrix("shared_gate_up", hidden, (1 + ffn.gated) * shared, "ffn"))
        matrices.append(Matrix("shared_down", shared, hidden, "ffn"))
    if ffn.shared_gate:
        matrices.append(Matrix("shared_gate", hidden, 1, "plain"))
    return tuple(matrices)


def layer_matrices(model: ModelSpec, layer: Layer, layout: int | Layout = 1) -> tuple[Matrix, ...]:
    layout = as_layout(layout)
    found: tuple[Matrix, ...] = ()
    if layer.attention is not None:
        found += attention_matrices(layer.attention, model.hidden, layout.tp)
    if layer.recurrent is not None:
        found += recurrent_matrices(layer.recurrent, model.hidden, layout.tp)
    if layer.ffn is not None:
        found += ffn_matrices(model, layer.ffn, layout)
    return found


def lm_head(model: ModelSpec, tp: int = 1) -> Matrix:
    """The output head on one GPU, padded as vLLM pads it. The embedding table has the same shape."""
    return Matrix("lm_head", model.hidden, padded_vocab(model) // tp, "plain")


def vector_elements(model: ModelSpec, layer: Layer, layout: int | Layout = 1) -> int:
    """Norms, biases, sinks and short convolutions of one layer on one GPU: small, and never quantised."""
    layout = as_layout(layout)
    total = model.hidden * layer.blocks * (2 if layer.sandwich_norms else 1)
    if layer.attention is not None:
        total += _attention_vectors(layer.attention, model.hidden, layout.tp)
    if layer.recurrent is not None:
        total += _recurrent_vectors(layer.recurrent, model.hidden, layout.tp)
    if layer.ffn is not None:
        total += _ffn_vectors(model, layer.ffn, layout)
    return total


def _attention_vectors(attention: Attention, hidden: int, tp: int) -> int:
    total = 0
    if attention.kind != "gqa":
        total += (attention.q_lora_rank or 0) + attention.kv_lora_rank  # norms of the low ranks
    if attention.qk_norm and attention.qk_norm_weights == "head":
        total += 2 * attention.head_dim
    elif attention.qk_norm and attention.qk_norm_weights == "all heads":
        total += (attention.heads // tp + kv_heads_per_gpu(attention, tp)) * attention.head_dim
    if attention.qkv_bias:
        total += attention_matrices(attention, hidden, tp)[0].n
    if attention.o_bias:
        total += hidden
    if attention.sinks:
        total += attention.heads // tp
    if attention.indexer is not None:
        total += 2 * attention.indexer.head_dim  # weights and biases of a norm
    return total


def _recurrent_vectors(recurrent: Recurrent, hidden: int, tp: int) -> int:
    """Decay rates and steps of the heads, the convolution, and the norm of the output."""
    heads, channels = recurrent.heads // tp, conv_channels(recurrent, tp)
    total = channels * (recurrent.conv + recurrent.conv_bias)
    if recurrent.kind == "mamba2":
        total += 3 * heads + recurrent.inner // tp
    else:
        total += 2 * heads + recurrent.head_dim
    if recurrent.bias:
        total += sum(matrix.n for matrix in recurrent_matrices(recurrent, hidden, tp))
    return total


def _ffn_vectors(model: ModelSpec, ffn: DenseFfn | MoeFfn, layout: Layout) -> int:
    hidden, total = model.hidden, 0
    if isinstance(ffn, DenseFfn):
        return (1 + ffn.gated) * (ffn.intermediate // layout.tp) + hidden if ffn.bias else 0
    if ffn.router_bias:
        total += ffn.experts
    if ffn.expert_bias:
        width = (1 + ffn.gated) * expert_width_per_gpu(model, ffn, layout)
        total += experts_per_gpu(ffn, layout) * (width + hidden)
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
