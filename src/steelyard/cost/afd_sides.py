"""The two sides of attention/FFN disaggregation: operators, weights, memory, work.

The attention side keeps the residual stream, so it also has the norms, and the router, whose choice decides where a
token is sent. The FFN side has the feed-forward matrices. Dense ones are split ``tp`` ways in each instance, and tokens
are distributed over instances. Routed experts lie whole on its GPUs, each of which is an expert-parallel rank. Shared
experts are on every GPU, and a token's are computed where one of its routed experts is. Or the GPUs of a node slice
them like a tensor-parallel group: they gather each other's tokens, and scatter the sums of what comes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from steelyard.cost.memory import RUNTIME_BYTES, WORKSPACE_BYTES, MemoryPlan
from steelyard.cost.source import CostSource, RowOperator
from steelyard.cost.work import Work, work_of
from steelyard.errors import NoRoom, UserError
from steelyard.hardware import Gpu
from steelyard.model import (
    AttentionOperator,
    Collective,
    DenseFfn,
    Gemm,
    GroupedGemm,
    Layer,
    Layout,
    ModelSpec,
    MoeFfn,
    Operator,
    Recurrence,
    Routing,
    Stage,
    operators,
    stage_weight_bytes,
)

_FFN_BEGINS = ("post_norm", "pre_ffn_norm")
_STAYS = (*_FFN_BEGINS, "router", "router_topk", "post_ffn_norm")  # FFN operators on the attention side
_SHARED = ("shared_gate_up", "shared_act", "shared_down")  # work on all tokens of GPUs that slice the shared experts
_EXCHANGES = ("dispatch", "combine")  # between expert ranks of one engine; here tokens come from attention


@dataclass(frozen=True)
class Side:
    """Equal instances of one side, of ``tp`` GPUs each, and the cost source of these GPUs."""

    gpu: Gpu
    instances: int
    tp: int
    sources: tuple[CostSource, ...]
    redundant_experts: int = 0
    routing: Routing = field(default_factory=Routing)
    shared_ranks: int = 1  # GPUs that have a slice of the shared experts each

    @property
    def gpus(self) -> int:
        """GPUs of the side."""
        return self.instances * self.tp


def attention_part(model: ModelSpec) -> ModelSpec:
    """The model as the attention side holds it: with feed-forward blocks of width zero."""
    return replace(model, layers=tuple(replace(layer, ffn=_hollow(model, layer)) for layer in model.layers))


def _hollow(model: ModelSpec, layer: Layer) -> DenseFfn | MoeFfn:
    ffn, attention = layer.ffn, layer.attention
    if ffn is None or attention is None or attention.chunked or attention.indexer is not None:
        raise UserError(
            f"model {model.name}: attention/FFN units are simulated for layers of plain or latent attention with a "
            "feed-forward block; some of its layers have none, or recurrent, sparse or chunked attention"
        )
    if isinstance(ffn, DenseFfn):
        return DenseFfn(0)
    return replace(ffn, expert_intermediate=0, shared_intermediate=0, shared_gate=False, expert_bias=False)


def attention_operators(model: ModelSpec, layer: Layer, tp: int) -> Iterator[Operator]:
    """A layer's operators on one GPU of an attention instance, with the gather of returned slices."""
    (hollow,) = attention_part(replace(model, layers=(layer,))).layers
    ffn = False
    for operator in operators(attention_part(model), hollow, Layout(tp=tp)):
        ffn = ffn or operator.name in _FFN_BEGINS
        if not ffn or operator.name in _STAYS:
            yield operator
    yield from _gather(model, tp)


def ffn_operators(model: ModelSpec, layer: Layer, side: Side) -> Iterator[tuple[RowOperator, int]]:
    """A layer's operators on the busiest GPU of the FFN side, each with the number of instances that share tokens."""
    layout, instances = _ffn_layout(layer, side)
    if isinstance(layer.ffn, DenseFfn):
        yield from ((gather, instances) for gather in _gather(model, side.tp))
    ffn, sliced = False, side.shared_ranks > 1
    groups = instances // side.shared_ranks
    for operator in operators(model, _held(layer, side), layout, side.routing):
        ffn = ffn or operator.name in _FFN_BEGINS
        if not ffn or isinstance(operator, AttentionOperator | Recurrence) or operator.name in (*_STAYS, *_EXCHANGES):
            continue
        if sliced and operator.name == "shared_gate_up":
            yield _among(model, side, "shared_gather", "allgather"), groups
        in_group = sliced and operator.name in _SHARED
        yield operator, groups if in_group else 1 if operator.per == "pooled" else instances
        if sliced and operator.name == "shared_down":
            yield _among(model, side, "shared_scatter", "reducescatter"), groups


