"""From what a user wrote to what runs: everything expensive happens here, before the clock starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from steelyard.cost import (
    CompiledCost,
    CostSource,
    Draft,
    HostTerms,
    MeasuredSource,
    MemoryPlan,
    Roofline,
    SpeculativeCost,
    Work,
    compile_cost,
    compile_speculative,
    compile_stages,
    find_draft,
    plan_memory,
    read_terms,
    shipped_bundle,
    work_of,
)
from steelyard.cost.afd import AfdCost
from steelyard.cost.afd_sides import (
    Side,
    attention_part,
    attention_work,
    check_experts,
    ffn_work,
    plan_ffn_memory,
)
from steelyard.cost.afd_unit import compile_unit, link_between
from steelyard.cost.scaled import Scaled
from steelyard.cost.shared_reads import SharedReads
from steelyard.cost.silicon import find_silicon
from steelyard.engine import Limits
from steelyard.errors import UserError, blaming
from steelyard.hardware import Gpu, Topology, check_fits_node, find_gpu, topology_of
from steelyard.model import Layout, ModelSpec, check_layout, check_tp, kv_bytes_per_token
from steelyard.scenario import CostSpec, EngineSpec, PoolSpec, Scenario
from steelyard.sim.context_parallel import check_context_parallel
from steelyard.sim.models import Served, find_models
from steelyard.sim.pipelines import check_pipeline


@dataclass(frozen=True)
class Setup:
    """A pool made concrete: one kind of engine on one kind of GPU."""

    pool: PoolSpec
    engine: EngineSpec
    model: ModelSpec
    gpu: Gpu
    memory: MemoryPlan
    limits: Limits
    cost: CompiledCost | SpeculativeCost
    work: Work
    serves: str = ""  # what requests call the model
    shared_reads: SharedReads | None = None  # None where it is not known what requests share, or what that gains
    stages: tuple[CompiledCost, ...] = ()  # what engines ask instead of ``cost``, by stage, where there are several
    unit: AfdCost | None = None  # what engines ask instead of ``cost``, where attention and FFN are apart
    spread: int = 1  # replicas of the pool that one such engine spreads its requests over

    @property
    def step_cost(self) -> CompiledCost | SpeculativeCost | AfdCost:
        """What engines ask."""
        return self.unit or self.cost

    @property
    def gpus(self) -> int:
        """GPUs of the whole pool."""
        return self.pool.replicas * self.layout.gpus

    @property
    def layout(self) -> Layout:
        """How one engine lies over its GPUs."""
        return layout_of(self.pool)

    @property
    def ranks(self) -> int:
        """Schedulers of the pool: one to each data-parallel rank of each engine; FFN pools have none of their own."""
        return 0 if self.pool.role == "ffn" else self.pool.replicas * self.pool.dp // self.spread

    @property
    def price_per_hour(self) -> float:
        """US dollars for one of them."""
        own = self.pool.price_per_hour
        return self.gpu.price_per_hour if own is None else own


@dataclass(frozen=True)
class FleetSetup:
    """A scenario made concrete. Replicas are numbered through all pools, those that take requests first."""

    scenario: Scenario
    model: ModelSpec
    host: HostTerms
    pools: tuple[Setup, ...]

    @property
    def gpus(self) -> int:
        """GPUs of the whole fleet."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def models(self) -> tuple[str, ...]:
        """What requests call the models that are served."""
        return tuple(dict.fromkeys(each.serves for each in self.pools))

    @property
    def hands_over(self) -> bool:
        """Whether some engines compute prompts and others answer."""
        return any(each.pool.role == "prefill" for each in self.pools)

    @property
    def takes_requests(self) -> tuple[Setup, ...]:
        """Pools that clients' requests go to."""
        return tuple(each for each in self.pools if each.pool.role == "prefill") if self.hands_over else self.answers

    @property
    def answers(self) -> tuple[Setup, ...]:
        """Pools that requests end in."""
        return tuple(each for each in self.pools if each.pool.role not in ("prefill", "ffn"))


def set_up(scenario: Scenario, host: HostTerms | None = None, factors: Mapping[str, float] | None = None) -> FleetSetup:
    """Find model and GPUs, plan memory, compile costs; refuses what cannot work.

    ``host`` stands in for the terms that the scenario names; ``factors`` scale families of operators.
    """
    models = find_models(scenario)
    own = models[scenario.model.called]
    host = host or _host(scenario)
    pools = scenario.fleet.of_role("serve", "prefill") + scenario.fleet.of_role("decode")
    found = tuple(_pool(scenario, pool, models[scenario.model_of(pool).called], host, factors) for pool in pools)
    if scenario.fleet.of_role("attention"):
        found += _units(scenario, own, host, factors)
    sizes = sorted({each.limits.block_size for each in found})
    if len(sizes) > 1:
        raise UserError(
            f"{scenario.source}: fleet.pools: engines have blocks of {' and '.join(map(str, sizes))} tokens; requests "
            "pass between them, so give all of them one engine.block_size"
        )
    return FleetSetup(scenario, own.spec, host, found)


