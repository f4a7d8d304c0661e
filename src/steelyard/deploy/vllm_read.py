"""Flags of ``vllm serve`` as a pool and its engine settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from steelyard.deploy.imported import Remarks
from steelyard.deploy.names import simulated_name
from steelyard.deploy.parts import brief
from steelyard.deploy.vllm_defaults import batch_defaults
from steelyard.deploy.vllm_flags import EAGLE_HEAD, GIB, KV_ROLES, METHODS, ONLINE, STORED
from steelyard.deploy.words import Flags
from steelyard.errors import UserError
from steelyard.hardware import Gpu

SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dcp": "--decode-context-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-q": "--quantization",
    "-sc": "--speculative-config",
    "-cc": "--compilation-config",
    "-O": "--compilation-config",
    "-n": "--nnodes",
    "-r": "--node-rank",
    **{f"--disable-{name}": f"--no-enable-{name}" for name in ("prefix-caching", "chunked-prefill", "expert-parallel")},
    "--disable-eplb": "--no-enable-eplb",
    "--enable-hybrid-kv-cache-manager": "--no-disable-hybrid-kv-cache-manager",
}
_PLAIN = (
    *("enable-prefix-caching", "enable-chunked-prefill", "async-scheduling", "scheduler-reserve-full-isl"),
    *("disable-hybrid-kv-cache-manager", "disable-custom-all-reduce", "enforce-eager"),
)
_SWITCHES = (*_PLAIN, "enable-expert-parallel", "enable-eplb", "trust-remote-code", "headless")
_OTHER_SWITCHES = (
    *("disable-log-stats", "disable-log-requests", "enable-log-requests", "enable-auto-tool-choice"),
    *("disable-uvicorn-access-log", "enable-ssl-refresh", "data-parallel-hybrid-lb", "data-parallel-external-lb"),
    *("skip-tokenizer-init", "enable-sleep-mode", "disable-fastapi-docs", "enable-request-id-headers"),
)
SWITCHES = frozenset(f"--{no}{name}" for name in (*_SWITCHES, *_OTHER_SWITCHES) for no in ("", "no-"))
WITHOUT_EFFECT = frozenset(
    [f"--{no}{name}" for name in (*_OTHER_SWITCHES, "trust-remote-code", "headless") for no in ("", "no-")]
    + [
        *("--port", "--host", "--uds", "--api-key", "--served-model-name", "--seed", "--download-dir"),
        *("--revision", "--code-revision", "--tokenizer", "--tokenizer-mode", "--tokenizer-revision"),
        *("--chat-template", "--chat-template-content-format", "--tool-call-parser", "--tool-parser-plugin"),
        *("--reasoning-parser", "--uvicorn-log-level", "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs"),
        *("--root-path", "--allowed-origins", "--allowed-methods", "--allowed-headers", "--load-format"),
        *("--hf-token", "--generation-config", "--response-role", "--otlp-traces-endpoint", "--nnodes"),
        *("--node-rank", "--master-addr", "--master-port", "--data-parallel-address"),
        *("--data-parallel-rpc-port", "--data-parallel-start-rank", "--data-parallel-rank"),
        *("--data-parallel-size-local", "--data-parallel-backend", "--distributed-executor-backend"),
        *("--api-server-count", "--disable-access-log-for-endpoints", "--shutdown-timeout", "--max-log-len"),
        *("--middleware", "--log-config-file", "--disaggregation-mode", "--kv-events-config"),
        *("--config-format", "--hf-config-path", "--safetensors-load-strategy", "--prefix-caching-hash-algo"),
        *("--show-hidden-metrics-for-version",),
    ]
)
_SIZES = {
    "--tensor-parallel-size": "tp",
    "--pipeline-parallel-size": "pp",
    "--data-parallel-size": "dp",
    "--decode-context-parallel-size": "dcp",
}
_WHOLES = {
    "--max-num-seqs": "max_num_seqs",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--block-size": "block_size",
    "--num-gpu-blocks-override": "num_gpu_blocks",
    "--kv-cache-memory-bytes": "kv_cache_memory_bytes",
    "--long-prefill-token-threshold": "long_prefill_token_threshold",
}
_UNITS = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20}  # of vLLM's human-readable whole numbers
ACCEPTED = 0.7  # of drafts at each position, an assumption


@dataclass(frozen=True)
class Read:
    """A pool, its model and its engine settings, as a scenario writes them."""

    pool: dict[str, Any]
    model: dict[str, Any]
    engine: dict[str, Any]


def read_vllm(words: list[str], where: str, gpu: Gpu, told: Remarks) -> Read:
    """One engine's command line."""
    flags = Flags.of(words, where, SWITCHES, SHORT)
    model = _model(flags, where, told)
    pool = _pool(flags, where, told)
    engine = _engine(flags, told)
    defaults = batch_defaults(gpu, model["config"], pool, engine)
    for key, value in defaults.items():
        engine[key] = value
        told.defaulted.append(f"engine.{key}: {value} (vLLM's rule for `vllm serve` on {gpu.full_name})")
    left_over(flags, WITHOUT_EFFECT, told)
    return Read(pool, model, engine)


