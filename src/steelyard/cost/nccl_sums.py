"""A source for engines without vLLM's own all-reduce: tensor-parallel groups add up with NCCL."""

from __future__ import annotations

from dataclasses import dataclass, replace

from steelyard.cost.source import CostSource, DecodeAttention, Estimate, Floats, PrefillAttention, RowOperator
from steelyard.model import AttentionOperator, Collective


@dataclass(frozen=True)
class NcclSums:
    """Another source, asked for NCCL's all-reduce wherever an engine would choose."""

    source: CostSource

    @property
    def name(self) -> str:
        return self.source.name

    def rows(self, operator: RowOperator, rows: Floats) -> Estimate | None:
        if isinstance(operator, Collective) and operator.kind == "allreduce":
            operator = replace(operator, kind="nccl_allreduce")
        return self.source.rows(operator, rows)

    def decode_attention(self, operator: AttentionOperator, kv_bytes: float) -> DecodeAttention | None:
        return self.source.decode_attention(operator, kv_bytes)

    def prefill_attention(self, operator: AttentionOperator, kv_bytes: float) -> PrefillAttention | None:
        return self.source.prefill_attention(operator, kv_bytes)
