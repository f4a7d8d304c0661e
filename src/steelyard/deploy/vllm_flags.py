"""A pool's engines as flags of ``vllm serve``, which Dynamo, KServe and verl pass on, too."""

from __future__ import annotations

from pathlib import Path

from steelyard.deploy.names import deployed_name
from steelyard.deploy.parts import Told
from steelyard.errors import UserError
from steelyard.model import load_model
from steelyard.scenario import EngineSpec, ModelRef, PoolSpec, SpeculativeSpec
from steelyard.scenario.tiers import TierSpec

GIB = 2**30
EAGLE_HEAD = "path/to/eagle-head"
ONLINE = {"fp8": "fp8", "fp8_block": "fp8_per_block"}  # quantised while loading
STORED = {"int4": "gptq", "awq": "awq", "nvfp4": "modelopt_fp4", "mxfp4": "mxfp4"}  # only read from a checkpoint
METHODS = {"ngram": "ngram", "draft": "draft_model", "eagle": "eagle", "mtp": "mtp"}
KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
_OTHERS = ("orca", "static", "phase-aware")


def check_scheduler(engine: EngineSpec, target: str, own: str, told: Told) -> None:
    """Refuse schedulers that no engine has, and note those of another engine."""
    if engine.scheduler in _OTHERS:
        raise UserError(f"engine.scheduler: {engine.scheduler} cannot be deployed with {target}; simulate {own}")
    if engine.scheduler != own:
        told.note(
            "engine.scheduler",
            f"{engine.scheduler} was simulated, {target} schedules by its own rules; simulate it with "
            f"engine.scheduler={own}",
        )


def model_flags(told: Told, model: ModelRef, base_dir: Path, online: dict[str, str], stored: dict[str, str]) -> None:
    """Precision of the weights."""
    quantization = "fp8" if model.dtype == "fp8" and model.quantization is None else model.quantization
    told.flag("--dtype", "auto" if model.dtype == "fp8" else model.dtype)
    if model.dtype == "fp8":
        told.note("model.dtype", "fp8 weights are told as a quantization")
    if quantization in online:
        told.flag("--quantization", online[quantization])
    elif quantization in stored:
        told.flag("--quantization", stored[quantization])
        told.note("model.quantization", f"needs a checkpoint quantised to {quantization} in place of the model's name")
    elif quantization == "none":
        if load_model(model.config, base_dir=base_dir).quantization is not None:
            told.note("model.quantization", "16 bits were simulated, but the checkpoint is quantised; name another")
    elif quantization is not None:
        told.note("model.quantization", f"name a checkpoint quantised to {quantization} in place of the model's name")
    if model.routing is not None:
        told.note("model.routing", "which experts are popular follows from the requests, and is not a setting")
    if model.name is not None:
        told.flag("--served-model-name", model.name)


def layout_flags(told: Told, pool: PoolSpec) -> None:
    """How an engine is spread over GPUs."""
    told.flag("--tensor-parallel-size", pool.tp)
    told.flag("--pipeline-parallel-size", pool.pp)
    told.flag("--data-parallel-size", pool.dp)
    told.flag("--decode-context-parallel-size", pool.dcp)
    told.switch("enable-expert-parallel", pool.expert_parallel)
    told.flag("--all2all-backend", pool.all2all)
    if pool.redundant_experts:
        told.flag("--enable-eplb")
        told.document("--eplb-config", {"num_redundant_experts": pool.redundant_experts})
    if pool.role in KV_ROLES:
        told.document("--kv-transfer-config", {"kv_connector": "NixlConnector", "kv_role": KV_ROLES[pool.role]})


def as_simulated(told: Told, engine: EngineSpec, model: ModelRef, base_dir: Path) -> EngineSpec:
    """Without prefix caching of recurrent state, which newer engines have on by default and we do not simulate."""
    if not load_model(model.config, base_dir=base_dir).recurrents or engine.tiers:
        return engine
    told.note("engine.enable_prefix_caching", "it is not simulated for models with recurrent layers, and turned off")
    return engine.replace(enable_prefix_caching=False)


