"""Compiles a training job from a model, GPUs and a layout. All sources are queried here, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from steelyard.cost import CostSource, FirstOf, Roofline
from steelyard.cost.roofline import ELEMENTWISE_MEMORY
from steelyard.cost.source import PROVENANCES, Floats
from steelyard.errors import UserError
from steelyard.hardware import Gpu, Topology
from steelyard.model import ModelSpec, Routing, Stage
from steelyard.posttrain.training.cost import Exchanges, TrainingCost
from steelyard.posttrain.training.efficiency import ADAM_BYTES
from steelyard.posttrain.training.flops import flops_of
from steelyard.posttrain.training.groups import Groups
from steelyard.posttrain.training.kernels import Answers, Kernels
from steelyard.posttrain.training.layout import FSDP, TrainLayout, layout_refusal
from steelyard.posttrain.training.memory import (
    WEIGHT_BYTES,
    TrainingMemory,
    memory_refusal,
    stage_weights,
    training_memory,
)
from steelyard.posttrain.training.settings import TrainSettings, settings_refusal
from steelyard.posttrain.training.tables import Tabulator

_POINTS = 10  # numbers of tokens that are tabulated; linear between them
_FEWEST = 64
HOST_SHARE = 0.80  # of PCIe's rated bandwidth that large copies from and to pinned memory reach


def refusal(
    model: ModelSpec, gpu: Gpu, topology: Topology, layout: TrainLayout, settings: TrainSettings | None = None
) -> str | None:
    """Why a training job cannot run like this; None if it can. Fast enough to filter layouts with."""
    found = _memory(replace(model, quantization=None), gpu, topology, layout, settings or TrainSettings())
    return found if isinstance(found, str) else None


def _memory(
    model: ModelSpec, gpu: Gpu, topology: Topology, layout: TrainLayout, settings: TrainSettings
) -> TrainingMemory | str:
    """The memory of a job, or why it cannot run."""
    refused = layout_refusal(model, topology, layout) or settings_refusal(settings, layout.dp)
    if refused is not None:
        return refused
    found = training_memory(model, gpu, layout, settings)
    return memory_refusal(model, gpu, layout, found) or found


def compile_training(
    model: ModelSpec,
    gpu: Gpu,
    topology: Topology,
    layout: TrainLayout,
    settings: TrainSettings | None = None,
    sources: Sequence[CostSource] = (),
    routing: Routing | None = None,
    answers: Answers | None = None,
) -> TrainingCost:
    """Compile a job; refuses one that cannot run. Weights are trained in 16 bits, whatever they are served in.

    The time of each operator comes from the first source that knows it, or else from the roofline. ``answers`` caches
    times between layouts of the same model, GPUs and sources.
    """
    settings = settings or TrainSettings()
    model = replace(model, quantization=None)
    memory = _memory(model, gpu, topology, layout, settings)
    if isinstance(memory, str):
        raise UserError(f"training: {memory}")
    grid = _grid(layout.micro_batch_tokens)
    source = FirstOf((*sources, Roofline(gpu, topology)))
    kernels = Kernels(source, layout, grid, settings.kept_up, answers or Answers())
    groups = Groups(topology, layout)
    stages = layout.stages(model)
    different = list(dict.fromkeys(stages))
    tabulator = Tabulator(model, kernels, groups, settings, routing or Routing())
    tables = [tabulator.stage(stage) for stage in different]
    row = model.hidden * model.dtype_bytes / layout.tp
    return TrainingCost(
        layout=layout,
        settings=settings,
        memory=memory,
        flops=flops_of(model),
        peak=gpu.peak(model.compute),
        grid=grid,
        tables=np.stack([table.seconds for table in tables]),
        attention=tuple(table.attention for table in tables),
        stage_of=np.array([different.index(stage) for stage in stages]),
        sends=groups.send(grid * row),
        exchanges=_exchanges(gpu, groups, stages, settings),
        optimiser=_optimiser(gpu, stages, layout),
        provenance=_shares(kernels.by_provenance),
    )


def _grid(most: int) -> Floats:
    """Numbers of tokens from 0 to ``most``, evenly spaced in their logarithms."""
    fewest = min(_FEWEST, max(1, most // 2))
    inner = np.geomspace(fewest, most, _POINTS) if most > 1 else np.ones(1)
    return np.concatenate([[0.0], np.unique(np.round(inner))])


def _exchanges(gpu: Gpu, groups: Groups, stages: Sequence[Stage], settings: TrainSettings) -> Exchanges:
    """The exchanges of the stage that has most of them."""
    layout = groups.layout
    held = [stage_weights(stage, layout) for stage in stages]
    gradients = weights = fetch = 0.0
    for own in held:
        size = (settings.gradient_bytes * own.dense, settings.gradient_bytes * own.experts)
        gradients = max(gradients, groups.scattered(*size) if layout.zero else groups.reduced(*size))
        if layout.zero:
            weights = max(weights, groups.scattered(WEIGHT_BYTES * own.dense, WEIGHT_BYTES * own.experts))
        if settings.reference == "offloaded":
            kept = own.sharded(layout) if layout.zero >= FSDP else own.total
            fetch = max(fetch, WEIGHT_BYTES * kept / host_rate(gpu))
    return Exchanges(gradients, weights, fetch)


def host_rate(gpu: Gpu) -> float:
    """Bytes/s between a GPU and pinned memory of its host."""
    return HOST_SHARE * gpu.pcie_bandwidth


def _optimiser(gpu: Gpu, stages: Sequence[Stage], layout: TrainLayout) -> float:
    """Seconds of Adam over the weights whose states a GPU keeps: bound by memory bandwidth."""
    held = [stage_weights(stage, layout) for stage in stages]
    most = max(own.sharded(layout) if layout.zero else float(own.total) for own in held)
    return ADAM_BYTES * most / (gpu.memory_bandwidth * ELEMENTWISE_MEMORY)


def _shares(seconds: Floats) -> dict[str, float]:
    total = float(seconds.sum())
    return {name: float(each) / total for name, each in zip(PROVENANCES, seconds, strict=True) if each}