def _held(layer: Layer, side: Side) -> Layer:
    """The layer with the slice of its shared experts that an FFN GPU has."""
    if not isinstance(layer.ffn, MoeFfn) or side.shared_ranks == 1:
        return layer
    return replace(
        layer, ffn=replace(layer.ffn, shared_intermediate=layer.ffn.shared_intermediate // side.shared_ranks)
    )


def _among(model: ModelSpec, side: Side, name: str, kind: Literal["allgather", "reducescatter"]) -> Collective:
    """An exchange of activations among GPUs that slice the shared experts."""
    return Collective(name, model.hidden * model.dtype_bytes, kind=kind, ranks=side.shared_ranks)


def _gather(model: ModelSpec, tp: int) -> Iterator[Collective]:
    """The gather of each row's slices among the GPUs of a tensor-parallel group."""
    if tp > 1:
        yield Collective("slices_gather", model.hidden * model.dtype_bytes, kind="allgather", ranks=tp)


def _ffn_layout(layer: Layer, side: Side) -> tuple[Layout, int]:
    """The layout of a layer's feed-forward block, and the number of instances that share tokens."""
    if isinstance(layer.ffn, DenseFfn):
        return Layout(tp=side.tp), side.instances
    if side.gpus == 1:
        return Layout(), 1
    layout = Layout(
        dp=side.gpus,
        expert_parallel=True,
        redundant_experts=side.redundant_experts,
        all2all="deepep_low_latency",  # a token is only where it has an expert
    )
    return layout, side.gpus


def check_experts(model: ModelSpec, side: Side) -> None:
    """Refuse an FFN side with more GPUs than experts, or with unequal numbers of experts per GPU."""
    experts_of = [layer.ffn for layer in model.layers if isinstance(layer.ffn, MoeFfn)]
    counts = [each.experts for each in experts_of]
    if any(each.shared_intermediate % side.shared_ranks for each in experts_of):
        raise UserError(
            f"afd.shared_experts: the shared experts of {model.name} cannot be cut into {side.shared_ranks} equal "
            "slices; leave them copied"
        )
    if not counts:
        if side.redundant_experts:
            raise UserError(f"redundant_experts: {model.name} has no routed experts; leave it at 0")
        return
    experts = min(counts)
    if side.gpus > experts:
        raise UserError(
            f"{model.name} has {experts} experts, which cannot be divided over {side.gpus} FFN GPUs of a unit "
            f"(replicas / afd.units x tp); use at most {experts}, or more units"
        )
    if side.redundant_experts and (experts + side.redundant_experts) % side.gpus:
        raise UserError(
            f"redundant_experts: {experts} experts and {side.redundant_experts} copies cannot be divided evenly over "
            f"{side.gpus} FFN GPUs of a unit; use a number that makes up a multiple of {side.gpus}"
        )


def plan_ffn_memory(model: ModelSpec, side: Side, utilization: float, tokens: int) -> MemoryPlan:
    """The memory of an FFN GPU for micro-batches of up to ``tokens``; refuses weights that do not fit."""
    usable = int(side.gpu.memory_bytes * utilization)
    weights = round(sum(layer.count * _ffn_bytes(model, layer, side) for layer in model.layers))
    widest = max(_widest(model, layer, side) for layer in model.layers)
    activations = int(tokens * (widest + 2 * model.hidden / side.gpus) * model.dtype_bytes) // 2 + WORKSPACE_BYTES
    if weights + activations + RUNTIME_BYTES > usable:
        raise NoRoom(
            f"the FFN weights of {model.name} do not fit on {side.gpus} x {side.gpu.full_name} of a unit: per GPU they "
            f"need {_gib(weights)}, activations {_gib(activations)} and the runtime {_gib(RUNTIME_BYTES)}, but "
            f"gpu_memory_utilization {utilization} of its memory is {_gib(usable)}; give a unit more FFN GPUs, or "
            "lower engine.max_num_batched_tokens if it is activations that take most"
        )
    return MemoryPlan(side.gpu.memory_bytes, usable, weights, activations, RUNTIME_BYTES, block_bytes=0, blocks=0)


def _ffn_bytes(model: ModelSpec, layer: Layer, side: Side) -> int:
    """Feed-forward weights of one layer on the FFN GPU that holds most: the layer's less those of attention."""
    layout, _ = _ffn_layout(layer, side)
    one = replace(model, layers=(replace(_held(layer, side), count=1),))
    whole, rest = (Stage(part, first=False, last=False) for part in (one, attention_part(one)))
    return stage_weight_bytes(whole, layout) - stage_weight_bytes(rest, layout)


def _widest(model: ModelSpec, layer: Layer, side: Side) -> float:
    """The most values that an FFN GPU holds at once for each token of a micro-batch."""
    widest = 0.0
    for operator, instances in ffn_operators(model, layer, side):
        if isinstance(operator, Gemm):
            widest = max(widest, (operator.k + operator.n) / instances)
        elif isinstance(operator, GroupedGemm):
            widest = max(widest, operator.choices * (operator.k + operator.n))
    return widest


def attention_work(model: ModelSpec, side: Side, kv_cache_dtype: str) -> Work:
    """Minimum work of an attention GPU, given a unit's steps: requests are spread evenly over instances."""
    whole, share = work_of(attention_part(model), side.gpu, side.tp, kv_cache_dtype), 1 / side.instances
    attention = tuple(
        replace(
            part,
            prefill_pair=part.prefill_pair * share,
            decode_pair=part.decode_pair * share,
            kv_bytes=part.kv_bytes * share,
        )
        for part in whole.attention
    )
    return replace(whole, per_token=whole.per_token * share, per_row=whole.per_row * share, attention=attention)


def ffn_work(model: ModelSpec, side: Side) -> Work:
    """Minimum work of an FFN GPU, given a unit's steps."""
    token = weights = 0.0
    experts: list[tuple[float, float]] = []
    for layer in model.layers:
        for operator, instances in ffn_operators(model, layer, side):
            if isinstance(operator, Gemm):
                token += layer.count * 2.0 * operator.k * operator.n / side.gpu.peak(operator.compute) / instances
                weights += layer.count * operator.k * operator.n * operator.weight_bytes
            elif isinstance(operator, GroupedGemm):
                flops = 2.0 * operator.k * operator.n * operator.choices
                token += layer.count * flops / side.gpu.peak(operator.compute)
                size = layer.count * operator.experts * operator.k * operator.n * operator.weight_bytes
                experts.append((size, operator.choices / operator.experts))
    return Work(token, 0.0, weights, tuple(experts), ())


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"
