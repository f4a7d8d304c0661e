"""Flags of SGLang's server as a pool and its engine settings."""

from __future__ import annotations

from typing import Any

from steelyard.deploy.imported import Remarks
from steelyard.deploy.parts import brief
from steelyard.deploy.sglang_flags import ALGORITHMS, DEEPEP, ONLINE, STORED
from steelyard.deploy.vllm_read import Read, left_over, model_of, speculative
from steelyard.deploy.words import Flags
from steelyard.errors import UserError

SHORT = {
    "--tensor-parallel-size": "--tp-size",
    "--tp": "--tp-size",
    "--pipeline-parallel-size": "--pp-size",
    "--pp": "--pp-size",
    "--expert-parallel-size": "--ep-size",
    "--ep": "--ep-size",
    "--data-parallel-size": "--dp-size",
    "--dp": "--dp-size",
    "--attention-data-parallel-size": "--attn-dp-size",
    "--decode-context-parallel-size": "--dcp-size",
    "--model": "--model-path",
    "--cuda-graph-bs": "--cuda-graph-bs-decode",
}
_ON = {"disable-radix-cache", "enable-mixed-chunk", "enable-priority-scheduling", "disable-overlap-schedule"}
_ON |= {"disable-custom-all-reduce"}
_MORE = ("enable-eplb", "enable-dp-attention", "disable-cuda-graph", "enable-hierarchical-cache")
_HARMLESS = ("trust-remote-code", "enable-metrics", "skip-server-warmup", "log-requests", "show-time-cost")
SWITCHES = frozenset(f"--{name}" for name in (*_ON, *_MORE, *_HARMLESS))
WITHOUT_EFFECT = frozenset(
    [f"--{name}" for name in _HARMLESS]
    + [
        *("--port", "--host", "--api-key", "--served-model-name", "--tokenizer-path", "--chat-template"),
        *("--tool-call-parser", "--reasoning-parser", "--random-seed", "--log-level", "--download-dir"),
        *("--load-format", "--nnodes", "--node-rank", "--dist-init-addr", "--base-gpu-id"),
        *("--watchdog-timeout", "--disaggregation-transfer-backend", "--disaggregation-bootstrap-port"),
        *("--disaggregation-ib-device", "--device", "--revision"),
    ]
)


def read_sglang(words: list[str], where: str, told: Remarks) -> Read:
    """One engine's command line."""
    flags = Flags.of(words, where, SWITCHES, SHORT)
    name = flags.text("--model-path")
    if name is None or flags.positional:
        raise UserError(f"{where}: --model-path: missing; found {brief(' '.join(flags.positional)) or 'no model'}")
    model = model_of(name, flags, {**ONLINE, **STORED}, told)
    pool = _pool(flags, where, told)
    engine = _engine(flags, pool.get("dp", 1), told)
    left_over(flags, WITHOUT_EFFECT, told)
    return Read(pool, model, engine)


