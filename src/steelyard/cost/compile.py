"""Compiles operators to tables: every source is queried here, once, before the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from steelyard.cost.compiled import AttentionLayers, CompiledCost, operator_is_per_sequence
from steelyard.cost.context_parallel import ContextParallelSource
from steelyard.cost.deep_gemm import with_backend
from steelyard.cost.graphs import GraphPlan, graph_plan
from steelyard.cost.host import HostCost, HostTerms
from steelyard.cost.kernels import ExpertKernel
from steelyard.cost.local import ChunkedPrefill
from steelyard.cost.measured import MeasuredSource
from steelyard.cost.power import PowerTables
from steelyard.cost.scaled import Scaled, family_of
from steelyard.cost.shares import FamilyShares
from steelyard.cost.source import PROVENANCES, CostSource, Estimate, FirstOf, Floats, RowOperator
from steelyard.model import (
    AttentionOperator,
    Collective,
    Gemm,
    GroupedGemm,
    Layout,
    ModelSpec,
    MoeFfn,
    Operator,
    Recurrence,
    Routing,
    as_layout,
    check_layout,
    embedding_operators,
    kv_dtype_bytes,
    operators,
    output_operators,
    send_operators,
    stages,
)
from steelyard.scenario import EngineSpec


def compile_cost(
    model: ModelSpec,
    tp: int | Layout,
    engine: EngineSpec,
    *sources: CostSource,
    terms: HostTerms | None = None,
    routing: Routing | None = None,
    first: Sequence[Operator] = (),
) -> CompiledCost:
    """Query every operator of a step from the first source that knows it, and add up the tables.

    For a pipeline this is one batch through all stages in turn (see `compile_stages`). ``first`` are further operators
    before the layers.
    """
    layout = as_layout(tp)
    check_layout(model, layout)
    tables = _Tables(_first_of(sources, layout, engine), layout, engine, routing or Routing())
    sends = [send for stage in range(layout.pp - 1) for send in send_operators(model, layout, stage)]
    tables.add(model, (*embedding_operators(model, layout), *first, *sends), output_operators(model, layout))
    return tables.compiled(model, terms or HostTerms())


def compile_stages(
    model: ModelSpec,
    layout: Layout,
    engine: EngineSpec,
    *sources: CostSource,
    terms: HostTerms | None = None,
    routing: Routing | None = None,
) -> tuple[CompiledCost, ...]:
    """The same for each stage of a pipeline, with what it sends to the next one."""
    check_layout(model, layout)
    found = []
    for i, stage in enumerate(stages(model, layout)):
        tables = _Tables(_first_of(sources, layout, engine), layout, engine, routing or Routing())
        before = embedding_operators(model, layout) if stage.first else ()
        after = output_operators(model, layout) if stage.last else ()
        sends = () if stage.last else send_operators(model, layout, i)
        tables.add(stage.model, (*before, *sends), after)
        found.append(tables.compiled(stage.model, terms or HostTerms()))
    return tuple(found)


def _first_of(sources: tuple[CostSource, ...], layout: Layout, engine: EngineSpec) -> FirstOf:
    sources = with_backend(sources, engine.moe_backend)
    return FirstOf(sources) if layout.dcp == 1 else ContextParallelSource(sources, engine.max_num_batched_tokens)


class _Tables:
    """Seconds of operators, added up by what their rows count."""

    def __init__(self, source: FirstOf, layout: Layout, engine: EngineSpec, routing: Routing) -> None:
        self.source = source
        self.layout = layout
        self.engine = engine
        self.routing = routing
        self.kv_bytes = 0.0
        most = engine.max_num_batched_tokens
        self.rows = np.arange(most + 1, dtype=np.float64)
        self.pooled_rows = np.arange(layout.dp * most + 1, dtype=np.float64)
        kinds = len(PROVENANCES)
        self.tokens = np.zeros((kinds, len(self.rows)))
        self.experts, self.pooled, self.exchange, self.one_way = np.zeros((4, kinds, len(self.pooled_rows)))
        self.head = np.zeros((kinds, min(most, engine.max_num_seqs * (1 + engine.drafts)) + 1))
        self.collective, self.elementwise = np.zeros((2, len(self.rows)))  # parts of ``tokens``
        self.attention: list[AttentionLayers] = []
        self.families: dict[str, set[str]] = {}
        self.shares = FamilyShares(most)
        self.kernels: list[ExpertKernel] = []
        self.power = _power_tables(source, len(self.rows), self.head.shape[1]) if layout.dp == 1 else None

    def add(self, model: ModelSpec, before: Sequence[Operator], after: Sequence[Operator]) -> None:
        """Add the layers of a model or stage, and the operators before and after them."""
        self.kv_bytes = kv_dtype_bytes(model, self.engine.kv_cache_dtype)
        for layer in model.layers:
            for operator in operators(model, layer, self.layout, self.routing):
                if isinstance(operator, AttentionOperator):
                    self._add_attention(operator, layer.count)
                elif isinstance(operator, Recurrence):
                    self._add_recurrence(operator, layer.count)
                else:
                    self._add_rows(operator, layer.count)
                    self.families.setdefault(family_of(operator), set()).add(self.source.chosen[operator.name])
        for operator in (*before, *after):
            assert not isinstance(operator, AttentionOperator | Recurrence)
            self._add_rows(operator, 1)

    def _add_attention(self, operator: AttentionOperator, layers: int) -> None:
        """Chunked attention is that of whole sequences, which the chunks are for the kernel."""
        asked = replace(operator, window=None, chunked=False) if operator.chunked else operator
        prefill = self.source.prefill_attention(asked, self.kv_bytes)
        decode = self.source.decode_attention(asked, self.kv_bytes)
        if operator.chunked and operator.window is not None:
            prefill = ChunkedPrefill(prefill, operator.window)
        self.attention.append(AttentionLayers(operator, layers, prefill, decode))
        if self.power is not None:
            self.power.attention(operator, layers, self.kv_bytes)
        self.families.setdefault("attention", set()).add(self.source.chosen["prefill attention"])
        self.shares.add_kernels("attention", prefill, decode, self.engine.max_num_seqs)

    def _add_recurrence(self, operator: Recurrence, layers: int) -> None:
        prefill, decode = self.source.prefill_recurrence(operator), self.source.decode_recurrence(operator)
        self.attention.append(AttentionLayers(operator, layers, prefill, decode))
        self.power = None  # what it draws was not measured
        self.families.setdefault("recurrence", set()).add(self.source.chosen["prefill recurrence"])
        self.shares.add_kernels("recurrence", prefill, decode, self.engine.max_num_seqs)

    def _add_rows(self, operator: RowOperator, layers: int) -> None:
        if operator_is_per_sequence(operator):
            found = self.source.rows(operator, self.rows[: self.head.shape[1]])
            _add(self.head, layers, found)
        elif isinstance(operator, GroupedGemm):
            found = self.source.rows(operator, self.pooled_rows)
            _add(self.experts, layers, found)
            if self.engine.fresh and found.kernels is not None:
                self.kernels.append(ExpertKernel(found.kernels, operator.top_k, operator.experts))
        elif operator.per == "pooled":
            table = self.exchange if isinstance(operator, Collective) else self.pooled
            found = self.source.rows(operator, self.pooled_rows)
            _add(table, layers, found)
            if isinstance(operator, Collective):
                pair = operator.ranks == 2
                lone = self.source.rows(replace(operator, kind="broadcast"), self.pooled_rows) if pair else found
                _add(self.one_way, layers, lone)
        else:
            found = self.source.rows(operator, self.rows)
            _add(self.tokens, layers, found)
            if isinstance(operator, Collective):
                self.collective += layers * found.seconds
            elif not isinstance(operator, Gemm):
                self.elementwise += layers * found.seconds
        self._add_power(operator, layers, found.seconds)
        self.shares.add(family_of(operator), layers, found)

    def _add_power(self, operator: RowOperator, layers: int, seconds: Floats) -> None:
        if self.power is not None:
            self.power.rows(operator, layers, self.rows[: len(seconds)], seconds)

    def compiled(self, model: ModelSpec, terms: HostTerms) -> CompiledCost:
        """The tables as a `CompiledCost`."""
        engine, graphs = self.engine, graph_plan(self.engine)
        return CompiledCost(
            token_seconds=self.tokens,
            expert_seconds=self.experts,
            head_seconds=self.head,
            pooled_seconds=self.pooled,
            exchange_seconds=self.exchange,
            one_way_seconds=self.one_way,
            ranks=self.layout.dp,
            attention=tuple(self.attention),
            source=self.source,
            kv_bytes=self.kv_bytes,
            families=self.families,
            shares=self.shares.by_family(),
            graphs=graphs,
            host=host_cost(model, terms),
            kernels=tuple(self.kernels),
            collective_seconds=self.collective,
            elementwise_seconds=self.elementwise,
            power=None if self.power is None else self.power.power(),
            ran=(engine.max_num_batched_tokens, engine.max_num_seqs, *graphs.sizes, *_warmed_up(engine, graphs)),
        )


def _power_tables(source: FirstOf, tokens: int, head: int) -> PowerTables | None:
    """Where the GPU has a profile."""
    for each in source.sources:
        inner = each.source if isinstance(each, Scaled) else each
        if isinstance(inner, MeasuredSource):
            return PowerTables(inner, tokens, head)
    return None


def _warmed_up(engine: EngineSpec, graphs: GraphPlan) -> list[int]:
    """Tokens of the warm-up steps that ran kernel by kernel; the others replayed a graph and compiled nothing."""
    return [tokens for tokens in engine.warm_up if graphs.launch(tokens, decode_only=False) == "eager"]


def host_cost(model: ModelSpec, terms: HostTerms) -> HostCost:
    """The host cost of a model's steps.

    Where a layer is a single block, feed-forward blocks count with the attention or recurrent block before them, since
    only at those are graphs cut.
    """
    layers = sum(layer.count for layer in model.layers if layer.attention is not None or layer.recurrent is not None)
    expert_layers = sum(layer.count for layer in model.layers if isinstance(layer.ffn, MoeFfn))
    return HostCost(terms, max(layers, expert_layers, 1), expert_layers)


def _add(table: Floats, count: int, found: Estimate) -> None:
    """Add an operator's seconds to the table, each under its provenance."""
    for kind in range(len(PROVENANCES)):
        table[kind] += np.where(found.provenance == kind, count * found.seconds, 0.0)
