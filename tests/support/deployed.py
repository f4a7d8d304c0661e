"""Random valid scenarios for round trips."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from steelyard.scenario import PosttrainScenario, Scenario, posttrain_from_dict, scenario_from_dict

_ROUTERS = ("round-robin", "random", "least-outstanding", "power-of-two", "sticky", "prefix-aware", "kv-aware")
_MODELS = ("qwen3-32b", "qwen3-30b-a3b", "llama-3.1-8b", "Qwen/Qwen3-8B")
_GPUS = ("h200", "h100", "a100-80", "mi300x", "h20")
_PLACING = ("least-outstanding", "cost-aware", "sticky")
_SYNCS = ({"kind": "broadcast"}, {"kind": "shards"}, {"kind": "disk"})
_TAILS = ("none", "over-sampling", "partial", "repack")
_WORKLOAD = {"arrivals": {"kind": "poisson", "rate": 1}, "requests": 10, "prompt": 10, "output": 10}


def _some(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A mapping with any of some keys."""
    return st.fixed_dictionaries({}, optional=keys)


def _speculation() -> st.SearchStrategy[dict[str, Any]]:
    accept = {"probabilities": [0.5]}
    plain = st.builds(
        lambda method, tokens: {"method": method, "num_tokens": tokens, "acceptance": accept},
        st.sampled_from(("ngram", "eagle", "mtp", "free")),
        st.integers(1, 8),
    )
    draft = st.builds(lambda tokens: {"method": "draft", "num_tokens": tokens, "acceptance": accept}, st.integers(1, 8))
    return plain | draft.map(lambda each: {**each, "draft_model": "qwen3-0.6b"})


def engines(scheduler: str) -> st.SearchStrategy[dict[str, Any]]:
    """Engine settings for one scheduler."""
    shares = st.floats(0.05, 1.0, allow_nan=False)
    sizes = st.lists(st.integers(1, 512), min_size=1, max_size=5, unique=True).map(sorted)
    graphs = ("full_and_piecewise", "full_decode_only", "full", "piecewise", "none")
    flags = st.booleans()
    keys: dict[str, st.SearchStrategy[Any]] = {
        "max_num_batched_tokens": st.integers(1024, 16384),
        "max_num_seqs": st.integers(1, 1024),
        "max_model_len": st.integers(100, 100_000),
        "gpu_memory_utilization": shares,
        "enable_prefix_caching": flags,
        "enable_chunked_prefill": flags,
        "policy": st.sampled_from(("fcfs", "priority")),
        "async_scheduling": flags,
        "speculative": _speculation(),
        "cudagraph_capture_sizes": sizes,
        "kv_cache_dtype": st.sampled_from(("auto", "fp8")),
    }
    if scheduler == "sglang":
        own = _some(
            schedule_policy=st.sampled_from(("lpm", "fcfs")),
            max_prefill_tokens=st.integers(1, 65536),
            enable_mixed_chunk=flags,
            schedule_conservativeness=st.floats(0.1, 3.0),
        )
        keys["sglang"] = own
    else:
        keys |= {
            "block_size": st.sampled_from((1, 8, 16, 32, 64, 128, 256)),
            "num_gpu_blocks": st.integers(2, 100_000),
            "disable_hybrid_kv_cache_manager": flags,
            "long_prefill_token_threshold": st.integers(0, 8192),
            "scheduler_reserve_full_isl": flags,
            "watermark": st.floats(0.0, 0.5),
        }
    eager: st.SearchStrategy[dict[str, Any]] = st.one_of(
        st.just({"enforce_eager": True}), st.sampled_from(graphs).map(lambda mode: {"cudagraph": mode}), st.just({})
    )
    return st.builds(lambda some, mode: {"scheduler": scheduler, **some, **mode}, _some(**keys), eager)


def _pool(role: str) -> st.SearchStrategy[dict[str, Any]]:
    sizes = st.sampled_from((1, 2, 4))
    rest = _some(
        tp=sizes,
        pp=st.sampled_from((1, 2)),
        dp=sizes,
        expert_parallel=st.booleans(),
        redundant_experts=st.integers(0, 32),
        all2all=st.sampled_from(("allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency")),
        **({"dcp": st.sampled_from((1, 2))} if role == "serve" else {}),
    )
    return st.builds(
        lambda gpu, replicas, more: {"role": role, "gpu": gpu, "replicas": replicas, **more},
        st.sampled_from(_GPUS),
        st.integers(1, 9),
        rest,
    )


def _fits(pool: dict[str, Any]) -> bool:
    """Engines of one node, or of whole nodes."""
    gpus = pool.get("tp", 1) * pool.get("pp", 1) * pool.get("dp", 1)
    return bool(gpus <= 8 or gpus % 8 == 0)


