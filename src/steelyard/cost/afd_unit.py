"""Compiles a unit of attention and FFN instances: every source is queried here, before the run.

Each side's operators are queried from the sources of its own GPU. Tables extend to the tokens of the whole unit, since
a step's prompts may all be on one attention instance, and the experts see all tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steelyard.cost.afd import AfdUnit, LayerCost, MicroBatchPipeline
from steelyard.cost.afd_sides import Side, attention_operators, attention_part, ffn_operators
from steelyard.cost.collectives import multicast, reached
from steelyard.cost.compile import host_cost
from steelyard.cost.compiled import AttentionLayers, CompiledCost, operator_is_per_sequence
from steelyard.cost.graphs import graph_plan
from steelyard.cost.host import HostTerms
from steelyard.cost.scaled import family_of
from steelyard.cost.shares import FamilyShares
from steelyard.cost.source import PROVENANCES, FirstOf, Floats, RowOperator
from steelyard.hardware import GpuLink, Topology, slower
from steelyard.model import (
    FP8_VALUE_BYTES,
    AttentionOperator,
    Layer,
    ModelSpec,
    MoeFfn,
    Recurrence,
    head_operators,
    kv_dtype_bytes,
)
from steelyard.scenario import EngineSpec


@dataclass(frozen=True)
class CompiledUnit:
    """The cost of a unit, and the tables of each side, which tell where its figures come from.

    The attention side's tables are for one instance, the FFN side's for the whole unit's tokens.
    """

    unit: AfdUnit
    attention: CompiledCost
    ffn: CompiledCost


def compile_unit(
    model: ModelSpec,
    attention: Side,
    ffn: Side,
    engine: EngineSpec,
    *,
    link: GpuLink,
    micro_batches: int,
    terms: HostTerms | None = None,
    sent_in_fp8: bool = False,
    slowed: float = 1.0,
) -> CompiledUnit:
    """Query every operator that a step of the unit can run.

    ``engine`` has the settings of one attention instance. Transfers between the sides take ``slowed`` times as long.
    """
    terms = terms or HostTerms()
    near = _SideTables(model, FirstOf(attention.sources), engine, attention.instances, terms)
    far = _SideTables(model, FirstOf(ffn.sources), engine, attention.instances, terms)
    layers = []
    for layer in model.layers:
        one, its_ffn = near.cut(), far.cut()
        for operator in attention_operators(model, layer, attention.tp):
            assert not isinstance(operator, Recurrence)
            one.add(operator)
        for operator, split in ffn_operators(model, layer, ffn):
            its_ffn.add(operator, split)
        near.take(one, layer.count)
        far.take(its_ffn, layer.count)
        layers.append(LayerCost(layer.count, one.compiled(), its_ffn.tokens.sum(axis=0).tolist().__getitem__))
    around = near.cut()
    for operator in head_operators(attention_part(model), attention.tp):
        assert not isinstance(operator, Recurrence)
        around.add(operator)
    near.take(around, 1)
    near.families.setdefault("collective", set()).add("roofline")  # the transfers, which no source was asked for
    sent = FP8_VALUE_BYTES if sent_in_fp8 else model.dtype_bytes
    send = _ways(model, link, attention, ffn, near.rows, slowed, sent)
    graphs = graph_plan(engine)
    unit = AfdUnit(
        instances=attention.instances,
        pipeline=MicroBatchPipeline(micro_batches),
        layers=layers,
        send=send,
        back=_ways(model, link, attention, ffn, near.rows, slowed, model.dtype_bytes),
        head=_head(around),
        host=host_cost(model, terms),
        launch=graphs.launch,
    )
    return CompiledUnit(unit, near.compiled(), far.compiled())


def link_between(one: Topology, other: Topology, gpus: int) -> GpuLink:
    """The link from a GPU to the other side: inside the node if the whole unit fits one, else the network."""
    if one.gpu == other.gpu:
        return one.link(one.span(gpus))
    return slower(one.network(one.span(gpus)), other.network(other.span(gpus)))


class _SideTables:
    """Seconds of one side's operators by tokens, and of the output head by requests."""

    def __init__(self, model: ModelSpec, source: FirstOf, engine: EngineSpec, instances: int, terms: HostTerms) -> None:
        self.model, self.source, self.engine, self.instances, self.terms = model, source, engine, instances, terms
        self.rows = np.arange(instances * engine.max_num_batched_tokens + 1, dtype=np.float64)
        self.tokens = np.zeros((len(PROVENANCES), len(self.rows)))
        self.requests = np.zeros((len(PROVENANCES), instances * engine.max_num_seqs + 1))
        self.attention: list[AttentionLayers] = []
        self.families: dict[str, set[str]] = {}
        self.shares = FamilyShares(len(self.rows) - 1)

    def cut(self) -> _SideTables:
        """Empty tables of the same side."""
        return _SideTables(self.model, self.source, self.engine, self.instances, self.terms)

    def add(self, operator: RowOperator | AttentionOperator, split: int = 1) -> None:
        """Add an operator that gets one part of tokens split ``split`` ways."""
        if isinstance(operator, AttentionOperator):
            prefill = self.source.prefill_attention(operator, self._kv_bytes)
            decode = self.source.decode_attention(operator, self._kv_bytes)
            self.attention.append(AttentionLayers(operator, 1, prefill, decode))
            self.families.setdefault("attention", set()).add(self.source.chosen["prefill attention"])
            self.shares.add_kernels("attention", prefill, decode, self.engine.max_num_seqs)
            return
        table = self.requests if operator_is_per_sequence(operator) else self.tokens
        rows = self.rows[: -(-(table.shape[1] - 1) // split) + 1]
        found = self.source.rows(operator, rows)
        seconds, provenance, _ = found
        mine = -(-np.arange(table.shape[1]) // split)
        for kind in range(len(PROVENANCES)):
            table[kind] += np.where(provenance == kind, seconds, 0.0)[mine]
        self.families.setdefault(family_of(operator), set()).add(self.source.chosen[operator.name])
        self.shares.add(family_of(operator), 1, found)

    def take(self, layer: _SideTables, count: int) -> None:
        """Add ``count`` layers."""
        self.tokens += count * layer.tokens
        self.requests += count * layer.requests
        self.attention += [replace(part, layers=count * part.layers) for part in layer.attention]
        for family, sources in layer.families.items():
            self.families.setdefault(family, set()).update(sources)
        self.shares.take(layer.shares, count)

    def compiled(self) -> CompiledCost:
        """The tables as a `CompiledCost`."""
        return CompiledCost(
            token_seconds=self.tokens,
            expert_seconds=np.zeros_like(self.tokens),
            head_seconds=self.requests,
            attention=tuple(self.attention),
            source=self.source,
            kv_bytes=self._kv_bytes,
            families=self.families,
            shares=self.shares.by_family(),
            graphs=graph_plan(self.engine),
            host=host_cost(self.model, self.terms),
        )

    @property
    def _kv_bytes(self) -> float:
        return kv_dtype_bytes(self.model, self.engine.kv_cache_dtype)


@dataclass(frozen=True)
class _Head:
    """Embedding and output head on one attention instance."""

    tokens: list[float]
    requests: list[float]

    def __call__(self, tokens: int, requests: int) -> float:
        return self.tokens[tokens] + self.requests[requests]


def _head(tables: _SideTables) -> _Head:
    return _Head(tables.tokens.sum(axis=0).tolist(), tables.requests.sum(axis=0).tolist())


@dataclass(frozen=True)
class _Ways:
    """Transfers between the sides: as long as the fuller link takes, that of an FFN GPU or of the fullest instance."""

    by_tokens: list[float]
    by_fullest: list[float]

    def __call__(self, tokens: int, fullest: int) -> float:
        return max(self.by_tokens[tokens], self.by_fullest[fullest])


def _ways(
    model: ModelSpec, link: GpuLink, attention: Side, ffn: Side, rows: Floats, slowed: float, value_bytes: float
) -> _Ways:
    """Seconds of a micro-batch's transfer to the FFN side, or back, with values of this many bytes.

    A token is sent to every FFN GPU that has one of its experts, and a partial sum returns from each. All layers are
    assumed to be of the kind with most copies. GPUs of a tensor-parallel group send and receive a slice each.
    """
    copies = max(_copies(layer, ffn.gpus) for layer in model.layers)
    size = rows * copies * model.hidden * value_bytes
    of_ffn, of_fullest = (slowed * multicast(link, 1, 1, size / gpus) for gpus in (ffn.gpus, attention.tp))
    return _Ways(of_ffn.tolist(), of_fullest.tolist())


def _copies(layer: Layer, receivers: int) -> float:
    return reached(receivers, layer.ffn.top_k) if isinstance(layer.ffn, MoeFfn) else 1.0
