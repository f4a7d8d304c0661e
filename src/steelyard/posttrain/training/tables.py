"""Tables of a pipeline stage: seconds of each part of a micro-batch by its tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steelyard.cost.source import Floats
from steelyard.model import AttentionOperator, AttentionShape, Layer, ModelSpec, MoeFfn, Routing, Stage
from steelyard.posttrain.training.groups import Groups
from steelyard.posttrain.training.kernels import (
    AttentionTime,
    Kernels,
    Passes,
    first_operators,
    last_operators,
    layer_operators,
)
from steelyard.posttrain.training.settings import TrainSettings

# Rows of a stage's table.
FORWARD, BACKWARD, RECOMPUTED, TP_FORWARD, TP_BACKWARD, EP_FORWARD, EP_BACKWARD, CP_FORWARD, CP_BACKWARD = range(9)
ROWS = 9


@dataclass(frozen=True)
class AttentionPart:
    """Attention of the layers of one kind, and one hop of their keys and values round the context-parallel ring."""

    layers: int
    time: AttentionTime
    hop: Floats


@dataclass(frozen=True)
class StageTable:
    """Seconds by tokens of one GPU [ROWS, tokens], without attention, which depends on lengths."""

    seconds: Floats
    attention: tuple[AttentionPart, ...]


@dataclass(frozen=True)
class _LayerTable:
    seconds: Floats
    attention: AttentionTime
    hop: Floats


class Tabulator:
    """Makes the tables of a job's stages. Each kind of layer is queried once."""

    def __init__(
        self, model: ModelSpec, kernels: Kernels, groups: Groups, settings: TrainSettings, routing: Routing
    ) -> None:
        self.model = model
        self.kernels = kernels
        self.groups = groups
        self.settings = settings
        self.routing = routing
        self._layers: dict[Layer, _LayerTable] = {}

    def stage(self, stage: Stage) -> StageTable:
        """A stage's layers, and what comes before or after them if it is the first or last."""
        total = np.zeros((ROWS, len(self.kernels.tokens)))
        parts = []
        for layer in stage.model.layers:
            own = self._layer(replace(layer, count=1))
            total += layer.count * own.seconds
            parts.append(AttentionPart(layer.count, own.attention, own.hop))
        if stage.first:
            self._add(total, self.kernels.passes(first_operators(self.model)))
            total[[TP_FORWARD, TP_BACKWARD]] += self._exchanged(1)
        if stage.last:
            self._add(total, self.kernels.passes(last_operators(self.model, self.kernels.layout)))
            total[[TP_FORWARD, TP_BACKWARD]] += self._exchanged(1)
        return StageTable(total, tuple(parts))

    @staticmethod
    def _add(total: Floats, passes: Passes) -> None:
        total[FORWARD] += passes.forward
        total[BACKWARD] += passes.backward

    def _layer(self, layer: Layer) -> _LayerTable:
        if layer not in self._layers:
            self._layers[layer] = self._tabulate(layer)
        return self._layers[layer]

    def _tabulate(self, layer: Layer) -> _LayerTable:
        model, kernels, layout = self.model, self.kernels, self.kernels.layout
        ops = layer_operators(model, layer, layout, self.routing)
        passes = kernels.passes(ops)
        attention = next(op for op in ops if isinstance(op, AttentionOperator))
        seconds = np.zeros((ROWS, len(kernels.tokens)))
        self._add(seconds, passes)
        again = {"none": np.zeros_like(passes.light), "selective": passes.light, "full": passes.forward}
        seconds[RECOMPUTED] = again[layout.recompute]
        seconds[TP_FORWARD] = seconds[TP_BACKWARD] = self._exchanged(_exchanges(layer, layout.ep > 1))
        if isinstance(layer.ffn, MoeFfn):
            there = self.groups.exchange(model, layer.ffn, self.settings.dispatcher, kernels.tokens / layout.tp)
            seconds[EP_FORWARD] = seconds[EP_BACKWARD] = (1.0 - self.settings.ep_overlap) * there
        hop = self._context(attention.prefill, seconds)
        if layout.recompute == "full":  # repeats the exchanges of the forward pass
            for forward, backward in ((TP_FORWARD, TP_BACKWARD), (EP_FORWARD, EP_BACKWARD), (CP_FORWARD, CP_BACKWARD)):
                seconds[backward] += seconds[forward]
        return _LayerTable(seconds, kernels.attention(attention, model.dtype_bytes), hop)

    def _context(self, shape: AttentionShape, seconds: Floats) -> Floats:
        """Seconds of a hop round the ring. Sets the seconds of a layer if ranks swap tokens for heads instead."""
        layout, size = self.kernels.layout, self.kernels.tokens * self.model.dtype_bytes
        if layout.context == "ring":
            return self.groups.hop(size * shape.kv_heads * (shape.qk_dim + shape.v_dim))
        keys = max(shape.kv_heads, layout.cp) * (shape.qk_dim + shape.v_dim)  # at least one per rank
        there = self.groups.swapped(size * (shape.heads * shape.qk_dim + keys))
        seconds[[CP_FORWARD, CP_BACKWARD]] = there + self.groups.swapped(size * shape.heads * shape.v_dim)
        return np.zeros_like(size)

    def _exchanged(self, times: int) -> Floats:
        """Visible seconds of gathering or scattering hidden states over tensor-parallel ranks ``times`` times."""
        size = self.kernels.tokens * self.model.hidden * self.model.dtype_bytes
        return times * (1.0 - self.settings.tp_overlap) * self.groups.gathered(size)


def _exchanges(layer: Layer, expert_parallel: bool) -> int:
    """Gathers and scatters of a layer's forward pass: one of each around attention, and around the split part of the
    feed-forward block. Expert-parallel ranks need none."""
    if not isinstance(layer.ffn, MoeFfn) or not expert_parallel:
        return 4
    return 4 if layer.ffn.shared_intermediate else 2