@st.composite
def scenarios(draw: st.DrawFn, scheduler: str = "vllm") -> Scenario:
    """A fleet of one or more pools, co-located or disaggregated."""
    apart = draw(st.booleans())
    roles = ("prefill", "decode") if apart else ("serve",) * draw(st.integers(1, 3))
    pools = []
    for i, role in enumerate(roles):
        pool = draw(_pool(role).filter(_fits))
        pools.append({**pool, "name": f"{role}-{i}"})
    fleet: dict[str, Any] = {"pools": pools, "router": draw(st.sampled_from(_ROUTERS))}
    engine: dict[str, Any] = {"engine": draw(engines(scheduler))}
    if apart:
        fleet["decode_router"] = draw(st.sampled_from(_ROUTERS))
        pools[0].update(engine)
        pools[1]["engine"], engine = draw(engines(scheduler)), {}
    model: dict[str, Any] = {"config": draw(st.sampled_from(_MODELS))}
    types, weights = ("auto", "bfloat16", "float16"), ("fp8", "fp8_block", "awq", "int4", "nvfp4", "mxfp4", "int8")
    model |= draw(_some(dtype=st.sampled_from(types), quantization=st.sampled_from(weights)))
    data = {"model": model, "fleet": fleet, **engine, "workload": _WORKLOAD}
    return scenario_from_dict(data)


def _post_training_engine(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    """Engine settings of rollouts, with drafts that can be deployed with the target or not."""
    own = engines("vllm").filter(lambda engine: engine.get("speculative", {}).get("method") != "draft")
    if kind == "verl":
        return own
    unknown = ("disable_hybrid_kv_cache_manager", "num_gpu_blocks")
    return own.map(lambda engine: {key: value for key, value in engine.items() if key not in unknown})


@st.composite
def post_training(draw: st.DrawFn, kind: str) -> PosttrainScenario:
    """A run of post-training that verl or slime can be told: one degree of rollout engines, whole nodes."""
    modes = ("colocated", "split", "one-step-off") + (("asynchronous",) if kind == "verl" else ())
    mode, tail = draw(st.sampled_from(modes)), draw(st.sampled_from(_TAILS))
    ahead: dict[str, Any] = {"tail": tail}
    if mode == "asynchronous":
        ahead["staleness"] = (
            draw(st.integers(1, 4)) + 1 if tail in ("over-sampling", "partial") else draw(st.integers(0, 4))
        )
    sharded = kind == "verl" and draw(st.booleans())
    layouts = ((1, 1, 1, 8), (2, 2, 1, 4), (4, 1, 2, 2), (1, 1, 1, 16), (2, 1, 1, 1), (8, 1, 1, 3))
    tp, pp, cp, dp = draw(st.sampled_from([each for each in layouts if not sharded or each[:2] == (1, 1)]))
    gpus = tp * pp * cp * dp
    degree = draw(st.sampled_from([each for each in (1, 2, 4, 8) if gpus % each == 0]))
    replicas = gpus // degree if mode == "colocated" else 8 // degree * draw(st.integers(1, 3))
    more = dict(
        recompute=st.sampled_from(("none", "selective", "full")),
        micro_batch_tokens=st.integers(1000, 100_000),
        minibatches=st.sampled_from((1, 2, 4)),
        old_log_probs=st.booleans(),
        reference=st.sampled_from(("none", "resident", "offloaded")),
        weighed=st.booleans(),
        packing=st.sampled_from(("balanced", "best-fit")),
        **({} if sharded else {"ep": st.sampled_from((1, 2, 8)), "zero": st.sampled_from((0, 1, 2))}),
    )
    training = {"tp": tp, "pp": pp, "cp": cp, "dp": dp, **draw(_some(**more)), **({"zero": 3} if sharded else {})}
    budget = {"turns": draw(st.integers(1, 50)), "context": draw(st.integers(2000, 40_000))}
    budget |= draw(_some(response=st.integers(100, 50_000)))
    trajectories: dict[str, Any] = {"preset": draw(st.sampled_from(("search", "swe", "math"))), "budget": budget}
    trajectories |= {"prompts": 4 * draw(st.integers(1, 64)), "group": draw(st.integers(1, 16))}
    data: dict[str, Any] = {"model": draw(st.sampled_from(_MODELS)), "gpu": draw(st.sampled_from(_GPUS)), "mode": mode}
    data |= {"trajectories": trajectories, "rollout": [{"tp": degree, "replicas": replicas}], "training": training}
    data |= {"engine": draw(_post_training_engine(kind)), "router": draw(st.sampled_from(_PLACING))}
    data |= draw(_some(steps=st.integers(1, 50), seed=st.integers(0, 99), sync=st.sampled_from(_SYNCS)))
    return posttrain_from_dict(data | ahead)
