"""A pool's engines as flags of SGLang's server."""

from __future__ import annotations

from steelyard.deploy.fleets import EngineGroup
from steelyard.deploy.names import deployed_name
from steelyard.deploy.parts import Told
from steelyard.deploy.vllm_flags import (
    EAGLE_HEAD,
    capture_sizes,
    check_scheduler,
    drafting,
    model_flags,
    note_conditions,
)
from steelyard.scenario import EngineSpec, PoolSpec

ONLINE = {"fp8": "fp8"}
STORED = {"int4": "gptq", "awq": "awq", "nvfp4": "modelopt_fp4", "mxfp4": "mxfp4", "int8": "w8a8_int8"}
ALGORITHMS = {"ngram": "NGRAM", "draft": "STANDALONE", "eagle": "EAGLE", "mtp": "NEXTN"}
DEEPEP = {"deepep_high_throughput": "normal", "deepep_low_latency": "low_latency"}
_OWN = {  # settings of vLLM that SGLang has nothing like
    "num_gpu_blocks": None,
    "kv_cache_memory_bytes": None,
    "disable_hybrid_kv_cache_manager": None,
    "long_prefill_token_threshold": 0,
    "scheduler_reserve_full_isl": True,
    "watermark": 0.0,
}


def sglang_told(group: EngineGroup) -> Told:
    """The flags of a pool's engines."""
    told = Told()
    check_scheduler(group.engine, "SGLang", "sglang", told)
    model_flags(told, group.model, group.base_dir, ONLINE, STORED)
    _layout(told, group.pool)
    sglang_engine(told, group.engine, group.pool.dp)
    return told


def _layout(told: Told, pool: PoolSpec) -> None:
    """SGLang's tensor-parallel group holds the data-parallel ranks of attention."""
    told.flag("--tp-size", pool.tp * pool.dp)
    told.flag("--pp-size", pool.pp)
    told.flag("--attn-dp-size", pool.dp)
    told.flag("--dcp-size", pool.dcp)
    told.flag("--ep-size", pool.tp * pool.dp if pool.expert_parallel else 1)
    if pool.expert_parallel and pool.tp * pool.dp == 1:
        told.note("fleet.pools.expert_parallel", "one GPU holds all experts; there is nothing to spread")
    backend = DEEPEP.get(pool.all2all) if pool.expert_parallel else None
    told.flag("--moe-a2a-backend", "deepep" if backend else "none")
    if backend:
        told.flag("--deepep-mode", backend)
    elif pool.all2all in DEEPEP:
        told.note("fleet.pools.all2all", "nothing is sent without expert_parallel; the backend is left out")
    if pool.redundant_experts:
        told.flag("--enable-eplb")
        told.flag("--ep-num-redundant-experts", pool.redundant_experts)
    if pool.role != "serve":
        told.flag("--disaggregation-mode", pool.role)
        told.flag("--disaggregation-transfer-backend", "nixl")


def sglang_engine(told: Told, engine: EngineSpec, ranks: int = 1) -> None:
    """Settings of the engine. SGLang counts requests over all ranks, and a chunk for each."""
    own = engine.sglang
    told.flag("--max-running-requests", engine.max_num_seqs * ranks)
    told.flag("--chunked-prefill-size", engine.max_num_batched_tokens if engine.enable_chunked_prefill else -1)
    if not engine.enable_chunked_prefill:
        told.note("engine.max_num_batched_tokens", "without chunks SGLang bounds a batch by max_prefill_tokens alone")
    told.flag("--max-prefill-tokens", own.max_prefill_tokens)
    if engine.max_model_len is not None:
        told.flag("--context-length", engine.max_model_len)
    told.flag("--page-size", engine.block_size)
    told.flag("--mem-fraction-static", repr(engine.gpu_memory_utilization))
    if engine.scheduler != "sglang":
        told.note(
            "engine.gpu_memory_utilization",
            "SGLang's share is for weights and KV cache alone; lower it if activations and graphs do not fit",
        )
    told.flag("--kv-cache-dtype", "fp8_e4m3" if engine.kv_cache_dtype == "fp8" else "auto")
    if not engine.enable_prefix_caching:
        told.flag("--disable-radix-cache")
    told.flag("--schedule-policy", own.schedule_policy)
    told.flag("--schedule-conservativeness", repr(own.schedule_conservativeness))
    if own.enable_mixed_chunk:
        told.flag("--enable-mixed-chunk")
    if engine.policy == "priority":
        told.flag("--enable-priority-scheduling")
    if not engine.schedules_ahead:
        told.flag("--disable-overlap-schedule")
    if engine.disable_custom_all_reduce:
        told.flag("--disable-custom-all-reduce")
    _graphs(told, engine)
    _speculation(told, engine)
    _others(told, engine)


def _graphs(told: Told, engine: EngineSpec) -> None:
    """Decode steps have graphs, or none; pieces of prompts are captured by SGLang's own rule."""
    if engine.cudagraph == "none":
        told.flag("--cuda-graph-backend-decode", "disabled")
        told.flag("--cuda-graph-backend-prefill", "disabled")
        if not engine.enforce_eager:
            told.note("engine.enforce_eager", "without graphs SGLang runs eagerly")
    elif engine.cudagraph not in ("full_and_piecewise", "full_decode_only"):
        told.note("engine.cudagraph", f"{engine.cudagraph} is vLLM's; SGLang captures whole decode steps")
    elif engine.cudagraph == "full_decode_only":
        told.flag("--cuda-graph-backend-prefill", "disabled")
    capture_sizes(told, engine, "--cuda-graph-bs-decode")


def _speculation(told: Told, engine: EngineSpec) -> None:
    spec = drafting(told, engine)
    if spec is None:
        return
    told.flag("--speculative-algorithm", ALGORITHMS[spec.method])
    if spec.method != "ngram":
        told.flag("--speculative-num-steps", spec.num_tokens)
        told.flag("--speculative-eagle-topk", 1)
    told.flag("--speculative-num-draft-tokens", spec.num_tokens + 1)
    if spec.draft_model is not None:
        told.flag("--speculative-draft-model-path", deployed_name(spec.draft_model))
    if spec.method == "eagle":
        told.flag("--speculative-draft-model-path", EAGLE_HEAD)
        told.note("engine.speculative.method", f"replace {EAGLE_HEAD} by a head that was trained for the model")


def _others(told: Told, engine: EngineSpec) -> None:
    for key, default in _OWN.items():
        value = engine.model_dump(include={key})[key]
        if value != default:
            told.note(f"engine.{key}", f"{value} was simulated, and SGLang has no such setting")
    if engine.sglang.max_new_tokens is not None or engine.sglang.ignore_eos:
        told.note("engine.sglang", "max_new_tokens and ignore_eos are fields of a request, and clients send them")
    for i, tier in enumerate(engine.tiers):
        if tier.kind != "host" or tier.size is None:
            told.note(f"engine.tiers[{i}]", "only a host tier with a size can be told to SGLang")
            continue
        told.flag("--enable-hierarchical-cache")
        told.flag("--hicache-size", max(1, round(tier.size / 1e9)))
        told.flag("--hicache-write-policy", f"write_{tier.write}")
        told.note(
            f"engine.tiers[{i}]", "its size is in whole GB, for each GPU; bandwidth and latency are the host's own"
        )
    note_conditions(told, engine)
