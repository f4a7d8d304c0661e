"""From what a user wrote to what runs: everything expensive happens here, before the clock starts."""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.cost import (
    CompiledCost,
    CostSource,
    Measured,
    MemoryPlan,
    Roofline,
    Work,
    compile_cost,
    graph_plan,
    plan_memory,
    shipped_bundle,
    work_of,
)
from steelyard.engine import Limits
from steelyard.errors import UserError, blaming
from steelyard.hardware import Gpu, check_fits_node, find_gpu
from steelyard.model import ModelSpec, check_tp, load_model, serve_as
from steelyard.scenario import CostSpec, EngineSpec, PoolSpec, Scenario


@dataclass(frozen=True)
class Setup:
    """A scenario made concrete: one kind of engine on one kind of GPU."""

    scenario: Scenario
    pool: PoolSpec
    model: ModelSpec
    gpu: Gpu
    memory: MemoryPlan
    limits: Limits
    cost: CompiledCost
    work: Work

    @property
    def gpus(self) -> int:
        """GPUs of the whole fleet."""
        return self.pool.replicas * self.pool.tp


def set_up(scenario: Scenario) -> Setup:
    """Find model and GPU, plan memory, compile costs; refuses what cannot work."""
    pool, engine, wanted = scenario.fleet.pools[0], scenario.engine, scenario.model
    with blaming(f"{scenario.source}: model"):
        model = load_model(wanted.config, base_dir=scenario.base_dir)
        model = serve_as(model, wanted.dtype, wanted.quantization)
    with blaming(f"{scenario.source}: fleet.gpu"):
        gpu = find_gpu(pool.gpu)
    with blaming(f"{scenario.source}: fleet.tp"):
        check_tp(model, pool.tp)
        check_fits_node(gpu, pool.tp)
    with blaming(scenario.source):
        memory = plan_memory(model, gpu, pool.tp, engine, graph_plan(engine))
        limits = _limits(engine, model, memory)
    sources = _sources(scenario.cost, gpu, pool.tp)
    return Setup(
        scenario=scenario,
        pool=pool,
        model=model,
        gpu=gpu,
        memory=memory,
        limits=limits,
        cost=compile_cost(model, pool.tp, engine, *sources),
        work=work_of(model, gpu, pool.tp, engine.kv_cache_dtype),
    )


def _sources(wanted: CostSpec, gpu: Gpu, tp: int) -> tuple[CostSource, ...]:
    """What there is, the best first: a measured profile of the GPU where the package ships one, then the roofline."""
    sources: list[CostSource] = []
    bundle = shipped_bundle(gpu.name) if wanted.source == "auto" else None
    if bundle is not None:
        sources.append(Measured(gpu, bundle))
    return (*sources, Roofline(gpu, tp))


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
