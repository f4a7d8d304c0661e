"""How an engine's layout splits a model: each GPU's share, and which splits are possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from steelyard.errors import UserError
from steelyard.model.layout import Layout, as_layout
from steelyard.model.spec import Attention, DenseFfn, ModelSpec, MoeFfn, Recurrent

_VOCAB_PADDING = 64  # vLLM pads the vocabulary to a multiple of this before splitting it
_MXFP4_GROUP = 32  # weights that share a scale, by the OCP microscaling format
_MOST_RANKS = 64  # tried when suggesting a degree that works; chosen

Degree = Literal["tp", "pp", "dp", "dcp"]


def kv_copies(attention: Attention, tp: int) -> int:
    """GPUs that would cache the same values without context parallelism; mla's latent is the same on all."""
    return tp if attention.kind == "mla" else max(1, tp // attention.kv_heads)


def kv_heads_per_gpu(attention: Attention, tp: int) -> int:
    """KV heads on one GPU: split as far as possible, then replicated."""
    return max(1, attention.kv_heads // tp)


def state_groups_per_gpu(recurrent: Recurrent, tp: int) -> int:
    """Groups of keys and queries on one GPU: split with the heads; a single one is on every GPU."""
    return max(1, recurrent.groups // tp)


def padded_vocab(model: ModelSpec) -> int:
    return -(-model.vocab // _VOCAB_PADDING) * _VOCAB_PADDING


def expert_width_per_gpu(model: ModelSpec, ffn: MoeFfn, layout: int | Layout) -> int:
    """An expert's intermediate width on one GPU; mxfp4 shares are rounded up to whole scale groups."""
    slices = as_layout(layout).expert_slices
    if model.quantization is not None and model.quantization.method == "mxfp4":
        return -(-ffn.expert_intermediate // (_MXFP4_GROUP * slices)) * _MXFP4_GROUP
    return ffn.expert_intermediate // slices


def experts_per_gpu(ffn: MoeFfn, layout: int | Layout) -> int:
    """Experts on the GPU that holds most of them, copies included."""
    layout = as_layout(layout)
    return -(-(ffn.experts + layout.redundant_experts) // layout.expert_ranks)


def check_tp(model: ModelSpec, tp: int) -> None:
    """Refuse a tensor-parallel size that does not divide the model, saying why and what would."""
    _check(model, Layout(tp=tp), str(tp))


def check_layout(model: ModelSpec, layout: int | Layout) -> None:
    """Refuse a layout that the model does not allow, saying why and what would work."""
    layout = as_layout(layout)
    _check(model, layout, str(layout))


def _check(model: ModelSpec, layout: Layout, said: str) -> None:
    found = next(_problems(model, layout), None)
    if found is None:
        return
    degree, problem = found
    works = [str(size) for size in range(1, _MOST_RANKS + 1) if _fits(model, layout, degree, size)]
    advice = f"{degree} can be {', '.join(works)}" if works else f"no {degree} would do with the rest as it is"
    raise UserError(f"{said} does not fit {model.name}: {problem}; {advice}")


def _fits(model: ModelSpec, layout: Layout, degree: Degree, size: int) -> bool:
    sizes: dict[Degree, int] = {**_degrees(layout), degree: size}
    changed = replace(layout, tp=sizes["tp"], pp=sizes["pp"], dp=sizes["dp"], dcp=sizes["dcp"])
    return next(_problems(model, changed), None) is None


def _degrees(layout: Layout) -> dict[Degree, int]:
    return {"tp": layout.tp, "pp": layout.pp, "dp": layout.dp, "dcp": layout.dcp}


def _problems(model: ModelSpec, layout: Layout) -> Iterator[tuple[Degree, str]]:
    """What is wrong with a layout, each with the degree to change."""
    for degree, size in _degrees(layout).items():
        if size < 1:
            yield degree, "it must be at least 1"
            return
    tp = layout.tp
    for layer in model.layers:
        if layer.attention is not None:
            yield from _attention_problems(layer.attention, tp)
        if layer.recurrent is not None:
            yield from _recurrent_problems(layer.recurrent, tp)
        if layer.ffn is not None:
            yield from _ffn_problems(model, layer.ffn, layout)
    if padded_vocab(model) % tp:
        yield "tp", f"the vocabulary of {padded_vocab(model)} cannot be split {tp} ways"
    if layout.pp > model.num_layers:
        yield "pp", f"{model.num_layers} layers cannot be divided over {layout.pp} stages"
    yield from _expert_problems(model, layout)
    yield from _context_problems(model, layout)


def _attention_problems(attention: Attention, tp: int) -> Iterator[tuple[Degree, str]]:
    if attention.heads % tp:
        yield "tp", f"{attention.heads} attention heads cannot be split {tp} ways"
    kv_heads = attention.kv_heads
    if kv_heads % tp and tp % kv_heads:
        yield "tp", f"{kv_heads} KV heads can be neither split nor replicated evenly {tp} ways"


def _recurrent_problems(recurrent: Recurrent, tp: int) -> Iterator[tuple[Degree, str]]:
    """vLLM's rules: the heads of the state are split, and their groups with them, of which one alone is replicated."""
    if recurrent.heads % tp:
        yield "tp", f"{recurrent.heads} heads with a recurrent state cannot be split {tp} ways"
    groups = recurrent.groups
    if groups % tp and (recurrent.kind != "mamba2" or groups != 1):
        what = "state groups" if recurrent.kind == "mamba2" else "key heads of recurrent layers"
        yield "tp", f"{groups} {what} cannot be split {tp} ways"


def _ffn_problems(model: ModelSpec, ffn: DenseFfn | MoeFfn, layout: Layout) -> Iterator[tuple[Degree, str]]:
    block = None if model.quantization is None else model.quantization.block
    for what, width, ways in _widths(model, ffn, layout):
        degree: Degree = "tp" if layout.tp > 1 or layout.dp == 1 else "dp"
        if width % ways:
            yield degree, f"the {what} width {width} cannot be split {ways} ways"
        if block is not None and ways > 1 and width // ways % block:
            yield degree, f"the {what} width {width} split {ways} ways cuts its {block}-wide quantisation blocks"


def _widths(model: ModelSpec, ffn: DenseFfn | MoeFfn, layout: Layout) -> Iterator[tuple[str, int, int]]:
    """Feed-forward widths that are sliced equally, and over how many GPUs."""
    if isinstance(ffn, DenseFfn):
        yield "feed-forward", ffn.intermediate, layout.tp
        return
    if model.quantization is None or model.quantization.method != "mxfp4":
        yield "expert", ffn.expert_intermediate, layout.expert_slices
    if ffn.shared_intermediate:
        yield "shared-expert", ffn.shared_intermediate, layout.tp


def _expert_problems(model: ModelSpec, layout: Layout) -> Iterator[tuple[Degree, str]]:
    counts = [layer.ffn.experts for layer in model.layers if isinstance(layer.ffn, MoeFfn)]
    if not counts:
        if layout.expert_parallel:
            yield "dp", "it has no routed experts for expert_parallel to deal out"
        elif layout.dp > 1:
            yield "dp", "data-parallel ranks share routed experts and it has none, so they are replicas"
        return
    ranks = layout.expert_ranks
    degree: Degree = "dp" if layout.dp > 1 else "tp"
    if ranks > min(counts):
        yield degree, f"{min(counts)} experts cannot be divided over {ranks} ranks (tp x dp)"
    if layout.redundant_experts and not layout.expert_parallel:
        yield degree, f"{layout.redundant_experts} redundant experts need expert_parallel"
    elif layout.redundant_experts and (min(counts) + layout.redundant_experts) % ranks:
        copies = min(counts) + layout.redundant_experts
        yield degree, f"{copies} experts, redundant ones included, cannot be divided evenly over {ranks} ranks"


def _context_problems(model: ModelSpec, layout: Layout) -> Iterator[tuple[Degree, str]]:
    """Cached tokens can only be split over GPUs that would have copies of them."""
    if layout.dcp == 1:
        return
    for attention, _ in model.attentions:
        copies = kv_copies(attention, layout.tp)
        if copies % layout.dcp:
            heads = "the latent" if attention.kind == "mla" else f"each of {attention.kv_heads} KV heads"
            gpus = f"{copies} GPU" if copies == 1 else f"{copies} GPUs"
            yield "dcp", f"at tp={layout.tp} {heads} is on {gpus}, no multiple of {layout.dcp}"
        if attention.window is not None:
            yield "dcp", f"its layers with a window of {attention.window} tokens cannot split them"
        if attention.indexer is not None:
            yield "dcp", "sparse attention over split tokens is not simulated"
    if model.recurrents:
        yield "dcp", "its recurrent layers have no cached tokens to split, which is not simulated"
