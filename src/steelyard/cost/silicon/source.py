"""The silicon database as a cost source."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from steelyard.cost.collectives import exchange_of
from steelyard.cost.interpolate import along
from steelyard.cost.silicon import attention, collectives, expert_parallel, experts
from steelyard.cost.silicon.database import Database, Origin
from steelyard.cost.silicon.gemm import dtype_of, find_lattice
from steelyard.cost.source import INTERPOLATED, DecodeAttention, Estimate, Floats, PrefillAttention, RowOperator
from steelyard.hardware import Gpu, Topology
from steelyard.model import AttentionOperator, Collective, Gemm, GroupedGemm

IN_THE_EXPERTS = ("experts_down", "experts_act", "experts_sum")  # timed together with experts_gate_up
_IN_PARALLEL_EXPERTS = ("experts_elsewhere",)  # the same, with expert parallelism
_IN_THE_ATTENTION = ("kv_write",)
_KNOWN_ATTENTION = ("gqa", "mla", "mfa")  # the tables of sparse attention are not read


@dataclass(frozen=True)
class Silicon:
    """Operator times of one GPU from AIConfigurator's tables, which have no separate element-wise operators.

    ``used`` collects the engines whose tables were used, by family of operators. ``experts_kernel`` is a part of the
    name of the kernel whose times of routed experts are taken.
    """

    gpu: Gpu
    topology: Topology
    database: Database
    experts_kernel: str = ""
    used: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        release = f", {self.database.release}" if self.database.release else ""
        return f"silicon tables of {self.gpu.name} for {self.database.engine}{release}"

    def rows(self, operator: RowOperator, rows: Floats) -> Estimate | None:
        if isinstance(operator, Gemm):
            return self._gemm(operator, rows)
        if isinstance(operator, Collective):
            return self._collective(operator, rows)
        if operator.name in IN_THE_EXPERTS and self.database.origins("moe", "moe_perf"):
            return Estimate.all_of(np.zeros_like(rows), INTERPOLATED)
        if operator.name in _IN_PARALLEL_EXPERTS and expert_parallel.are_timed(self.database):
            return Estimate.all_of(np.zeros_like(rows), INTERPOLATED)
        if isinstance(operator, GroupedGemm):
            return self._experts(operator, rows) if operator.gated else None
        if operator.name in _IN_THE_ATTENTION and self.database.origins("attention", "generation_attention_perf"):
            return Estimate.all_of(np.zeros_like(rows), INTERPOLATED)
        return None

    def decode_attention(self, operator: AttentionOperator, kv_bytes: float) -> DecodeAttention | None:
        known = operator.attention in _KNOWN_ATTENTION
        found = attention.find_decodes(self.database, operator, kv_bytes) if known else None
        if found is None:
            return None
        decodes, origin = found
        self._note("decode attention", origin)
        return decodes

    def prefill_attention(self, operator: AttentionOperator, kv_bytes: float) -> PrefillAttention | None:
        known = operator.attention in _KNOWN_ATTENTION
        found = attention.find_prefills(self.database, operator, kv_bytes) if known else None
        if found is None:
            return None
        prefills, origin = found
        self._note("prefill attention", origin)
        return prefills

    def _gemm(self, gemm: Gemm, rows: Floats) -> Estimate | None:
        lattice = find_lattice(self.database, dtype_of(gemm))
        if lattice is None:
            return None
        self._note(f"gemm {dtype_of(gemm)}", lattice.origin)
        return lattice.estimate(gemm, rows)

    def _experts(self, gemm: GroupedGemm, rows: Floats) -> Estimate | None:
        found = experts.estimate(self.database, self.gpu, gemm, rows, self.experts_kernel)
        if found is None:
            return None
        layer, origin = found
        self._note("experts", origin)
        return layer

    def _collective(self, collective: Collective, rows: Floats) -> Estimate | None:
        """Only in standard nodes, which the tables are for."""
        if not self.topology.usual_node:
            return None
        span = self.topology.span(collective.ranks, collective.first, collective.stride)
        exchange = exchange_of(collective)
        if exchange is not None:
            return collectives.MeasuredCollectives(self.database).exchange(exchange, span, rows)
        found = collectives.timed(self.database, collective.kind, span)
        if found is None:
            return None
        size, time, origin = found
        self._note(collective.kind, origin)
        return along(rows * collective.bytes, size, time)

    def _note(self, family: str, origin: Origin) -> None:
        self.used[family] = str(origin)