def left_over(flags: Flags, without_effect: frozenset[str], told: Remarks) -> None:
    """Say what became of flags that were not read."""
    for name, values in flags.left():
        shown = brief(" ".join([name, *values]))
        if name in without_effect:
            told.ignored.append(shown)
        else:
            told.warnings.append(f"{shown}: steelyard does not know this flag, or what it does to performance")


def _model(flags: Flags, where: str, told: Remarks) -> dict[str, Any]:
    names = [*flags.positional, *filter(None, [flags.text("--model")])]
    if len(names) != 1:
        raise UserError(f"{where}: {len(names)} models in one command; vllm serve takes one: {brief(' '.join(names))}")
    return model_of(names[0], flags, {**ONLINE, **STORED}, told)


def model_of(name: str, flags: Flags, quantizations: dict[str, str], told: Remarks) -> dict[str, Any]:
    """The model with its precision."""
    model: dict[str, Any] = {"config": simulated_name(name)}
    if model["config"] == name and "/" in name:
        told.warnings.append(
            f"model {brief(name)}: not in the catalog (steelyard models); give the path of its config.json"
        )
    dtype = flags.text("--dtype")
    if dtype in ("half", "float16"):
        model["dtype"] = "float16"
    elif dtype == "bfloat16":
        model["dtype"] = "bfloat16"
    elif dtype not in (None, "auto"):
        told.warnings.append(f"--dtype {brief(dtype)}: simulated as in the model's config")
    wanted = flags.text("--quantization")
    if wanted is not None:
        known = {flag: name for name, flag in quantizations.items()} | {"auto_gptq": "int4", "auto_awq": "awq"}
        if wanted in known:
            model["quantization"] = known[wanted]
        else:
            told.warnings.append(f"--quantization {brief(wanted)}: simulated as in the model's config")
    return model


def _pool(flags: Flags, where: str, told: Remarks) -> dict[str, Any]:
    pool: dict[str, Any] = {}
    for name, key in _SIZES.items():
        size = flags.whole(name)
        if size is not None and size != 1:
            pool[key] = size
    if flags.switch("enable-expert-parallel"):
        pool["expert_parallel"] = True
    backend = flags.text("--all2all-backend")
    if backend in ("deepep_high_throughput", "deepep_low_latency"):
        pool["all2all"] = backend
    elif backend not in (None, "allgather_reducescatter"):
        told.warnings.append(f"--all2all-backend {brief(backend)}: simulated as allgather_reducescatter")
    balanced, config = flags.switch("enable-eplb"), flags.document("--eplb-config") or {}
    if balanced and config.get("num_redundant_experts"):
        pool["redundant_experts"] = config["num_redundant_experts"]
    role = _role(flags, told)
    return pool if role is None else {"role": role, **pool}


def _role(flags: Flags, told: Remarks) -> str | None:
    config = flags.document("--kv-transfer-config")
    if config is None:
        return None
    roles = {kv_role: role for role, kv_role in KV_ROLES.items()}
    role = roles.get(str(config.get("kv_role")))
    if config.get("kv_connector") != "NixlConnector" or role is None:
        told.warnings.append(
            f"--kv-transfer-config {brief(config)}: only NixlConnector as producer or consumer is read"
        )
    return role


