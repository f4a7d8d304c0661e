"""One kind of engine made ready: memory planned and step times in tables, without a scenario and before any clock.

Whatever took long to make is kept, by what it was made of (`cache`): asked for the same again, here or in another
process, it is there at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from steelyard.cost import (
    CompiledCost,
    Draft,
    HostTerms,
    MemoryPlan,
    SpeculativeCost,
    Work,
    compile_cost,
    compile_speculative,
    compile_stages,
    find_draft,
    plan_memory,
    work_of,
)
from steelyard.cost.afd import AfdCost
from steelyard.cost.shared_reads import SharedReads
from steelyard.engine import Limits
from steelyard.errors import UserError
from steelyard.hardware import Gpu, Topology, check_fits_node, find_gpu, topology_of
from steelyard.model import (
    Layout,
    ModelSpec,
    Routing,
    as_layout,
    check_layout,
    kv_bytes_per_token,
    load_model,
)
from steelyard.scenario import CostSpec, EngineSpec
from steelyard.scenario.base import Spec
from steelyard.scenario.checking import checked
from steelyard.scenario.fleet import Role
from steelyard.sim.cache import Cache
from steelyard.sim.content import digest, package_fingerprint
from steelyard.sim.context_parallel import check_context_parallel
from steelyard.sim.pipelines import check_pipeline
from steelyard.sim.sources import Sources


@dataclass(frozen=True)
class Prepared:
    """One kind of engine: what it holds, what its steps take, and within which limits it schedules.

    It can be pickled, and be used for any number of runs; nothing of one is left for the next. ``contents`` names all
    that it was made of.
    """

    model: ModelSpec
    gpu: Gpu
    layout: Layout
    engine: EngineSpec
    sources: Sources
    host: HostTerms
    memory: MemoryPlan
    limits: Limits
    cost: CompiledCost | SpeculativeCost
    work: Work
    shared_reads: SharedReads | None = None  # None where it is not known what requests share, or what that gains
    stages: tuple[CompiledCost, ...] = ()  # what engines ask instead of ``cost``, by stage, where there are several
    unit: AfdCost | None = None  # what engines ask instead of ``cost``, where attention and FFN are apart
    spread: int = 1  # replicas of a pool that one such engine spreads its requests over
    contents: str = ""

    @property
    def step_cost(self) -> CompiledCost | SpeculativeCost | AfdCost:
        """What engines ask."""
        return self.unit or self.cost

    def __repr__(self) -> str:
        blocks = self.limits.blocks
        return f"<Prepared {self.model.name} on {self.layout.gpus} {self.gpu.name}, {self.layout}, {blocks} blocks>"


KNOWN: Cache[Prepared] = Cache("engines")


def prepare(
    model: str | ModelSpec,
    gpu: str | Gpu,
    layout: int | Layout = 1,
    engine: EngineSpec | Mapping[str, Any] | None = None,
    cost: CostSpec | Mapping[str, Any] | None = None,
    *,
    host: HostTerms | None = None,
    routing: Routing | None = None,
    topology: Topology | None = None,
    role: Role = "serve",
    factors: Mapping[str, float] | None = None,
    base_dir: Path | None = None,
) -> Prepared:
    """Make one kind of engine ready; refuses what cannot work.

    ``model`` and ``gpu`` are names of the catalogs, or what those stand for; a bare number as ``layout`` is a
    tensor-parallel degree. ``engine`` and ``cost`` are settings as a scenario has them. ``host`` are the host's times,
    ``routing`` is how experts are chosen, ``topology`` how GPUs are wired, ``role`` the part of a request that engines
    do. ``factors`` scale families of operators. Relative paths start from ``base_dir``.
    """
    base_dir = Path() if base_dir is None else base_dir
    model = load_model(model, base_dir=base_dir) if isinstance(model, str) else model
    gpu = find_gpu(gpu) if isinstance(gpu, str) else gpu
    layout = as_layout(layout)
    engine = engine if isinstance(engine, EngineSpec) else _read(EngineSpec, engine, "engine")
    cost = cost if isinstance(cost, CostSpec) else _read(CostSpec, cost, "cost")
    sources = Sources(cost, base_dir, factors or {})
    check_engine(model, gpu, layout, engine)
    recipe = Recipe(
        model,
        gpu,
        layout,
        engine,
        sources,
        host or HostTerms(),
        routing or Routing(),
        topology or topology_of(gpu, None),
        role,
        find_draft(engine, model, base_dir),
    )
    return recipe.prepared()


_Settings = TypeVar("_Settings", bound=Spec)


def _read(kind: type[_Settings], given: Mapping[str, Any] | None, place: str) -> _Settings:
    return checked(kind, given or {}, lambda _: place)


def check_engine(model: ModelSpec, gpu: Gpu, layout: Layout, engine: EngineSpec) -> None:
    """Refuse layouts that a model or a node cannot have, or that are not simulated with such settings."""
    check_layout(model, layout.tp if layout == Layout(tp=layout.tp) else layout)
    check_fits_node(gpu, layout.tp)
    if layout.pp > 1:
        check_pipeline(layout, engine)
    if layout.dcp > 1:
        check_context_parallel(layout, engine)


@dataclass(frozen=True)
class Recipe:
    """All that one kind of engine is made of, found and checked."""

    model: ModelSpec
    gpu: Gpu
    layout: Layout
    engine: EngineSpec
    sources: Sources
    host: HostTerms
    routing: Routing
    topology: Topology
    role: Role
    draft: Draft | None

    def prepared(self) -> Prepared:
        """The engine itself, made now or before."""
        parts = (self.model, self.gpu, self.layout, self.engine, self.host, self.routing, self.topology, self.role)
        name = digest(package_fingerprint(), *parts, self.draft, self.sources.contents(self.gpu))
        return KNOWN.get(name, lambda: self._make(name))

    def _make(self, name: str) -> Prepared:
        model, layout, engine, terms, routing = self.model, self.layout, self.engine, self.host, self.routing
        memory = plan_memory(model, self.gpu, layout, engine, self.draft, self.role)
        limits = limits_of(engine, model, memory, self.draft)
        sources = self.sources.open(self.gpu, self.topology, model, layout)
        plain = compile_cost(model, layout, engine, *sources, terms=terms, routing=routing)
        cost: CompiledCost | SpeculativeCost = plain
        if engine.drafts:
            general = self.sources.general(sources)
            cost = compile_speculative(plain, engine, self.draft, layout, *general, terms=terms, routing=routing)
        stages = compile_stages(model, layout, engine, *sources, terms=terms, routing=routing) if layout.pp > 1 else ()
        return Prepared(
            model=model,
            gpu=self.gpu,
            layout=layout,
            engine=engine,
            sources=self.sources,
            host=terms,
            memory=memory,
            limits=replace(limits, stages=layout.pp, block_size=engine.block_size * layout.dcp),
            cost=cost,
            work=work_of(model, self.gpu, layout, engine.kv_cache_dtype),
            shared_reads=self._shared_reads(),
            stages=stages,
            contents=name,
        )

    def _shared_reads(self) -> SharedReads | None:
        """Of engines whose steps run one batch on GPUs that all have the same tokens, one of each request.

        What that gains is known of GPUs that have been measured.
        """
        model, layout, engine = self.model, self.layout, self.engine
        if not self.sources.are_measured(self.gpu) or engine.drafts or layout.pp * layout.dp * layout.dcp > 1:
            return None
        layers = sum(layer.count for layer in model.layers)
        token_bytes = kv_bytes_per_token(model, engine.kv_cache_dtype, layout) / layers
        return SharedReads.of(self.gpu, token_bytes) if token_bytes else None


def limits_of(engine: EngineSpec, model: ModelSpec, memory: MemoryPlan, draft: Draft | None) -> Limits:
    """Within which limits an engine of one stage schedules."""
    longest = engine.max_model_len or model.max_position
    if longest > model.max_position:
        raise UserError(
            f"engine.max_model_len: {longest} is more than {model.name} can take; at most {model.max_position} tokens"
        )
    if not engine.enable_chunked_prefill and engine.max_num_batched_tokens < longest:
        raise UserError(
            f"engine.max_num_batched_tokens: {engine.max_num_batched_tokens} is less than max_model_len {longest}, and "
            "without chunked prefill a whole prompt must fit one step; raise the one or set the other lower"
        )
    return Limits(
        blocks=memory.blocks,
        block_size=engine.block_size,
        max_model_len=longest,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        enable_chunked_prefill=engine.enable_chunked_prefill,
        enable_prefix_caching=engine.enable_prefix_caching,
        priority=engine.policy == "priority",
        async_scheduling=engine.schedules_ahead,
        reserve_full_prompt=engine.scheduler_reserve_full_isl,
        watermark=engine.watermark,
        speculative_tokens=engine.drafts,
        lookahead=0 if draft is None else engine.drafts,
        windows=memory.windows,
        drops_last_hit=draft is not None and draft.joined,
    )