def engine_flags(told: Told, engine: EngineSpec) -> None:
    """Everything else that vLLM calls by the scenario's names."""
    told.flag("--max-num-seqs", engine.max_num_seqs)
    told.flag("--max-num-batched-tokens", engine.max_num_batched_tokens)
    if engine.max_model_len is not None:
        told.flag("--max-model-len", engine.max_model_len)
    told.flag("--block-size", engine.block_size)
    told.flag("--gpu-memory-utilization", repr(engine.gpu_memory_utilization))
    if engine.num_gpu_blocks is not None:
        told.flag("--num-gpu-blocks-override", engine.num_gpu_blocks)
    if engine.kv_cache_memory_bytes is not None:
        told.flag("--kv-cache-memory-bytes", engine.kv_cache_memory_bytes)
    if engine.disable_hybrid_kv_cache_manager is not None:
        told.switch("disable-hybrid-kv-cache-manager", engine.disable_hybrid_kv_cache_manager)
    told.flag("--kv-cache-dtype", engine.kv_cache_dtype)
    told.switch("enable-prefix-caching", engine.enable_prefix_caching)
    told.switch("enable-chunked-prefill", engine.enable_chunked_prefill)
    told.flag("--long-prefill-token-threshold", engine.long_prefill_token_threshold)
    told.flag("--scheduling-policy", engine.policy)
    told.switch("async-scheduling", engine.schedules_ahead)
    told.switch("scheduler-reserve-full-isl", engine.scheduler_reserve_full_isl)
    told.flag("--watermark", repr(engine.watermark))
    if engine.disable_custom_all_reduce:
        told.flag("--disable-custom-all-reduce")
    _graphs(told, engine)
    _speculation(told, engine)
    _tiers(told, engine)
    note_conditions(told, engine)


def note_conditions(told: Told, engine: EngineSpec) -> None:
    """What was simulated of an engine's state and of the requests, and is no setting."""
    if engine.fresh:
        told.note("engine.fresh", "engines that had just been started were simulated")
    if engine.warm_up:
        told.note("engine.warm_up", f"send prompts of {', '.join(map(str, engine.warm_up))} tokens before others")
    if engine.accepted is not None:
        key = "engine.acceptance" if engine.speculative is None else "engine.speculative.acceptance"
        told.note(key, "how many drafts are accepted follows from model and requests; compare it with the engine's own")


def _graphs(told: Told, engine: EngineSpec) -> None:
    if engine.enforce_eager:
        told.flag("--enforce-eager")
    else:
        told.document("--compilation-config", {"cudagraph_mode": engine.cudagraph.upper()})
    capture_sizes(told, engine, "--cudagraph-capture-sizes")


def capture_sizes(told: Told, engine: EngineSpec, flag: str) -> None:
    """The sizes of captured graphs, by a target's flag."""
    if engine.cudagraph_capture_sizes is None:
        return
    if engine.cudagraph == "none" or not engine.cudagraph_capture_sizes:
        told.note("engine.cudagraph_capture_sizes", "without graphs there is nothing to capture")
    else:
        told.flag(flag, *engine.cudagraph_capture_sizes)


def drafting(told: Told, engine: EngineSpec) -> SpeculativeSpec | None:
    """How drafts are made; None without any, and for drafts that take no time, of which there are none."""
    spec = engine.speculative
    if not engine.drafts:
        return None
    if spec is None or spec.method == "free":
        key = "engine.num_speculative_tokens" if spec is None else "engine.speculative.method"
        told.note(key, "drafts that take no time cannot be had, and are left out; simulate ngram, draft, eagle or mtp")
        return None
    return spec


def _speculation(told: Told, engine: EngineSpec) -> None:
    spec = drafting(told, engine)
    if spec is None:
        return
    config: dict[str, object] = {"method": METHODS[spec.method], "num_speculative_tokens": spec.num_tokens}
    if spec.draft_model is not None:
        config["model"] = deployed_name(spec.draft_model)
    if spec.method == "eagle":
        config["model"] = EAGLE_HEAD
        told.note("engine.speculative.method", f"replace {EAGLE_HEAD} by a head that was trained for the model")
    told.document("--speculative-config", config)


def _tiers(told: Told, engine: EngineSpec) -> None:
    for i, tier in enumerate(engine.tiers):
        key = f"engine.tiers[{i}]"
        if tier.kind != "host":
            told.note(key, f"a {tier.kind} tier needs a KV connector such as LMCache, with a configuration of its own")
        elif tier.size is None:
            told.note(key, "sizes in blocks cannot be told; simulate it with size")
        else:
            told.flag("--kv-offloading-size", repr(tier.size / GIB))
            told.flag("--kv-offloading-backend", "native")
            told.note(key, _tier_note(tier))


def _tier_note(tier: TierSpec) -> str:
    writes = "" if tier.write == "through" else "; blocks are written when they are computed, not when evicted"
    return f"bandwidth and latency are the host's own, {tier.rates[0] / 1e9:g} GB/s was simulated{writes}"
