"""How tensor parallelism cuts a model: each GPU's share, and which cuts are possible."""

from __future__ import annotations

from collections.abc import Iterator

from steelyard.errors import UserError
from steelyard.model.spec import Attention, DenseFfn, ModelSpec, MoeFfn

_VOCAB_PADDING = 64  # vLLM pads the vocabulary to a multiple of this before splitting it
_MXFP4_GROUP = 32
_MOST_TP = 64


def kv_heads_per_gpu(attention: Attention, tp: int) -> int:
    """KV heads on one GPU: split while they last, then replicated."""
    return max(1, attention.kv_heads // tp)


def padded_vocab(model: ModelSpec) -> int:
    return -(-model.vocab // _VOCAB_PADDING) * _VOCAB_PADDING


def expert_width_per_gpu(model: ModelSpec, ffn: MoeFfn, tp: int) -> int:
    """An expert's intermediate width on one GPU; mxfp4 shares are rounded up to whole scale groups."""
    if model.quantization is not None and model.quantization.method == "mxfp4":
        return -(-ffn.expert_intermediate // (_MXFP4_GROUP * tp)) * _MXFP4_GROUP
    return ffn.expert_intermediate // tp


def check_tp(model: ModelSpec, tp: int) -> None:
    """Refuse a tensor-parallel size that does not divide the model, saying why and what would."""
    problem = next(_problems(model, tp), None)
    if problem is None:
        return
    works = [str(size) for size in range(1, _MOST_TP + 1) if next(_problems(model, size), None) is None]
    raise UserError(f"{tp} does not fit {model.name}: {problem}; tp can be {', '.join(works)}")


def _problems(model: ModelSpec, tp: int) -> Iterator[str]:
    if tp < 1:
        yield "it must be at least 1"
        return
    for layer in model.layers:
        attention = layer.attention
        if attention.heads % tp:
            yield f"{attention.heads} attention heads cannot be split {tp} ways"
        kv_heads = attention.kv_heads
        if kv_heads % tp and tp % kv_heads:
            yield f"{kv_heads} KV heads can be neither split nor replicated evenly {tp} ways"
        for what, width in _widths(model, layer.ffn):
            if width % tp:
                yield f"the {what} width {width} cannot be split {tp} ways"
            block = None if model.quantization is None else model.quantization.block
            if block is not None and tp > 1 and width // tp % block:
                yield f"the {what} width {width} split {tp} ways cuts its {block}-wide quantisation blocks"
    if padded_vocab(model) % tp:
        yield f"the vocabulary of {padded_vocab(model)} cannot be split {tp} ways"


def _widths(model: ModelSpec, ffn: DenseFfn | MoeFfn) -> Iterator[tuple[str, int]]:
    """Feed-forward widths that every GPU takes an equal slice of."""
    if isinstance(ffn, DenseFfn):
        yield "feed-forward", ffn.intermediate
        return
    if model.quantization is None or model.quantization.method != "mxfp4":
        yield "expert", ffn.expert_intermediate
    if ffn.shared_intermediate:
        yield "shared-expert", ffn.shared_intermediate
