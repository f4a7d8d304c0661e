"""An attention/FFN unit, prepared: one engine whose attention and FFN layers run on different GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from steelyard.cost import HostTerms, plan_memory
from steelyard.cost.afd import AfdCost
from steelyard.cost.afd_sides import Side, attention_part, attention_work, check_experts, ffn_work, plan_ffn_memory
from steelyard.cost.afd_unit import compile_unit, link_between
from steelyard.engine import Limits
from steelyard.errors import blaming
from steelyard.hardware import Gpu, Topology
from steelyard.model import Layout, ModelSpec, Routing
from steelyard.scenario import EngineSpec
from steelyard.scenario.fleet import AfdWays
from steelyard.sim.cache import Cache
from steelyard.sim.content import digest, package_fingerprint
from steelyard.sim.prepared import Prepared, limits_of, weight
from steelyard.sim.sources import Sources

KNOWN: Cache[tuple[Prepared, Prepared]] = Cache("units", weigh=lambda unit: sum(map(weight, unit)))


@dataclass(frozen=True)
class Half:
    """One side of a unit: equal instances of ``tp`` GPUs each."""

    name: str  # of its pool, for messages
    gpu: Gpu
    instances: int
    tp: int
    topology: Topology
    redundant_experts: int = 0

    def side(self, model: ModelSpec, sources: Sources) -> Side:
        """This side with the cost sources of its GPUs."""
        opened = sources.open(self.gpu, self.topology, model, Layout(tp=self.tp))
        return Side(self.gpu, self.instances, self.tp, opened, self.redundant_experts)


@dataclass(frozen=True)
class UnitRecipe:
    """All inputs of one kind of unit. ``engine`` has the settings of one attention instance."""

    model: ModelSpec
    attention: Half
    ffn: Half
    engine: EngineSpec
    ffn_memory_utilization: float
    micro_batches: int
    ways: AfdWays
    sources: Sources
    host: HostTerms
    routing: Routing

    def prepared(self, source: str = "unit") -> tuple[Prepared, Prepared]:
        """The attention side, which schedules, and the FFN side. Error messages begin with ``source``."""
        halves = self.attention, self.ffn
        name = digest(
            package_fingerprint(),
            *(self.model, *halves, self.engine, self.ffn_memory_utilization, self.micro_batches, self._ways, self.host),
            *(self.routing, *(self.sources.contents(half.gpu) for half in halves)),
        )
        return KNOWN.get(name, lambda: self._make(name, source))

    @property
    def _ways(self) -> tuple[str, str]:
        return self.ways.send_dtype, self.ways.shared_experts

    @property
    def _shared_ranks(self) -> int:
        """FFN GPUs of a node that slice the shared experts: equal groups, none of which leaves its node."""
        gpus = self.ffn.instances * self.ffn.tp
        return gcd(gpus, self.ffn.topology.gpus_per_node) if self.ways.shared_experts == "sliced" else 1

    def _make(self, name: str, source: str) -> tuple[Prepared, Prepared]:
        model, engine = self.model, self.engine
        with blaming(source):
            attention = self.attention.side(attention_part(model), self.sources)
            ffn = replace(self.ffn.side(model, self.sources), routing=self.routing, shared_ranks=self._shared_ranks)
        with blaming(f"{source}: fleet.pools: {self.ffn.name}"):
            check_experts(model, ffn)
            most = -(-attention.instances * engine.max_num_batched_tokens // self.micro_batches)
            ffn_memory = plan_ffn_memory(model, ffn, self.ffn_memory_utilization, most)
        with blaming(f"{source}: fleet.pools: {self.attention.name}"):
            memory = plan_memory(attention_part(model), attention.gpu, attention.tp, engine, role="attention")
            limits = _of_unit(limits_of(engine, model, memory, None), attention.instances)
        compiled = compile_unit(
            model,
            attention,
            ffn,
            engine,
            link=link_between(self.attention.topology, self.ffn.topology, attention.gpus + ffn.gpus),
            micro_batches=self.micro_batches,
            sent_in_fp8=self.ways.send_dtype == "fp8",
            terms=self.host,
            slowed=self.sources.factors.get("collective", 1.0),
        )
        near = Prepared(
            model=model,
            gpu=attention.gpu,
            layout=Layout(tp=attention.tp),
            engine=engine,
            sources=self.sources,
            host=self.host,
            memory=memory,
            limits=limits,
            cost=compiled.attention,
            work=attention_work(model, attention, engine.kv_cache_dtype),
            unit=AfdCost(compiled.unit),
            spread=attention.instances,
            contents=name,
        )
        behind = replace(
            near,
            gpu=ffn.gpu,
            layout=Layout(tp=ffn.tp, redundant_experts=ffn.redundant_experts),
            memory=ffn_memory,
            limits=replace(limits, blocks=0),
            cost=compiled.ffn,
            work=ffn_work(model, ffn),
            spread=1,
        )
        return near, behind


def _of_unit(limits: Limits, instances: int) -> Limits:
    """The limits of all attention instances together. A prompt chunk runs on one instance."""
    each = limits.max_num_batched_tokens
    return replace(
        limits,
        blocks=limits.blocks * instances,
        max_num_seqs=limits.max_num_seqs * instances,
        max_num_batched_tokens=each * instances,
        long_prefill_token_threshold=min(limits.long_prefill_token_threshold or each, each),
    )
