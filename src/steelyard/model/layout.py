"""The layout of one engine over its GPUs, in vLLM's terms.

An engine has ``tp * pp * dp`` GPUs. Attention is split ``tp`` ways inside each of ``dp`` data-parallel ranks, which
have their own requests and cache. Layers are split into ``pp`` stages. Routed experts belong to all ``tp * dp`` GPUs of
a stage: whole experts on each GPU with ``expert_parallel``, a slice of every expert without it. If several GPUs of a
tensor-parallel group would cache the same values, ``dcp`` of them can split the cached tokens instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from steelyard.model.spec import Layer, ModelSpec

All2All = Literal["allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency"]
"""How tokens get to their experts over several data-parallel ranks, by vLLM's names."""


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism of one engine. ``redundant_experts`` are further copies of the busiest experts."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    expert_parallel: bool = False
    redundant_experts: int = 0
    all2all: All2All = "allgather_reducescatter"
    dcp: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of the engine."""
        return self.tp * self.pp * self.dp

    @property
    def expert_ranks(self) -> int:
        """GPUs that the experts of a layer are distributed over."""
        return self.tp * self.dp if self.expert_parallel else 1

    @property
    def expert_slices(self) -> int:
        """GPUs that each single expert is sliced over."""
        return 1 if self.expert_parallel else self.tp * self.dp

    def __str__(self) -> str:
        degrees = {"tp": self.tp, "pp": self.pp, "dp": self.dp, "dcp": self.dcp}
        said = [f"{name}={degree}" for name, degree in degrees.items() if degree != 1] or ["tp=1"]
        return " ".join([*said, *(["expert_parallel"] if self.expert_parallel else [])])


def as_layout(layout: int | Layout) -> Layout:
    """A layout; a plain number is a tensor-parallel degree."""
    return Layout(tp=layout) if isinstance(layout, int) else layout


@dataclass(frozen=True)
class Stage:
    """One pipeline stage: a model of its layers only, and whether it has the embedding or the output head."""

    model: ModelSpec
    first: bool
    last: bool


def layers_of_stages(layers: int, stages: int) -> tuple[int, ...]:
    """vLLM's rule: as even as possible; remaining layers go to the later stages, to the very last one last."""
    even, left = divmod(layers, stages)
    counts = [even] * stages
    for i in range(left):
        counts[stages - 2 - i] += 1
    return tuple(counts)


def stages(model: ModelSpec, layout: int | Layout = 1) -> tuple[Stage, ...]:
    """The stages of an engine's pipeline, in order; one if there is no pipeline."""
    pp = as_layout(layout).pp
    if pp == 1:
        return (Stage(model, first=True, last=True),)
    order = _in_order(model)
    found, begin = [], 0
    model = replace(model, order=())
    for i, count in enumerate(layers_of_stages(model.num_layers, pp)):
        own = order[begin : begin + count]
        kinds = tuple(replace(kind, count=own.count(kind)) for kind in dict.fromkeys(own))
        found.append(Stage(replace(model, layers=kinds), first=i == 0, last=i == pp - 1))
        begin += count
    return tuple(found)


def _in_order(model: ModelSpec) -> list[Layer]:
    """Every layer in order, each as a kind with a count of one.

    Where the model does not say, kinds with different feed-forward blocks follow each other (dense layers come first),
    and kinds that only differ in their attention alternate, as sliding and full layers do.
    """
    if model.order:
        return [replace(model.layers[kind], count=1) for kind in model.order]
    order: list[tuple[int, float, Layer]] = []
    blocks = list(dict.fromkeys(layer.ffn for layer in model.layers))
    for layer in model.layers:
        one = replace(layer, count=1)
        order.extend((blocks.index(layer.ffn), (i + 0.5) / layer.count, one) for i in range(layer.count))
    return [layer for _, _, layer in sorted(order, key=lambda each: each[:2])]