def _pool(
    scenario: Scenario, pool: PoolSpec, served: Served, host: HostTerms, factors: Mapping[str, float] | None
) -> Setup:
    model, routing = served.spec, served.routing
    if pool.autoscale is not None:
        pool = pool.model_copy(update={"replicas": pool.autoscale.max})  # all there can ever be
    engine = scenario.engine_of(pool)
    place = "fleet" if len(scenario.fleet.pools) == 1 else f"fleet.pools: {pool.name}"
    with blaming(f"{scenario.source}: {place}.gpu"):
        gpu = find_gpu(pool.gpu)
    layout = layout_of(pool)
    with blaming(f"{scenario.source}: {place}.tp" if layout == Layout(tp=pool.tp) else f"{scenario.source}: {place}"):
        check_layout(model, pool.tp if layout == Layout(tp=pool.tp) else layout)
        check_fits_node(gpu, pool.tp)
        if pool.pp > 1:
            check_pipeline(pool, engine)
        if pool.dcp > 1:
            check_context_parallel(pool, engine)
    with blaming(scenario.source):
        draft = find_draft(engine, model, scenario.base_dir)
        memory = plan_memory(model, gpu, layout, engine, draft, pool.role)
        limits = replace(_limits(engine, model, memory, draft), stages=pool.pp, block_size=engine.block_size * pool.dcp)
    sources = _sources(scenario, gpu, model, layout)
    if factors:
        sources = tuple(Scaled(source, factors) for source in sources)
    plain = compile_cost(model, layout, engine, *sources, terms=host, routing=routing)
    stages = compile_stages(model, layout, engine, *sources, terms=host, routing=routing) if pool.pp > 1 else ()
    general = sources if scenario.cost.profile is None else sources[1:]  # the user's own may be of one model only
    return Setup(
        pool=pool,
        engine=engine,
        model=model,
        gpu=gpu,
        memory=memory,
        limits=limits,
        cost=compile_speculative(plain, engine, draft, layout, *general, terms=host, routing=routing)
        if engine.drafts
        else plain,
        work=work_of(model, gpu, layout, engine.kv_cache_dtype),
        serves=scenario.model_of(pool).called,
        shared_reads=_shared_reads(model, gpu, layout, engine),
        stages=stages,
    )


def _shared_reads(model: ModelSpec, gpu: Gpu, layout: Layout, engine: EngineSpec) -> SharedReads | None:
    """Of engines whose steps run one batch on GPUs that all have the same tokens, one of each request.

    What that gains is known of GPUs that have been measured.
    """
    if _shipped(gpu.name) is None or engine.drafts or layout.pp * layout.dp * layout.dcp > 1:
        return None
    token_bytes = kv_bytes_per_token(model, engine.kv_cache_dtype, layout) / sum(layer.count for layer in model.layers)
    return SharedReads.of(gpu, token_bytes) if token_bytes else None


