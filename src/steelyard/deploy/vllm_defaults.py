"""Batch limits that ``vllm serve`` chooses itself, by GPU and layout (vLLM 0.33: EngineArgs.get_batch_defaults)."""

from __future__ import annotations

from typing import Any

from steelyard.errors import UserError
from steelyard.hardware import Gpu
from steelyard.model import load_model
from steelyard.scenario.numbers import MOST_STEP_TOKENS

_GIB = 2**30
_BATCHED_RANKS = 256  # tokens a step, if low-latency kernels send them to experts of other ranks


def batch_defaults(gpu: Gpu, model: str, pool: dict[str, Any], engine: dict[str, Any]) -> dict[str, int]:
    """max_num_seqs and max_num_batched_tokens, where a command gives none."""
    tokens, seqs = _by_gpu(gpu)
    low_latency = pool.get("all2all") == "deepep_low_latency" and pool.get("expert_parallel") and pool.get("dp", 1) > 1
    if low_latency:
        tokens = _BATCHED_RANKS
    found = {}
    given = engine.get("max_num_batched_tokens")
    if given is None:
        longest = engine.get("max_model_len") or _longest(model)
        if engine.get("enable_chunked_prefill") is False:
            tokens = max(tokens, longest or 0)
        if longest:
            tokens = min(tokens, engine.get("max_num_seqs", seqs) * longest)
        found["max_num_batched_tokens"] = min(tokens, MOST_STEP_TOKENS)
    if "max_num_seqs" not in engine:
        found["max_num_seqs"] = min(seqs, given or found["max_num_batched_tokens"])
    return found


def _by_gpu(gpu: Gpu) -> tuple[int, int]:
    if gpu.memory_bytes >= 160 * _GIB:
        return 16384, 1024
    if gpu.memory_bytes >= 70 * _GIB and not gpu.name.startswith("a100"):
        return 8192, 1024
    return 2048, 256


def _longest(model: str) -> int | None:
    try:
        return load_model(model).max_position
    except UserError:
        return None