def _engine(flags: Flags, told: Remarks) -> dict[str, Any]:
    engine: dict[str, Any] = {}
    for name, key in _WHOLES.items():
        value = flags.whole(name)
        if value is not None:
            engine[key] = value
    length = flags.text("--max-model-len")
    if length not in (None, "auto", "-1"):
        engine["max_model_len"] = _readable(str(length), flags.where)
    for name, key in (("--gpu-memory-utilization", "gpu_memory_utilization"), ("--watermark", "watermark")):
        share = flags.number(name)
        if share is not None:
            engine[key] = share
    for name in _PLAIN:
        on = flags.switch(name)
        if on is not None:
            engine[name.replace("-", "_")] = on
    policy = flags.text("--scheduling-policy", "fcfs", "priority")
    if policy is not None:
        engine["policy"] = policy
    cache = flags.text("--kv-cache-dtype")
    if cache is not None:
        engine["kv_cache_dtype"] = "fp8" if cache.startswith("fp8") else "auto"
        if cache != "auto" and not cache.startswith("fp8"):
            told.warnings.append(f"--kv-cache-dtype {brief(cache)}: simulated in the model's own type")
    _graphs(flags, engine, told)
    _speculation(flags, engine, told)
    size = flags.number("--kv-offloading-size")
    if size:
        flags.text("--kv-offloading-backend")
        tier = {"kind": "host", "size": size * GIB, "bandwidth": "50GB", "write": "through"}
        engine["tiers"] = [tier]
        told.assumed.append("engine.tiers: the host's memory is read and written at 50 GB/s; measure yours")
    return engine


def _readable(text: str, where: str) -> int:
    number, unit = text.rstrip("kKmM"), text[-1:]
    if not number.isdecimal() or len(number) > 9 or len(text) - len(number) > 1:
        raise UserError(f"{where}: --max-model-len: {brief(text)!r} is not a whole number")
    return int(number) * _UNITS.get(unit, 1)


def _graphs(flags: Flags, engine: dict[str, Any], told: Remarks) -> None:
    config = flags.document("--compilation-config") or {}
    mode = config.pop("cudagraph_mode", None)
    if mode is not None and not engine.get("enforce_eager"):
        engine["cudagraph"] = str(mode).lower()
    sizes = flags.wholes("--cudagraph-capture-sizes") or config.pop("cudagraph_capture_sizes", None)
    if sizes:
        engine["cudagraph_capture_sizes"] = sorted(set(sizes)) if isinstance(sizes, list) else sizes
    for key in config:
        told.warnings.append(f"--compilation-config {brief(key)}: not simulated")
    if engine.get("enforce_eager") is False:
        del engine["enforce_eager"]


def _speculation(flags: Flags, engine: dict[str, Any], told: Remarks) -> None:
    config = flags.document("--speculative-config")
    if config is None:
        return
    known = {method: name for name, method in METHODS.items()} | {"eagle3": "eagle", "deepseek_mtp": "mtp"}
    given = config.get("method", "draft_model" if "model" in config else "")
    method, tokens = known.get(str(given)), config.get("num_speculative_tokens")
    if method is None or not isinstance(tokens, int):
        told.warnings.append(
            f"--speculative-config {brief(config)}: neither ngram, draft_model, eagle nor mtp; left out"
        )
        return
    engine["speculative"] = speculative(method, tokens, config.get("model"), told)
    if method == "ngram":
        engine.pop("async_scheduling", None)  # which is off with n-grams, whatever the flag says


def speculative(method: str, tokens: int, model: object, told: Remarks) -> dict[str, Any]:
    """Speculation, with an assumption for what a command does not say."""
    found: dict[str, Any] = {"method": method, "num_tokens": tokens}
    if method == "draft":
        found["draft_model"] = simulated_name(str(model))
    elif model is not None and model != EAGLE_HEAD:
        told.ignored.append(f"draft head {brief(model)}")
    found["acceptance"] = {"probabilities": [round(ACCEPTED**k, 3) for k in range(1, tokens + 1)]}
    told.assumed.append(f"engine.speculative.acceptance: {ACCEPTED:g} of drafts at each position; measure yours")
    return found
