"""From a scenario to a fleet that can run. Everything expensive happens here, before the clock starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from steelyard.cost import CompiledCost, HostTerms, MemoryPlan, SpeculativeCost, Work, find_draft, read_terms
from steelyard.cost.afd import AfdCost
from steelyard.cost.kv_layout import check_states
from steelyard.cost.shared_reads import SharedReads
from steelyard.engine import Limits
from steelyard.errors import UserError, blaming
from steelyard.hardware import Gpu, check_fits_node, find_gpu, topology_of
from steelyard.model import Layout, ModelSpec, check_tp
from steelyard.scenario import CostSpec, EngineSpec, PoolSpec, Scenario, SloSpec, scenario_from_dict
from steelyard.scenario.workload import MixSpec
from steelyard.sim.models import ServedModel, find_models
from steelyard.sim.prepared import Prepared, Recipe, check_engine
from steelyard.sim.prepared_unit import Half, UnitRecipe
from steelyard.sim.sources import Sources

MOST_ROWS = 48 * 8192  # tokens of all ranks in one step, by which tables are made


@dataclass(frozen=True)
class Setup:
    """A pool of a scenario, prepared: replicas of one kind of engine."""

    pool: PoolSpec
    prepared: Prepared
    serves: str = ""  # the model's name in requests

    @property
    def engine(self) -> EngineSpec:
        """The settings of its engines."""
        return self.prepared.engine

    @property
    def model(self) -> ModelSpec:
        return self.prepared.model

    @property
    def gpu(self) -> Gpu:
        return self.prepared.gpu

    @property
    def memory(self) -> MemoryPlan:
        return self.prepared.memory

    @property
    def limits(self) -> Limits:
        return self.prepared.limits

    @property
    def cost(self) -> CompiledCost | SpeculativeCost:
        return self.prepared.cost

    @property
    def work(self) -> Work:
        return self.prepared.work

    @property
    def shared_reads(self) -> SharedReads | None:
        return self.prepared.shared_reads

    @property
    def stages(self) -> tuple[CompiledCost, ...]:
        return self.prepared.stages

    @property
    def unit(self) -> AfdCost | None:
        return self.prepared.unit

    @property
    def spread(self) -> int:
        return self.prepared.spread

    @property
    def step_cost(self) -> CompiledCost | SpeculativeCost | AfdCost:
        """The step costs that engines use."""
        return self.prepared.step_cost

    @property
    def gpus(self) -> int:
        """GPUs of the whole pool."""
        return self.pool.replicas * self.layout.gpus

    @property
    def layout(self) -> Layout:
        """The parallel layout of one engine."""
        return layout_of(self.pool)

    @property
    def ranks(self) -> int:
        """Schedulers of the pool: one per data-parallel rank of each engine; none in FFN pools."""
        return 0 if self.pool.role == "ffn" else self.pool.replicas * self.pool.dp // self.spread

    @property
    def price_per_hour(self) -> float:
        """US dollars per GPU."""
        own = self.pool.price_per_hour
        return self.gpu.price_per_hour if own is None else own


@dataclass(frozen=True)
class FleetSetup:
    """A scenario with its pools prepared. Replicas are numbered over all pools, those that take requests first."""

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
        """Names of the served models, as requests use them."""
        return tuple(dict.fromkeys(each.serves for each in self.pools))

    @property
    def hands_over(self) -> bool:
        """Whether prefill and decode run in different pools."""
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
    """Find models and GPUs, plan memory, compile costs. Raises UserError for settings that cannot work.

    ``host`` replaces the host's times of the scenario. ``factors`` scale the times of operator families.
    """
    models = find_models(scenario)
    own = models[scenario.model.called]
    host = host or host_terms(scenario.cost, scenario.base_dir, scenario.source)
    pools = scenario.fleet.of_role("serve", "prefill") + scenario.fleet.of_role("decode")
    sources = Sources(scenario.cost, scenario.base_dir, factors or {})
    found = tuple(_pool(scenario, pool, models[scenario.model_of(pool).called], host, sources) for pool in pools)
    if scenario.fleet.of_role("attention"):
        found += _units(scenario, own, host, sources)
    sizes = sorted({each.limits.block_size for each in found})
    if len(sizes) > 1:
        raise UserError(
            f"{scenario.source}: fleet.pools: engines have blocks of {' and '.join(map(str, sizes))} tokens; requests "
            "pass between them, so give all of them one engine.block_size"
        )
    return FleetSetup(scenario, own.spec, host, found)


def fleet_of(
    prepared: Prepared,
    workload: MixSpec | Mapping[str, Any],
    *,
    replicas: int = 1,
    router: str = "round-robin",
    slo: SloSpec | Mapping[str, float] | None = None,
    seed: int = 0,
) -> FleetSetup:
    """A fleet of replicas of one prepared engine. Other settings have the keys of a scenario."""
    layout = prepared.layout
    fleet = {"gpu": prepared.gpu.name, "replicas": replicas, "router": router, **asdict(layout)}
    said = {
        "model": prepared.model.name,
        "fleet": fleet,
        "engine": prepared.engine,
        "workload": workload,
        "slo": slo or {},
        "cost": prepared.sources.wanted,
        "seed": seed,
    }
    scenario = scenario_from_dict(said, "prepared engine", base_dir=prepared.sources.base_dir)
    (pool,) = scenario.fleet.pools
    return FleetSetup(scenario, prepared.model, prepared.host, (Setup(pool, prepared, scenario.model.called),))


def _pool(scenario: Scenario, pool: PoolSpec, served: ServedModel, host: HostTerms, sources: Sources) -> Setup:
    if pool.autoscale is not None:
        pool = pool.replace(replicas=pool.autoscale.max)  # the most there can be
    engine = scenario.engine_of(pool)
    place = "fleet" if len(scenario.fleet.pools) == 1 else f"fleet.pools: {pool.name}"
    with blaming(f"{scenario.source}: {place}.gpu"):
        gpu = find_gpu(pool.gpu)
    layout = layout_of(pool)
    check_rows(layout.dp, engine.max_num_batched_tokens, f"{scenario.source}: {place}.dp")
    with blaming(f"{scenario.source}: {place}.tp" if layout == Layout(tp=pool.tp) else f"{scenario.source}: {place}"):
        check_engine(served.spec, gpu, layout, engine)
    with blaming(scenario.source):
        check_states(served.spec, engine)
        draft = find_draft(engine, served.spec, scenario.base_dir)
        topology = topology_of(gpu, scenario.fleet.topology)
        recipe = Recipe(served.spec, gpu, layout, engine, sources, host, served.routing, topology, pool.role, draft)
        return Setup(pool, recipe.prepared(), scenario.model_of(pool).called)


def _units(scenario: Scenario, served: ServedModel, host: HostTerms, sources: Sources) -> tuple[Setup, Setup]:
    """The attention and the FFN pool. An engine of the first uses a share of the second."""
    (attention_pool,), (ffn_pool,) = scenario.fleet.of_role("attention"), scenario.fleet.of_role("ffn")
    engine = scenario.engine_of(attention_pool)
    if engine.drafts:
        raise UserError(f"{scenario.source}: engine: drafts are not simulated where attention and FFN are apart")
    attention = attention_pool.replicas // scenario.fleet.afd.units
    check_rows(
        attention, engine.max_num_batched_tokens, f"{scenario.source}: fleet.pools: {attention_pool.name}.replicas"
    )
    recipe = UnitRecipe(
        served.spec,
        _half(scenario, attention_pool, served.spec),
        _half(scenario, ffn_pool, served.spec),
        engine,
        scenario.engine_of(ffn_pool).gpu_memory_utilization,
        scenario.fleet.afd.micro_batches,
        scenario.fleet.afd,
        sources,
        host,
        served.routing,
    )
    near, behind = recipe.prepared(scenario.source)
    called = scenario.model.called
    return Setup(attention_pool, near, called), Setup(ffn_pool, behind, called)


def _half(scenario: Scenario, pool: PoolSpec, model: ModelSpec) -> Half:
    """One unit's share of an attention or FFN pool."""
    place = f"{scenario.source}: fleet.pools: {pool.name}"
    with blaming(f"{place}.gpu"):
        gpu = find_gpu(pool.gpu)
    with blaming(f"{place}.tp"):
        check_tp(model, pool.tp)
        check_fits_node(gpu, pool.tp)
    topology = topology_of(gpu, scenario.fleet.topology)
    return Half(pool.name, gpu, pool.replicas // scenario.fleet.afd.units, pool.tp, topology, pool.redundant_experts)


def check_rows(ranks: int, tokens: int, where: str) -> None:
    """Refuse engines whose ranks have more tokens in one step than tables are made for."""
    if ranks * tokens > MOST_ROWS:
        raise UserError(
            f"{where}: {ranks} ranks with max_num_batched_tokens of {tokens:,} have {ranks * tokens:,} tokens a step, "
            f"and at most {MOST_ROWS:,} can be simulated: lower engine.max_num_batched_tokens to {MOST_ROWS // ranks:,}"
        )


def layout_of(pool: PoolSpec) -> Layout:
    """The parallel layout of a pool."""
    return Layout(pool.tp, pool.pp, pool.dp, pool.expert_parallel, pool.redundant_experts, pool.all2all, pool.dcp)


def host_terms(cost: CostSpec, base_dir: Path, source: str) -> HostTerms:
    """The host's times from a calibration file, or the defaults."""
    if cost.calibration is None:
        return HostTerms()
    with blaming(f"{source}: cost.calibration"):
        return read_terms(base_dir / cost.calibration)
