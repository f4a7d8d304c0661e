"""A recorder for your own vLLM: it records the requests, and what the engine did when.

Install steelyard beside vLLM and start the server with ``STEELYARD_RECORD=FOLDER`` in its environment; vLLM loads
this module as a plugin in each of its processes. The folder then is a capture: `steelyard validate FOLDER` compares
it with a simulation, `steelyard calibrate FOLDER --out FILE` takes the host's times from it. Files:

- ``meta.json`` and ``config.json``: the engine's effective settings, its host and how experts are chosen, and the
  model's configuration;
- ``served.requests.jsonl``: per request when it was submitted, prompt and output tokens, the second of each output
  token after submission as the caller of the engine saw it, prompt tokens found in the prefix cache;
- ``served.steps.jsonl``: per engine step when it was scheduled, launched and its result processed, and what ran in it.

It needs nothing but the standard library, and loads nothing more before it is asked to record. It is written against
vLLM 0.26 (v1 engine), and costs well under 0.1 ms a step.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

FOLDER_VARIABLE = "STEELYARD_RECORD"
NAME_VARIABLE = "STEELYARD_RECORD_NAME"
ROUTING_VARIABLE = "VLLM_MOE_ROUTING_SIMULATION_STRATEGY"
_FLUSH_SECONDS = 1.0  # lost at most when a process is killed; chosen


def install() -> None:
    """Entry point of the plugin: record if the environment names a folder, else do nothing."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core import EngineCore

    if EngineCore.__init__.__module__ != __name__:
        EngineCore.__init__ = _with_steps(EngineCore.__init__, Path(folder))
        AsyncLLM.generate = _with_answers(AsyncLLM.generate, Path(folder))


class Lines:
    """One JSON object per line, flushed at least every second and when the process ends."""

    def __init__(self, path: Path) -> None:
        from steelyard.files.writing import appending

        self._file = appending(path)
        self._flushed = time.monotonic()
        atexit.register(self._file.close)

    def add(self, row: dict[str, Any]) -> None:
        """Append a row."""
        self._file.write(json.dumps(row, separators=(",", ":")) + "\n")
        now = time.monotonic()
        if now - self._flushed > _FLUSH_SECONDS:
            self._file.flush()
            self._flushed = now


def _file(folder: Path, kind: str) -> Path:
    return folder / f"{os.environ.get(NAME_VARIABLE, 'served')}.{kind}.jsonl"


# -- the engine's process -----------------------------------------------------------------------------------------


def _with_steps(start: Callable[..., None], folder: Path) -> Callable[..., None]:
    """EngineCore's constructor, extended to watch its scheduler and executor."""
    from steelyard.files.writing import write_text

    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        start(self, vllm_config, *args, **kwargs)
        write_text(folder / "meta.json", json.dumps(_settings(vllm_config), indent=1))
        write_text(folder / "config.json", json.dumps(vllm_config.model_config.hf_config.to_dict(), default=str))
        steps = Steps(self.scheduler, Lines(_file(folder, "steps")))
        self.scheduler.schedule = steps.watched_schedule(self.scheduler.schedule)
        self.scheduler.update_from_output = steps.watched_update(self.scheduler.update_from_output)
        executor = self.model_executor
        executor.execute_model = steps.watched_launch(executor.execute_model)
        executor.sample_tokens = steps.watched_launch(executor.sample_tokens)

    return __init__