def _pool(flags: Flags, where: str, told: Remarks) -> dict[str, Any]:
    """Ranks of attention are inside SGLang's tensor-parallel group, in scenarios beside it."""
    tp, dp = flags.whole("--tp-size") or 1, flags.whole("--attn-dp-size") or 1
    plain = flags.whole("--dp-size") or 1
    if flags.switch("enable-dp-attention"):
        dp, plain = max(dp, plain), 1
    if plain > 1:
        told.warnings.append(f"--dp-size {plain}: whole copies of the engine; multiply replicas by it")
    if dp < 1 or tp % dp:
        raise UserError(f"{where}: --attn-dp-size: {dp} does not divide --tp-size {tp}")
    pool: dict[str, Any] = {"tp": tp // dp, "dp": dp, "pp": flags.whole("--pp-size") or 1}
    pool["dcp"] = flags.whole("--dcp-size") or 1
    pool = {key: size for key, size in pool.items() if size != 1}
    backend, mode = flags.text("--moe-a2a-backend"), flags.text("--deepep-mode")
    experts = flags.whole("--ep-size") or 1
    if experts > 1 or backend == "deepep":
        pool["expert_parallel"] = True
        if experts not in (1, tp):
            told.warnings.append(f"--ep-size {experts}: simulated over all {tp} GPUs")
    elif tp == 1 and backend is not None:
        pool.setdefault("expert_parallel", False)
    if backend == "deepep":
        modes = {flag: name for name, flag in DEEPEP.items()}
        pool["all2all"] = modes.get(mode or "auto", "deepep_high_throughput")
        if mode not in modes:
            told.assumed.append("fleet.all2all: deepep_high_throughput in all steps, where SGLang chooses by step")
    elif backend not in (None, "none"):
        told.warnings.append(f"--moe-a2a-backend {brief(backend)}: simulated as allgather_reducescatter")
    redundant = flags.whole("--ep-num-redundant-experts")
    flags.switch("enable-eplb")
    if redundant:
        pool["redundant_experts"] = redundant
    role = flags.text("--disaggregation-mode", "null", "prefill", "decode")
    return pool if role in (None, "null") else {"role": role, **pool}


def _engine(flags: Flags, ranks: int, told: Remarks) -> dict[str, Any]:
    engine: dict[str, Any] = {"scheduler": "sglang"}
    own: dict[str, Any] = {}
    seats, chunk = flags.whole("--max-running-requests"), flags.whole("--chunked-prefill-size")
    if seats is not None:
        engine["max_num_seqs"] = max(1, seats // ranks)
    else:
        told.defaulted.append("engine.max_num_seqs: 256; SGLang takes as many requests as its KV cache holds")
    if chunk == -1:
        engine["enable_chunked_prefill"] = False
    elif chunk is not None:
        engine["max_num_batched_tokens"] = chunk
    else:
        told.defaulted.append("engine.max_num_batched_tokens: 8192; SGLang's own depends on the GPU's memory")
    page = flags.whole("--page-size")
    if page not in (None, 1):
        told.warnings.append(f"--page-size {page}: SGLang is simulated with pages of one token")
    for name, key in (("--context-length", "max_model_len"), ("--cuda-graph-bs-decode", "cudagraph_capture_sizes")):
        value = flags.wholes(name) if key.endswith("sizes") else flags.whole(name)
        if value:
            engine[key] = value
    share = flags.number("--mem-fraction-static")
    if share is not None:
        engine["gpu_memory_utilization"] = share
    cache = flags.text("--kv-cache-dtype")
    if cache is not None and cache.startswith("fp8"):
        engine["kv_cache_dtype"] = "fp8"
    if flags.switch("disable-radix-cache"):
        engine["enable_prefix_caching"] = False
    if flags.switch("enable-priority-scheduling"):
        engine["policy"] = "priority"
    overlap_off = flags.switch("disable-overlap-schedule")
    _graphs(flags, engine)
    _speculation(flags, engine, told)
    if overlap_off and engine.get("speculative", {}).get("method") != "ngram":
        engine["async_scheduling"] = False
    _own(flags, own, told)
    return {**engine, **({"sglang": own} if own else {})}


def _own(flags: Flags, own: dict[str, Any], told: Remarks) -> None:
    policy = flags.text("--schedule-policy")
    if policy in ("lpm", "fcfs"):
        own["schedule_policy"] = policy
    elif policy is not None:
        told.warnings.append(f"--schedule-policy {brief(policy)}: simulated as fcfs")
    tokens = flags.whole("--max-prefill-tokens")
    if tokens is not None:
        own["max_prefill_tokens"] = tokens
    factor = flags.number("--schedule-conservativeness")
    if factor is not None:
        own["schedule_conservativeness"] = factor
    if flags.switch("enable-mixed-chunk"):
        own["enable_mixed_chunk"] = True


def _graphs(flags: Flags, engine: dict[str, Any]) -> None:
    decode, prefill = flags.text("--cuda-graph-backend-decode"), flags.text("--cuda-graph-backend-prefill")
    if flags.switch("disable-cuda-graph") or decode == "disabled":
        engine["enforce_eager"] = True
    elif prefill == "disabled":
        engine["cudagraph"] = "full_decode_only"


def _speculation(flags: Flags, engine: dict[str, Any], told: Remarks) -> None:
    algorithm = flags.text("--speculative-algorithm")
    steps, drafts = flags.whole("--speculative-num-steps"), flags.whole("--speculative-num-draft-tokens")
    wide, model = flags.whole("--speculative-eagle-topk"), flags.text("--speculative-draft-model-path")
    if algorithm is None:
        return
    known = {name: method for method, name in ALGORITHMS.items()} | {"EAGLE3": "eagle"}
    tokens = drafts - 1 if drafts else steps
    if algorithm not in known or not tokens or wide not in (None, 1):
        told.warnings.append(
            f"--speculative-algorithm {brief(algorithm)}: left out; only chains of a given length are read"
        )
        return
    engine["speculative"] = speculative(known[algorithm], tokens, model, told)
