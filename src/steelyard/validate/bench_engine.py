"""The engine of an LLMServingSim bench, as it ran: settings from the most direct record of each.

``vllm/meta.json`` has the arguments that were given (``engine_kwargs``) and, in newer benches, what vLLM made of them
(``kv_cache`` and ``resolved_config``, a section for each part of its configuration) and the GPU (``hardware``).
``config.json`` describes that project's simulator, whose memory share is a setting of its own: it is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from steelyard.errors import UserError, quoted
from steelyard.scenario.runtime import release_of, vllm_defaults

Section = Mapping[str, Any]

# Where vLLM resolved a setting: section and key of ``resolved_config``. The argument is the same key in engine_kwargs.
_RESOLVED = {
    "max_num_seqs": ("scheduler_config", "max_num_seqs"),
    "max_num_batched_tokens": ("scheduler_config", "max_num_batched_tokens"),
    "async_scheduling": ("scheduler_config", "async_scheduling"),
    "policy": ("scheduler_config", "policy"),
    "max_model_len": ("model_config", "max_model_len"),
    "enforce_eager": ("model_config", "enforce_eager"),
    "block_size": ("cache_config", "block_size"),
    "gpu_memory_utilization": ("cache_config", "gpu_memory_utilization"),
    "enable_prefix_caching": ("cache_config", "enable_prefix_caching"),
    "kv_cache_dtype": ("cache_config", "cache_dtype"),
    "num_gpu_blocks": ("cache_config", "num_gpu_blocks_override"),
    "kv_cache_memory_bytes": ("cache_config", "kv_cache_memory_bytes"),
    "disable_custom_all_reduce": ("parallel_config", "disable_custom_all_reduce"),
    "tensor_parallel_size": ("parallel_config", "tensor_parallel_size"),
    "pipeline_parallel_size": ("parallel_config", "pipeline_parallel_size"),
    "data_parallel_size": ("parallel_config", "data_parallel_size"),
    "enable_expert_parallel": ("parallel_config", "enable_expert_parallel"),
    "quantization": ("model_config", "quantization"),
    "dtype": ("model_config", "dtype"),
}
_ARGUMENT = {"num_gpu_blocks": "num_gpu_blocks_override"}  # arguments under another name
_MODES = {(0,): "none", (1,): "piecewise", (2,): "full", (2, 0): "full_decode_only", (2, 1): "full_and_piecewise"}
_FIRST = (0, 19)  # vLLM of the first benches


@dataclass(frozen=True)
class BenchEngine:
    """What the engine ran with, by vLLM's names; a setting that is not recorded is missing."""

    where: str
    meta: dict[str, Any]

    def setting(self, name: str) -> Any:
        """A setting as vLLM resolved it, else as it was given; None if neither is recorded or both leave it open."""
        section, key = _RESOLVED[name]
        known = (
            self._section("kv_cache").get(key),
            self._resolved(section).get(key),
            self.arguments.get(_ARGUMENT.get(name, name)),
        )
        return next((value for value in known if value is not None and not _tag(value)), None)

    @property
    def arguments(self) -> Section:
        """The arguments that the engine was given."""
        found = self.meta.get("engine_kwargs")
        if not isinstance(found, dict):
            raise UserError(f"{self.where}: engine_kwargs must be an object (found {quoted(found)})")
        return found

    @property
    def memory_share(self) -> float:
        """The share of GPU memory: the engine's own, else the default of its version."""
        share = self.setting("gpu_memory_utilization")
        if share is None:
            share = self.defaults["gpu_memory_utilization"]
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise UserError(
                f"{self.where}: gpu_memory_utilization must be above 0 and at most 1 (found {quoted(share)})"
            )
        return float(share)

    @property
    def defaults(self) -> dict[str, Any]:
        """What its release of vLLM has where nothing is given."""
        return vllm_defaults(release_of(self.meta.get("vllm_version")) or _FIRST)

    @property
    def blocks(self) -> int | None:
        """The KV blocks that the engine had, if recorded."""
        count = self._section("kv_cache").get("num_gpu_blocks", self._resolved("cache_config").get("num_gpu_blocks"))
        return count if isinstance(count, int) and not isinstance(count, bool) else None

    @property
    def gpu(self) -> str | None:
        """The GPU's name as the driver gave it."""
        name = self._section("hardware").get("device_name")
        return name if isinstance(name, str) else None

    def graphs(self) -> dict[str, Any]:
        """Graph settings of a scenario."""
        if self.setting("enforce_eager"):
            return {"enforce_eager": True}
        compilation = self._resolved("compilation_config")
        found: dict[str, Any] = {}
        mode = _mode(compilation.get("cudagraph_mode"))
        if mode is not None:
            found["cudagraph"] = mode
        sizes = compilation.get("cudagraph_capture_sizes")
        if isinstance(sizes, list) and sizes and all(type(size) is int and size > 0 for size in sizes):
            found["cudagraph_capture_sizes"] = sorted(set(sizes))
        return found

    def _section(self, name: str) -> Section:
        found = self.meta.get(name)
        return found if isinstance(found, dict) else {}

    def _resolved(self, section: str) -> Section:
        found = self._section("resolved_config").get(section)
        return found if isinstance(found, dict) else {}


def _tag(value: Any) -> bool:
    """Whether a value was replaced by its type when it was written, as in ``<list len=83>``."""
    return isinstance(value, str) and value.startswith("<") and value.endswith(">")


def _mode(value: Any) -> str | None:
    """A graph mode from vLLM's enumeration, which is written as its numbers, or from its name."""
    if isinstance(value, str) and not _tag(value):
        return value.rpartition(".")[2].lower()
    numbers = (value,) if type(value) is int else tuple(value) if isinstance(value, list) else ()
    return _MODES.get(numbers)
