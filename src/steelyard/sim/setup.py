"""From what a user wrote to what runs: everything expensive happens here, before the clock starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from steelyard.cost import (
    CompiledCost,
    CostSource,
    HostTerms,
    Measured,
    MemoryPlan,
    Roofline,
    Work,
    compile_cost,
    plan_memory,
    read_terms,
    shipped_bundle,
    work_of,
)
from steelyard.cost.profiles import open_profile
from steelyard.cost.scaled import Scaled
from steelyard.cost.silicon import find_silicon
from steelyard.engine import Limits
from steelyard.errors import UserError, blaming
from steelyard.hardware import Gpu, check_fits_node, find_gpu
from steelyard.model import ModelSpec, check_tp, load_model, serve_as
from steelyard.scenario import EngineSpec, PoolSpec, Scenario


@dataclass(frozen=True)
class Setup:
    """A pool made concrete: one kind of engine on one kind of GPU."""

    pool: PoolSpec
    engine: EngineSpec
    model: ModelSpec
    gpu: Gpu
    memory: MemoryPlan
    limits: Limits
    cost: CompiledCost
    work: Work

    @property
    def gpus(self) -> int:
        """GPUs of the whole pool."""
        return self.pool.replicas * self.pool.tp

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
    def hands_over(self) -> bool:
        """Whether some engines compute prompts and others answer."""
        return any(each.pool.role == "prefill" for each in self.pools)

    @property
    def takes_requests(self) -> tuple[Setup, ...]:
        """Pools that clients' requests go to."""
        return tuple(each for each in self.pools if each.pool.role != "decode")

    @property
    def answers(self) -> tuple[Setup, ...]:
        """Pools that requests end in."""
        return tuple(each for each in self.pools if each.pool.role != "prefill")


def set_up(scenario: Scenario, host: HostTerms | None = None, factors: Mapping[str, float] | None = None) -> FleetSetup:
    """Find model and GPUs, plan memory, compile costs; refuses what cannot work.

    ``host`` stands in for the terms that the scenario names; ``factors`` scale families of operators.
    """
    wanted = scenario.model
    with blaming(f"{scenario.source}: model"):
        model = load_model(wanted.config, base_dir=scenario.base_dir)
        model = serve_as(model, wanted.dtype, wanted.quantization)
    host = host or _host(scenario)
    pools = scenario.fleet.of_role("serve", "prefill") + scenario.fleet.of_role("decode")
    found = tuple(_pool(scenario, pool, model, host, factors) for pool in pools)
    sizes = sorted({each.limits.block_size for each in found})
    if len(sizes) > 1:
        raise UserError(
            f"{scenario.source}: fleet.pools: engines have blocks of {' and '.join(map(str, sizes))} tokens; requests "
            "pass between them, so give all of them one engine.block_size"
        )
    return FleetSetup(scenario, model, host, found)


def _pool(
    scenario: Scenario, pool: PoolSpec, model: ModelSpec, host: HostTerms, factors: Mapping[str, float] | None
) -> Setup:
    engine = scenario.engine_of(pool)
    place = "fleet" if len(scenario.fleet.pools) == 1 else f"fleet.pools: {pool.name}"
    with blaming(f"{scenario.source}: {place}.gpu"):
        gpu = find_gpu(pool.gpu)
    with blaming(f"{scenario.source}: {place}.tp"):
        check_tp(model, pool.tp)
        check_fits_node(gpu, pool.tp)
    with blaming(scenario.source):
        memory = plan_memory(model, gpu, pool.tp, engine)
        limits = _limits(engine, model, memory)
    sources = _sources(scenario, gpu, model, pool.tp)
    if factors:
        sources = tuple(Scaled(source, factors) for source in sources)
    return Setup(
        pool=pool,
        engine=engine,
        model=model,
        gpu=gpu,
        memory=memory,
        limits=limits,
        cost=compile_cost(model, pool.tp, engine, *sources, terms=host),
        work=work_of(model, gpu, pool.tp, engine.kv_cache_dtype),
    )


def _sources(scenario: Scenario, gpu: Gpu, model: ModelSpec, tp: int) -> tuple[CostSource, ...]:
    """What there is, the best first: the user's own profile, the GPU's shipped one, NVIDIA's tables, the roofline."""
    wanted = scenario.cost
    own: list[CostSource] = []
    if wanted.profile is not None:
        with blaming(f"{scenario.source}: cost.profile"):
            own.append(open_profile(scenario.base_dir / wanted.profile, gpu, model, tp))
    if wanted.source == "analytic":
        return (*own, Roofline(gpu, tp))
    tables = find_silicon(gpu, tp)
    if wanted.source == "silicon" and tables is None:
        raise UserError(
            f"{scenario.source}: cost.source: silicon has no tables of {gpu.name} here; "
            "install steelyard[silicon], or use auto"
        )
    measured: list[CostSource | None] = [_shipped(gpu.name), tables]
    if wanted.source == "silicon":
        measured.reverse()
    return (*own, *(source for source in measured if source is not None), Roofline(gpu, tp))


@cache
def _shipped(gpu: str) -> Measured | None:
    """The profile that comes with the package for a GPU, read once however many runs use it."""
    bundle = shipped_bundle(gpu)
    return None if bundle is None else Measured(find_gpu(gpu), bundle)


def _host(scenario: Scenario) -> HostTerms:
    file = scenario.cost.calibration
    if file is None:
        return HostTerms()
    with blaming(f"{scenario.source}: cost.calibration"):
        return read_terms(scenario.base_dir / file)


def _limits(engine: EngineSpec, model: ModelSpec, memory: MemoryPlan) -> Limits:
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
        async_scheduling=engine.async_scheduling,
        reserve_full_prompt=engine.scheduler_reserve_full_isl,
        watermark=engine.watermark,
        speculative_tokens=engine.num_speculative_tokens,
    )
