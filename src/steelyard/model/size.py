"""How big a model is: parameters, weight bytes per GPU, KV bytes per token."""

from __future__ import annotations

from dataclasses import dataclass, replace

from steelyard.errors import UserError, did_you_mean
from steelyard.model.layout import Layout, Stage, as_layout, stages
from steelyard.model.quantization import serve_as
from steelyard.model.sharding import check_layout, check_tp, kv_heads_per_gpu
from steelyard.model.spec import Attention, Layer, ModelSpec, MoeFfn
from steelyard.model.weights import (
    bytes_per_element,
    conv_channels,
    layer_matrices,
    lm_head,
    matrix_bytes,
    vector_elements,
)

_KV_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "fp8": 1}


@dataclass(frozen=True)
class Parameters:
    """Parameter counts.

    active are the parameters that one token uses, with the whole embedding table as on most model
    cards; active_without_embedding excludes the table (a look-up multiplies nothing), as
    gpt-oss's card does. A table tied to the output head is in both. mtp counts the extra
    prediction layers, which are in neither total nor active.
    """

    total: int
    active: int
    active_without_embedding: int
    mtp: int


_INDEX_BLOCK = 128  # values of an indexer's key, in 8 bits, that share a 32-bit scale
_LATENT_BLOCK = 128  # the same in an 8-bit cache of sparse attention, whose rotary part stays in 16 bits


@dataclass(frozen=True)
class KvGroup:
    """Layers that keep the same span of tokens: `window` of them, or all when None.

    If `chunked`, they keep the tokens since the last multiple of `window`.
    """

    window: int | None
    layers: int
    bytes_per_token: int
    chunked: bool = False


@dataclass(frozen=True)
class States:
    """Recurrent layers, and the bytes that each keeps for a request on one GPU."""

    layers: int
    bytes_each: int


def parameters(model: ModelSpec) -> Parameters:
    table = model.hidden * model.vocab
    head = 0 if model.tied_embeddings else table
    total = table + head + model.hidden
    active = total
    for layer in model.layers:
        total += layer.count * _layer_parameters(model, layer)
        active += layer.count * _active_parameters(model, layer)
    return Parameters(
        total=total,
        active=active,
        active_without_embedding=active - (0 if model.tied_embeddings else table),
        mtp=model.mtp_layers * _mtp_parameters(model),
    )


def _layer_parameters(model: ModelSpec, layer: Layer) -> int:
    return sum(m.elements for m in layer_matrices(model, layer)) + vector_elements(model, layer)


def _active_parameters(model: ModelSpec, layer: Layer) -> int:
    whole = _layer_parameters(model, layer)
    ffn = layer.ffn
    if not isinstance(ffn, MoeFfn):
        return whole
    one_expert = ffn.matrices * (ffn.latent or model.hidden) * ffn.expert_intermediate
    if ffn.expert_bias:
        one_expert += (ffn.matrices - 1) * ffn.expert_intermediate + model.hidden
    return whole - (ffn.experts - ffn.top_k) * one_expert


def _mtp_parameters(model: ModelSpec) -> int:
    """One multi-token-prediction layer: a decoder layer behind a projection of two hidden states.

    It shares the model's embedding and head.
    """
    return _layer_parameters(model, model.layers[-1]) + 2 * model.hidden**2 + 3 * model.hidden


def weight_bytes(model: ModelSpec, *, tp: int | Layout = 1, dtype: str | None = None) -> int:
    """Bytes of weights on the GPU that holds most: all hold the same unless stages or experts are uneven.

    Embedding and head are split over the vocabulary and stay in 16 bits; norms, the router and
    low-rank projections are whole on every GPU.
    """
    if dtype is not None:
        model = serve_as(model, dtype)
    _check(model, tp)
    return max(stage_weight_bytes(stage, tp) for stage in stages(model, tp))


def stage_weight_bytes(stage: Stage, layout: int | Layout = 1) -> int:
    """Bytes of weights on each GPU of one pipeline stage: the embedding is on the first, the head on the last."""
    model, layout = stage.model, as_layout(layout)
    tables = 1 if model.tied_embeddings and stage.first and stage.last else stage.first + stage.last
    final_norm = model.hidden if stage.last else 0
    total = float((tables * lm_head(model, layout.tp).elements + final_norm) * model.dtype_bytes)
    for layer in model.layers:
        one = float(vector_elements(model, layer, layout) * model.dtype_bytes)
        one += sum(matrix_bytes(model, m) for m in layer_matrices(model, layer, layout))
        total += layer.count * (one + _absorbed_bytes(model, layer, layout.tp))
    return round(total)


