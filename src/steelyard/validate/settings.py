"""The scenario of a captured run, with nothing that was measured in it."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from steelyard.errors import UserError, quoted
from steelyard.files.paths import absolute
from steelyard.hardware import find_gpu
from steelyard.scenario import CostSpec, Scenario, scenario_from_dict
from steelyard.validate.capture import Capture, CapturedRun

# Names in a scenario, and the corresponding keys of meta.json and arguments of vLLM.
_EFFECTIVE = {
    "block_size": "block_size",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "async_scheduling": "async_scheduling",
    "prefix_caching": "enable_prefix_caching",
    "capture_sizes": "cudagraph_capture_sizes",
    "gpu_memory_utilization": "gpu_memory_utilization",
}
_ARGUMENTS = {
    "max_model_len": "max_model_len",
    "num_gpu_blocks_override": "num_gpu_blocks",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "scheduling_policy": "policy",
    "enforce_eager": "enforce_eager",
    "kv_cache_dtype": "kv_cache_dtype",
    "disable_hybrid_kv_cache_manager": "disable_hybrid_kv_cache_manager",
    "disable_custom_all_reduce": "disable_custom_all_reduce",
}
_MODEL = {"dtype": "dtype", "quantization": "quantization"}
# Arguments that meta.json repeats as effective settings, or that do not affect latencies.
_OF_NO_EFFECT = {
    *("max_num_seqs", "max_num_batched_tokens", "block_size", "gpu_memory_utilization", "enable_prefix_caching"),
    *("async_scheduling", "skip_tokenizer_init", "load_format", "disable_log_stats", "seed", "model", "tokenizer"),
}

_MOST_LITERAL = 10_000  # characters of an argument; a list of all captured sizes has a thousand


def scenario_of(
    capture: Capture,
    run: CapturedRun,
    gpu: str,
    *,
    given_cache: bool = False,
    cost: CostSpec | None = None,
    warm_up: Iterable[int] = (),
) -> Scenario:
    """The scenario of one captured workload: model, engine settings and requests, in order of submission.

    It has no measured figure except, on request, the cached tokens of each prompt. Paths of ``cost`` are relative to
    the current folder. ``warm_up`` are tokens of steps that the engine ran before.
    """
    meta = capture.meta
    arguments = arguments_of(capture)
    engine = {ours: meta[theirs] for theirs, ours in _EFFECTIVE.items() if meta.get(theirs) is not None}
    engine |= {ours: arguments[theirs] for theirs, ours in _ARGUMENTS.items() if arguments.get(theirs) is not None}
    if str(engine.get("kv_cache_dtype", "")).startswith("fp8"):
        engine["kv_cache_dtype"] = "fp8"  # vLLM distinguishes e4m3 and e5m2, which take equally long
    if "cudagraph" in meta:
        engine["cudagraph"] = str(meta["cudagraph"]).rpartition(".")[2].lower()
    engine["fresh"] = capture.fresh
    if capture.fresh:
        engine["warm_up"] = sorted(warm_up)
    model = {ours: arguments[theirs] for theirs, ours in _MODEL.items() if arguments.get(theirs) is not None}
    topology = {} if meta.get("peer_access") is None else {"topology": {"peer_access": meta["peer_access"]}}
    trace = {"file": run.asked.name, "format": "capture", "sent": run.answered.name}
    if given_cache:
        trace["cached"] = run.answered.name
    return scenario_from_dict(
        {
            "name": run.name,
            "model": {"config": "config.json", **model},
            "fleet": {"gpu": gpu, "tp": arguments.get("tensor_parallel_size", 1), **topology},
            "engine": engine,
            "workload": {"trace": trace, "arrivals": {"kind": "trace"}},
            "cost": _absolute(cost or CostSpec()),
        },
        source=str(capture.meta_file),
        base_dir=capture.folder,
    )


def _absolute(cost: CostSpec) -> dict[str, Any]:
    """A cost with absolute paths."""
    given = cost.model_dump()
    files = {key: str(absolute(Path(given[key]))) for key in ("profile", "calibration") if given[key] is not None}
    return given | files


def unsupported_arguments(capture: Capture) -> list[str]:
    """Arguments of the engine that a scenario cannot express, which may explain a difference."""
    known = {*_ARGUMENTS, *_MODEL, *_OF_NO_EFFECT, "tensor_parallel_size"}
    return [f"kw.{name}={value} is not simulated" for name, value in arguments_of(capture).items() if name not in known]


def gpu_of(capture: Capture, wanted: str | None) -> str:
    """The GPU to simulate: the one given, else the capture's own, else the one in its folders' names."""
    if wanted is not None:
        return find_gpu(wanted).name
    if capture.meta.get("gpu") is not None:
        return find_gpu(str(capture.meta["gpu"])).name
    folder = absolute(capture.folder)
    for place in (folder, *folder.parents):
        named = _gpu_leading(place)
        if named is not None:
            return named
    raise UserError(
        f"{capture.meta_file}: says no gpu, and no folder above it is named after one; give --gpu, such as --gpu h200"
    )


def _gpu_leading(folder: Path) -> str | None:
    """The GPU that a folder's name starts with, such as h200 of h200-vllm-0.26."""
    words = folder.name.split("-")
    for count in range(len(words), 0, -1):
        try:
            return find_gpu("-".join(words[:count])).name
        except UserError:
            continue
    return None


def effective_settings(capture: Capture) -> dict[str, Any]:
    """The engine's settings as vLLM resolved them, by the capture's names."""
    return {key: capture.meta.get(key) for key in (*_EFFECTIVE, "cudagraph")}


def arguments_of(capture: Capture) -> dict[str, Any]:
    """The engine's arguments, which captures store as Python literals."""
    given = capture.meta.get("kw") or {}
    if not isinstance(given, dict):
        raise UserError(f"{capture.meta_file}: kw must be an object of engine arguments (found {quoted(given)})")
    return {name: _value(value) for name, value in given.items()}


def _value(written: Any) -> Any:
    """The value of a literal, or the text itself."""
    if not isinstance(written, str):
        return written
    try:
        return ast.literal_eval(written) if len(written) <= _MOST_LITERAL else written
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: nested too deeply for the parser
        return written