class Steps:
    """The steps in flight, and the file for finished ones."""

    def __init__(self, scheduler: Any, lines: Lines) -> None:
        self._scheduler = scheduler
        self._lines = lines
        self._open: dict[int, dict[str, Any]] = {}  # by the identity of vLLM's own output object
        self._newest: dict[str, Any] = {}

    def watched_schedule(self, schedule: Callable[..., Any]) -> Callable[..., Any]:
        """The scheduler's decision, recorded with its time."""

        def scheduled(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            output = schedule(*args, **kwargs)
            took = time.monotonic() - began
            if output.total_num_scheduled_tokens:
                self._newest = {"t_schedule": began, "schedule_s": took, **self._batch(output)}
                self._open[id(output)] = self._newest
            return output

        return scheduled

    def watched_launch(self, launch: Callable[..., Any]) -> Callable[..., Any]:
        """The model's launch: when the last call for a step returns, everything has been launched."""

        def launched(*args: Any, **kwargs: Any) -> Any:
            result = launch(*args, **kwargs)
            self._newest["t_launched"] = time.monotonic()
            return result

        return launched

    def watched_update(self, update: Callable[..., Any]) -> Callable[..., Any]:
        """The processing of a step's result, which ends the step."""

        def updated(output: Any, *args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            result = update(output, *args, **kwargs)
            step = self._open.pop(id(output), None)
            if step is not None:
                step["t_result"] = began
                step["t_update"] = time.monotonic()
                self._lines.add(step)
            return result

        return updated

    def _batch(self, output: Any) -> dict[str, Any]:
        scheduler = self._scheduler
        chunks: list[tuple[int, int]] = []
        decodes = keys = longest = 0
        for name, tokens in output.num_scheduled_tokens.items():
            request = scheduler.requests[name]
            before = request.num_computed_tokens - tokens
            if tokens == 1 and before >= request.num_prompt_tokens:
                decodes += 1
                keys += before
                longest = max(longest, before)
            else:
                chunks.append((tokens, before))
        return {
            "n_decode": decodes,
            "kv_decode": keys,
            "kv_decode_max": longest,
            "chunks": chunks,
            "preempted": len(output.preempted_req_ids or ()),
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "free_blocks": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        }


def _settings(config: Any) -> dict[str, Any]:
    """The engine's effective settings, under the names of a capture."""
    import vllm

    scheduler, cache, compilation = config.scheduler_config, config.cache_config, config.compilation_config
    return {
        "vllm": vllm.__version__,
        "fresh": True,  # recorded from its start on
        "model": config.model_config.model,
        "gpu": _gpu(),
        "host": _host(),
        "expert_routing": _expert_routing(config),
        "num_gpu_blocks": cache.num_gpu_blocks,
        "block_size": cache.block_size,
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "prefix_caching": bool(cache.enable_prefix_caching),
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "async_scheduling": bool(scheduler.async_scheduling),
        "cudagraph": compilation.cudagraph_mode.name,
        "capture_sizes": list(compilation.cudagraph_capture_sizes or ()),
        "kw": {
            "max_model_len": config.model_config.max_model_len,
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "quantization": config.model_config.quantization,
            "kv_cache_dtype": cache.cache_dtype,
            "num_gpu_blocks_override": cache.num_gpu_blocks_override,
            "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
            "disable_custom_all_reduce": bool(config.parallel_config.disable_custom_all_reduce),
            "enable_chunked_prefill": bool(scheduler.enable_chunked_prefill),
            "scheduling_policy": scheduler.policy,
        },
    }


def _expert_routing(config: Any) -> str:
    """How experts are chosen: by a strategy of vLLM's simulator, by trained gates, or by random ones, which may choose
    the same few for all tokens."""
    strategy = os.environ.get(ROUTING_VARIABLE, "").lower()
    if strategy:
        return strategy
    return "unknown" if str(config.load_config.load_format).lower().endswith("dummy") else "trained"


def _host() -> dict[str, str]:
    """What tells hosts apart: a digest of the name, and the processor."""
    from steelyard.files.reading import read_text

    lines = read_text(Path("/proc/cpuinfo")).splitlines() if sys.platform == "linux" else []
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"name": hashlib.sha256(platform.node().encode()).hexdigest()[:12], "cpu": cpu}


def _gpu() -> str:
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"


# -- the caller's process -----------------------------------------------------------------------------------------


def _with_answers(generate: Callable[..., AsyncIterator[Any]], folder: Path) -> Callable[..., AsyncIterator[Any]]:
    """AsyncLLM.generate, with the time at which the caller gets each token recorded."""
    opened: list[Lines] = []

    async def recorded(self: Any, prompt: Any, sampling_params: Any, request_id: str, **kwargs: Any) -> Any:
        at = time.monotonic()
        tokens: list[float] = []
        last = None
        async for last in generate(self, prompt, sampling_params, request_id, **kwargs):
            seconds = round(time.monotonic() - at, 6)
            produced = len(last.outputs[0].token_ids)
            total = len(tokens) + produced if sampling_params.output_kind.name == "DELTA" else produced
            tokens.extend([seconds] * (total - len(tokens)))
            yield last
        if last is None or not tokens:
            return
        if not opened:
            opened.append(Lines(_file(folder, "requests")))
        opened[0].add(
            {
                "id": request_id,
                "at": at,
                "prompt": len(last.prompt_token_ids),
                "output": len(tokens),
                "cached": last.num_cached_tokens or 0,
                "tokens": tokens,
            }
        )

    return recorded
