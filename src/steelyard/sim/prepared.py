"""One kind of engine, prepared: its memory plan and its tables of step times. Needs no scenario.

Prepared engines are cached by their contents (`cache`), in memory and on disk.
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
from steelyard.cost.deep_gemm import check_deep_gemm
from steelyard.cost.kv_layout import check_states
from steelyard.cost.nccl_sums import NcclSums
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
    """One kind of engine: its memory plan, step costs and scheduler limits.

    It can be pickled and used for any number of runs. No run changes it. ``contents`` is the digest of its inputs.
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
    shared_reads: SharedReads | None = None  # gain of shared prefixes; None if unknown or not simulated
    stages: tuple[CompiledCost, ...] = ()  # step costs by pipeline stage, used instead of ``cost``
    unit: AfdCost | None = None  # step costs of an attention/FFN unit, used instead of ``cost``
    spread: int = 1  # attention replicas of such a unit
    contents: str = ""

    @property
    def step_cost(self) -> CompiledCost | SpeculativeCost | AfdCost:
        """The step costs that engines use."""
        return self.unit or self.cost

    def __repr__(self) -> str:
        blocks = self.limits.blocks
        return f"<Prepared {self.model.name} on {self.layout.gpus} {self.gpu.name}, {self.layout}, {blocks} blocks>"


_USUAL_ROWS = 16_384  # of a prepared engine's tables


def weight(prepared: Prepared) -> int:
    """For how many usual engines its tables count in memory."""
    ranks = prepared.layout.dp * prepared.spread
    return 1 + ranks * prepared.limits.max_num_batched_tokens // _USUAL_ROWS


KNOWN: Cache[Prepared] = Cache("engines", weigh=weight)


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
    """Prepare one kind of engine. Raises UserError for settings that cannot work.

    ``model`` and ``gpu`` are catalog names or specs. A number as ``layout`` is a tensor-parallel degree. ``engine`` and
    ``cost`` have the keys of a scenario. ``host`` are the host's times in seconds, ``routing`` is the expert routing,
    ``topology`` the wiring of GPUs, ``role`` that of a pool. ``factors`` scale the times of operator families. Relative
    paths start from ``base_dir``.
    """
    base_dir = Path() if base_dir is None else base_dir
    model = load_model(model, base_dir=base_dir) if isinstance(model, str) else model
    gpu = find_gpu(gpu) if isinstance(gpu, str) else gpu
    layout = as_layout(layout)
    engine = engine if isinstance(engine, EngineSpec) else _read(EngineSpec, engine, "engine")
    cost = cost if isinstance(cost, CostSpec) else _read(CostSpec, cost, "cost")
    sources = Sources(cost, base_dir, factors or {})
    check_engine(model, gpu, layout, engine)
    check_states(model, engine)
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
    """Refuse layouts that do not fit the model or a node, or that are not simulated with these settings."""
    check_layout(model, layout.tp if layout == Layout(tp=layout.tp) else layout)
    check_fits_node(gpu, layout.tp)
    if layout.pp > 1:
        check_pipeline(layout, engine)
    if layout.dcp > 1:
        check_context_parallel(layout, engine)
    if engine.moe_backend == "deep_gemm":
        check_deep_gemm(model)
    if engine.moe_backend == "marlin":
        from steelyard.cost.silicon.kernels import check_marlin  # most runs do not name a kernel

        check_marlin(model, layout)


@dataclass(frozen=True)
class Recipe:
    """All inputs of one kind of engine, checked."""

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
        """The prepared engine, from the cache if it is there."""
        parts = (self.model, self.gpu, self.layout, self.engine, self.host, self.routing, self.topology, self.role)
        name = digest(package_fingerprint(), *parts, self.draft, self.sources.contents(self.gpu))
        return KNOWN.get(name, lambda: self._make(name))

    def _make(self, name: str) -> Prepared:
        model, layout, engine, terms, routing = self.model, self.layout, self.engine, self.host, self.routing
        memory = plan_memory(model, self.gpu, layout, engine, self.draft, self.role)
        limits = limits_of(engine, model, memory, self.draft)
        sources = self.sources.open(self.gpu, self.topology, model, layout, engine.moe_backend)
        if engine.disable_custom_all_reduce and layout.tp > 1:
            sources = tuple(NcclSums(source) for source in sources)
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
            limits=replace(limits, stages=layout.pp, block_size=limits.block_size * layout.dcp),
            cost=cost,
            work=work_of(model, self.gpu, layout, engine.kv_cache_dtype),
            shared_reads=self._shared_reads(),
            stages=stages,
            contents=name,
        )

    def _shared_reads(self) -> SharedReads | None:
        """The gain of shared prefixes, for plain engines on GPUs where it was measured.

        Not for pipelines, data parallelism, context parallelism or drafts.
        """
        model, layout, engine = self.model, self.layout, self.engine
        if not self.sources.are_measured(self.gpu) or engine.drafts or layout.pp * layout.dp * layout.dcp > 1:
            return None
        layers = sum(layer.count for layer in model.layers)
        token_bytes = kv_bytes_per_token(model, engine.kv_cache_dtype, layout) / layers
        return SharedReads.of(self.gpu, token_bytes) if token_bytes else None


def limits_of(engine: EngineSpec, model: ModelSpec, memory: MemoryPlan, draft: Draft | None) -> Limits:
    """The scheduler limits of an engine."""
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
        block_size=memory.block_size or engine.block_size,
        max_model_len=longest,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        threshold_alone=engine.runtime is not None and engine.runtime.threshold_alone,
        enable_chunked_prefill=engine.enable_chunked_prefill,
        enable_prefix_caching=engine.enable_prefix_caching and not memory.states,
        priority=engine.policy == "priority",
        async_scheduling=engine.schedules_ahead,
        reserve_full_prompt=engine.scheduler_reserve_full_isl,
        watermark=engine.watermark,
        speculative_tokens=engine.drafts,
        lookahead=0 if draft is None else engine.drafts,
        windows=memory.windows,
        chunked=memory.chunked,
        states=memory.states,
        drops_last_hit=draft is not None and draft.joined,
    )