def _units(
    scenario: Scenario, served: Served, host: HostTerms, factors: Mapping[str, float] | None
) -> tuple[Setup, Setup]:
    """The attention and the FFN pool; an engine of the first has a part of the second behind it."""
    model = served.spec
    (attention_pool,), (ffn_pool,) = scenario.fleet.of_role("attention"), scenario.fleet.of_role("ffn")
    afd = scenario.fleet.afd
    engine = scenario.engine_of(attention_pool)
    if engine.drafts:
        raise UserError(f"{scenario.source}: engine: drafts are not simulated where attention and FFN are apart")
    attention = _side(scenario, attention_pool, attention_part(model), factors)
    ffn = replace(_side(scenario, ffn_pool, model, factors), routing=served.routing)
    with blaming(f"{scenario.source}: fleet.pools: {ffn_pool.name}"):
        check_experts(model, ffn)
        most = attention.instances * engine.max_num_batched_tokens
        share = scenario.engine_of(ffn_pool).gpu_memory_utilization
        ffn_memory = plan_ffn_memory(model, ffn, share, -(-most // afd.micro_batches))
    with blaming(f"{scenario.source}: fleet.pools: {attention_pool.name}"):
        memory = plan_memory(attention_part(model), attention.gpu, attention.tp, engine, role=attention_pool.role)
        limits = _of_unit(_limits(engine, model, memory, None), attention.instances)
    ends = [topology_of(side.gpu, scenario.fleet.topology) for side in (attention, ffn)]
    link = link_between(ends[0], ends[1], attention.gpus + ffn.gpus)
    compiled = compile_unit(
        model,
        attention,
        ffn,
        engine,
        link=link,
        micro_batches=afd.micro_batches,
        terms=host,
        slowed=(factors or {}).get("collective", 1.0),
    )
    near = Setup(
        pool=attention_pool,
        engine=engine,
        model=model,
        gpu=attention.gpu,
        memory=memory,
        limits=limits,
        cost=compiled.attention,
        work=attention_work(model, attention, engine.kv_cache_dtype),
        serves=scenario.model.called,
        unit=AfdCost(compiled.unit),
        spread=attention.instances,
    )
    behind = replace(
        near,
        pool=ffn_pool,
        gpu=ffn.gpu,
        memory=ffn_memory,
        limits=replace(limits, blocks=0),
        cost=compiled.ffn,
        work=ffn_work(model, ffn),
        spread=1,
    )
    return near, behind


def _side(scenario: Scenario, pool: PoolSpec, model: ModelSpec, factors: Mapping[str, float] | None) -> Side:
    """One unit's part of an attention or FFN pool, which holds so much of the model."""
    place = f"{scenario.source}: fleet.pools: {pool.name}"
    with blaming(f"{place}.gpu"):
        gpu = find_gpu(pool.gpu)
    with blaming(f"{place}.tp"):
        check_tp(model, pool.tp)
        check_fits_node(gpu, pool.tp)
    sources = _sources(scenario, gpu, model, Layout(tp=pool.tp))
    if factors:
        sources = tuple(Scaled(source, factors) for source in sources)
    return Side(gpu, pool.replicas // scenario.fleet.afd.units, pool.tp, sources, pool.redundant_experts)


def _of_unit(limits: Limits, instances: int) -> Limits:
    """The limits of all attention instances together; a chunk of a prompt is still on one of them."""
    each = limits.max_num_batched_tokens
    return replace(
        limits,
        blocks=limits.blocks * instances,
        max_num_seqs=limits.max_num_seqs * instances,
        max_num_batched_tokens=each * instances,
        long_prefill_token_threshold=min(limits.long_prefill_token_threshold or each, each),
    )


def layout_of(pool: PoolSpec) -> Layout:
    """A pool's layout in the model's terms."""
    return Layout(pool.tp, pool.pp, pool.dp, pool.expert_parallel, pool.redundant_experts, pool.all2all, pool.dcp)


def _sources(scenario: Scenario, gpu: Gpu, model: ModelSpec, layout: Layout) -> tuple[CostSource, ...]:
    """What there is, the best first: the user's own profile, the GPU's shipped one, NVIDIA's tables, the roofline."""
    wanted = scenario.cost
    own: list[CostSource] = []
    if wanted.profile is not None:
        from steelyard.cost.profiles import open_profile  # readers of files that few have

        with blaming(f"{scenario.source}: cost.profile"):
            own.append(open_profile(scenario.base_dir / wanted.profile, gpu, model, layout))
    topology = topology_of(gpu, scenario.fleet.topology)
    with blaming(f"{scenario.source}: cost.source"):
        return (*own, *measured_sources(wanted, gpu, topology), Roofline(gpu, topology))


def measured_sources(wanted: CostSpec, gpu: Gpu, topology: Topology) -> tuple[CostSource, ...]:
    """What others have measured on a GPU, as far as it is wanted, the best first."""
    if wanted.source == "analytic":
        return ()
    tables = find_silicon(gpu, topology)
    if wanted.source == "silicon" and tables is None:
        raise UserError(f"silicon has no tables of {gpu.name} here; install steelyard[silicon], or use auto")
    measured: list[CostSource | None] = [_shipped(gpu.name), tables]
    if wanted.source == "silicon":
        measured.reverse()
    return tuple(source for source in measured if source is not None)


@cache
def _shipped(gpu: str) -> MeasuredSource | None:
    """The profile that comes with the package for a GPU, read once however many runs use it."""
    bundle = shipped_bundle(gpu)
    return None if bundle is None else MeasuredSource(find_gpu(gpu), bundle)


def _host(scenario: Scenario) -> HostTerms:
    file = scenario.cost.calibration
    if file is None:
        return HostTerms()
    with blaming(f"{scenario.source}: cost.calibration"):
        return read_terms(scenario.base_dir / file)


def _limits(engine: EngineSpec, model: ModelSpec, memory: MemoryPlan, draft: Draft | None) -> Limits:
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