def _check(model: ModelSpec, layout: int | Layout) -> None:
    if isinstance(layout, int):
        check_tp(model, layout)
    else:
        check_layout(model, layout)


def _absorbed_bytes(model: ModelSpec, layer: Layer, tp: int) -> int:
    """The 16-bit copy of mla's up-projection that decode uses, made when the stored one is quantised."""
    copies = [m for m in layer_matrices(model, layer, tp) if m.name == "kv_b_proj"]
    quantised = [m for m in copies if bytes_per_element(model, m) < model.dtype_bytes]
    return sum(m.elements for m in quantised) * model.dtype_bytes


def kv_elements(attention: Attention, tp: int = 1) -> int:
    """Values of one token in one layer's cache on one GPU, less an indexer's; mla's latent is whole on each."""
    if attention.kind == "mla":
        return attention.kv_lora_rank + attention.qk_rope_dim
    return 2 * kv_heads_per_gpu(attention, tp) * attention.head_dim


def index_bytes(attention: Attention) -> int:
    """Bytes of one token's key in the cache of the indexer, on each GPU: values in 8 bits, with their scales."""
    if attention.indexer is None:
        return 0
    dim = attention.indexer.head_dim
    return dim + 4 * (dim // _INDEX_BLOCK)


def kv_bytes(attention: Attention, value_bytes: int, tp: int = 1) -> int:
    """Bytes of one token in one layer's cache on one GPU, less an indexer's.

    Sparse attention keeps an 8-bit latent with scales and its rotary part in 16 bits, as FlashMLA reads it.
    """
    if attention.indexer is not None and value_bytes == 1:
        latent = attention.kv_lora_rank
        return latent + 4 * (latent // _LATENT_BLOCK) + 2 * attention.qk_rope_dim
    return kv_elements(attention, tp) * value_bytes


def states(model: ModelSpec, tp: int | Layout = 1) -> States | None:
    """The recurrent state of a request, with what the short convolution sees; None if the model has no such layers."""
    kinds = model.recurrents
    if not kinds:
        return None
    tp = as_layout(tp).tp
    sizes = {
        (each.heads // tp) * each.head_dim * each.state_dim * each.state_bytes
        + (each.conv - 1) * conv_channels(each, tp) * model.dtype_bytes
        for each, _ in kinds
    }
    return States(sum(count for _, count in kinds), max(sizes))


def kv_groups(model: ModelSpec, kv_dtype: str = "auto", tp: int | Layout = 1) -> tuple[KvGroup, ...]:
    """KV bytes per token and GPU of a whole model or one stage of it, by attention span.

    Hybrid models drop tokens outside a window. For a pipeline this is the sum over its stages.
    """
    _check(model, tp if isinstance(tp, int) else replace(tp, pp=1))
    tp = as_layout(tp).tp
    size = kv_dtype_bytes(model, kv_dtype)
    groups: dict[tuple[int | None, bool], tuple[int, int]] = {}
    for attention, count in model.attentions:
        span = attention.window, attention.chunked
        layers, held = groups.get(span, (0, 0))
        added = count * (kv_bytes(attention, size, tp) + index_bytes(attention))
        groups[span] = (layers + count, held + added)
    return tuple(KvGroup(window, *numbers, chunked) for (window, chunked), numbers in groups.items())


def kv_bytes_per_token(model: ModelSpec, kv_dtype: str = "auto", tp: int | Layout = 1) -> int:
    """KV bytes of one token on each GPU (of a pipeline: summed over stages) while every layer still holds it."""
    return sum(group.bytes_per_token for group in kv_groups(model, kv_dtype, tp))


def kv_dtype_bytes(model: ModelSpec, kv_dtype: str = "auto") -> int:
    """Bytes of one cached value; 'auto' is the model's dtype."""
    if kv_dtype == "auto":
        return model.dtype_bytes
    if kv_dtype not in _KV_DTYPE_BYTES:
        choices = ("auto", *_KV_DTYPE_BYTES)
        raise UserError(f"kv_cache_dtype: found {kv_dtype!r}, {did_you_mean(kv_dtype, choices)}")
    return _KV_DTYPE_BYTES[kv_dtype]
