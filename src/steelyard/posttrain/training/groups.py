"""The communication groups of a training job, and how long their collectives take on its network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from steelyard.cost.collectives import Collectives, ExpertExchange, Kind
from steelyard.cost.source import Floats
from steelyard.hardware import Span, Topology
from steelyard.model import ModelSpec, MoeFfn
from steelyard.posttrain.training.layout import TrainLayout
from steelyard.posttrain.training.settings import Dispatcher


@dataclass(frozen=True)
class Groups:
    """The groups of a layout's first rank. All other groups are placed the same way."""

    topology: Topology
    layout: TrainLayout

    @cached_property
    def collectives(self) -> Collectives:
        return Collectives(self.topology)

    @cached_property
    def tensor(self) -> Span:
        """Ranks that split matrices."""
        return self.topology.span(self.layout.tp)

    @cached_property
    def context(self) -> Span:
        """Ranks that split sequences."""
        return self.topology.span(self.layout.cp, stride=self.layout.tp)

    @cached_property
    def experts(self) -> Span:
        """Ranks that experts are divided among."""
        return self.topology.span(self.layout.ep)

    @cached_property
    def data(self) -> Span:
        """Ranks with the same dense weights."""
        return self.topology.span(self.layout.shards, stride=self.layout.tp)

    @cached_property
    def expert_data(self) -> Span:
        """Ranks with the same experts."""
        stride = self.layout.tp if self.layout.ep == 1 else self.layout.ep
        return self.topology.span(self.layout.expert_shards, stride=stride)

    @cached_property
    def neighbours(self) -> Span:
        """A rank and the same rank of the next stage."""
        return self.topology.span(2, stride=self.layout.tp * self.layout.shards)

    def gathered(self, size: Floats) -> Floats:
        """Sequence parallelism: each tensor-parallel rank has a part of the tokens and needs all, or the reverse."""
        return self.collectives.seconds("allgather", self.tensor, size)

    def exchange(self, model: ModelSpec, ffn: MoeFfn, dispatcher: Dispatcher, tokens: Floats) -> Floats:
        """Tokens of each rank to their experts and back, once."""
        row = model.hidden * model.dtype_bytes
        if self.layout.ep == 1:
            return np.zeros_like(tokens)
        if dispatcher == "alltoall":  # one copy for each expert that a token visits
            return 2.0 * self.collectives.seconds("alltoall", self.experts, tokens * ffn.top_k * row)
        there = ExpertExchange("high_throughput", "dispatch", row, ffn.top_k, ffn.experts)
        back = ExpertExchange("high_throughput", "combine", row, ffn.top_k, ffn.experts)
        first, second = (self.collectives.exchange(each, self.experts, tokens).seconds for each in (there, back))
        return first + second

    def hop(self, size: Floats) -> Floats:
        """Keys and values to the next context-parallel rank."""
        return self.collectives.seconds("send", self.context, size)

    def swapped(self, size: Floats) -> Floats:
        """Swap tokens for heads among context-parallel ranks, each of which holds ``size`` bytes."""
        return self.collectives.seconds("alltoall", self.context, size)

    def send(self, size: Floats) -> Floats:
        """A micro-batch's activations to the next stage."""
        return self.collectives.seconds("send", self.neighbours, size)

    def reduced(self, dense: float, experts: float) -> float:
        """All-reduce of gradients over ranks with the same weights."""
        return self._both("nccl_allreduce", dense, experts)

    def scattered(self, dense: float, experts: float) -> float:
        """Reduce-scatter of gradients to shards, or all-gather of weights from shards, which takes as long."""
        return self._both("reducescatter", dense, experts)

    def _both(self, kind: Kind, dense: float, experts: float) -> float:
        total = 0.0
        for span, size in ((self.data, dense), (self.expert_data, experts)):
            total += float(self.collectives.seconds(kind, span, np.array([size]))[0])
        return total
