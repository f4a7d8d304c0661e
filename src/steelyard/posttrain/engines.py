"""Kinds of rollout engines: one per tensor-parallel degree, compiled once."""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.balance.route.speed import BucketSpeed
from steelyard.cost import RESTED, HostTerms
from steelyard.engine import BlockNames, Engine, EngineLog, Limits
from steelyard.engine.step_cost import StepCost
from steelyard.hardware import CONNECTOR_START_SECONDS, Gpu
from steelyard.model import kv_bytes_per_token
from steelyard.sim.prepared import Prepared

_USUAL_CONTEXT = 4096  # tokens; chosen: between a first turn's context and that of a long trajectory


@dataclass(frozen=True)
class EngineKind:
    """A compiled rollout engine, of which replicas are instances."""

    tp: int
    limits: Limits
    cost: StepCost
    host: HostTerms
    gpu: Gpu
    kv_bytes: float  # of one token, over all its GPUs
    sources: tuple[str, ...]  # of its operators' times

    @classmethod
    def of(cls, prepared: Prepared) -> EngineKind:
        """The kind of a prepared engine."""
        layout = prepared.layout
        size = kv_bytes_per_token(prepared.model, prepared.engine.kv_cache_dtype, layout) * layout.gpus
        sources = sorted(set().union(*prepared.cost.families.values()))
        return cls(layout.tp, prepared.limits, prepared.step_cost, prepared.host, prepared.gpu, size, tuple(sources))

    def engine(self, names: BlockNames, log: EngineLog) -> Engine:
        """A new engine."""
        return Engine(
            self.limits,
            self.cost,
            names,
            wake=self.host.wake,
            taking_in=self.host.taking_in,
            rested=RESTED,
            reactive=True,
            log=log,
        )

    def move_seconds(self, source: EngineKind, tokens: int) -> float:
        """Seconds to move the KV cache of this many tokens from another engine, over the network of the smaller one."""
        width = min(self.tp, source.tp) * self.gpu.nic_bandwidth
        return CONNECTOR_START_SECONDS + tokens * self.kv_bytes / width

    def fetch_seconds(self, tokens: int) -> float:
        """Seconds to fetch the KV cache of this many tokens from the host's memory."""
        return CONNECTOR_START_SECONDS + tokens * self.kv_bytes / (self.tp * self.gpu.pcie_bandwidth)

    def prompt_seconds(self) -> float:
        """Seconds to compute a prompt token, of many."""
        chunk = self.limits.max_num_batched_tokens
        return self.cost.mixed(0, 0, 0, [(chunk, 0)]).gpu / chunk

    def speed(self) -> BucketSpeed:
        """Its speed for the decision core: decode steps at some loads, and the seconds of a prompt token."""
        counts = sorted({1, 2, 4, 8, 16, 32, 64, 128, 256, self.limits.max_num_seqs})
        rows = [(n, *self._decode(n)) for n in counts if n <= self.limits.max_num_seqs]
        return BucketSpeed(
            decode=tuple((n, seconds) for n, seconds, _ in rows),
            prefill=self.prompt_seconds(),
            move=self.kv_bytes / (self.tp * self.gpu.nic_bandwidth),
            read=rows[-1][2],
            reach=CONNECTOR_START_SECONDS,
        )

    def _decode(self, n: int) -> tuple[float, float]:
        """(seconds of a step without cached tokens, seconds per cached token) with ``n`` requests of usual lengths."""
        kv = n * _USUAL_CONTEXT
        a, b, _ = self.cost.decode_line(n, kv, _USUAL_CONTEXT)
        prepare, launch, _ = self.cost.decode_host(n)
        return max(a, prepare + launch - b * kv), b
