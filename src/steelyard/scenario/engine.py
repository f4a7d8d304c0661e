"""Engine settings, with vLLM's names and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from steelyard.scenario.base import Spec, mistake
from steelyard.scenario.numbers import (
    Blocks,
    Factor,
    FewOrZero,
    MemoryBytes,
    PositiveShare,
    Seats,
    ShareBelowOne,
    StepTokens,
    Tokens,
    Whole,
    unit,
)
from steelyard.scenario.runtime import RuntimeSpec, release_of, vllm_defaults
from steelyard.scenario.speculation import SpeculativeSpec
from steelyard.scenario.tiers import TierSpec, check_tiers
from steelyard.scenario.workload import Accept, AcceptSpec

SchedulerName = Literal["vllm", "sglang", "sarathi", "orca", "static", "phase-aware"]
_NAMED: dict[str, dict[str, Any]] = {  # defaults of each scheduler; keys of the scenario override them
    "sarathi": {"max_num_batched_tokens": 512, "watermark": 0.01},
    "orca": {"enable_chunked_prefill": False, "enable_prefix_caching": False},
    "static": {"enable_chunked_prefill": False, "enable_prefix_caching": False},
    "sglang": {"block_size": 1},
}


_BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)  # that vLLM accepts


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes[:-1])) + f" or {sizes[-1]}"


class SglangSpec(Spec):
    """Settings that only SGLang's scheduler has, with its names and defaults."""

    schedule_policy: Literal["lpm", "fcfs"] = Field(
        default="fcfs",
        description="Order of the waiting queue: lpm: longest prefix match first; fcfs: first come, first served.",
    )
    max_prefill_tokens: Tokens = Field(default=16384, description="Most prompt tokens in a prefill batch.")
    enable_mixed_chunk: bool = Field(
        default=False, description="Whether decodes run in the same step as prompt chunks."
    )
    schedule_conservativeness: Factor = Field(
        default=1.0, description="Factor on the KV space reserved for future tokens; higher is more conservative."
    )
    max_new_tokens: Tokens | None = Field(
        default=None, description="Output limit that every request sends, in tokens; its actual output if not given."
    )
    ignore_eos: bool = Field(default=False, description="Whether requests always run to max_new_tokens.")


class EngineSpec(Spec):
    """Settings of every engine of the fleet."""

    scheduler: SchedulerName = Field(
        default="vllm",
        description="Scheduler (docs/schedulers.md); some have settings of their own.",
    )
    runtime: RuntimeSpec | None = Field(
        default=None,
        description="The engine's release, whose defaults count where a setting is not given; vLLM 0.26 if not given. "
        "Host times are those of 0.26 in any case.",
    )
    sglang: SglangSpec = Field(default=SglangSpec(), description="Settings that only SGLang's scheduler has.")
    max_num_seqs: Seats = Field(default=256, description="Most requests in one step.")
    max_num_batched_tokens: StepTokens = Field(default=8192, description="Most tokens in one step.")
    max_model_len: Tokens | None = Field(
        default=None, description="Most tokens of prompt and output together; the model's limit if not given."
    )
    block_size: Tokens = Field(
        default=16, description=f"Tokens per KV-cache block: {_listed(_BLOCK_SIZES)}; 1 with SGLang's scheduler."
    )
    gpu_memory_utilization: PositiveShare = Field(
        default=0.92,
        description="Share of GPU memory for weights, activations, graphs and KV cache together.",
    )
    num_gpu_blocks: Blocks | None = Field(
        default=None,
        description="KV-cache blocks per engine, the null block included; from the memory plan if not given.",
    )
    kv_cache_memory_bytes: MemoryBytes | None = Field(
        default=None,
        description="Bytes of the KV cache per GPU, in place of what gpu_memory_utilization leaves for it.",
    )
    disable_hybrid_kv_cache_manager: bool | None = Field(
        default=None,
        description="Layers with a sliding window keep blocks of all tokens, like layers of full attention. If not "
        "given, only if sliding windows are not simulated with the other settings (docs/fleets.md).",
    )
    enable_prefix_caching: bool = Field(
        default=True,
        description="Reuse the KV blocks of equal prefixes; off for models with recurrent layers (docs/models.md).",
    )
    tiers: tuple[TierSpec, ...] = Field(
        default=(), description="KV-cache tiers below GPU memory, nearest first: host, disk, remote."
    )
    enable_chunked_prefill: bool = Field(default=True, description="Split long prompts over several steps.")
    long_prefill_token_threshold: Whole = Field(
        default=0,
        description="Most prompt tokens of one request in a step; 0: no limit.",
        json_schema_extra=unit("tokens"),
    )
    policy: Literal["fcfs", "priority"] = Field(default="fcfs", description="Order of the waiting queue.")
    async_scheduling: bool = Field(
        default=True,
        description="Schedule a step while the one before runs; always off with n-gram drafts, which need its result.",
    )
    scheduler_reserve_full_isl: bool = Field(
        default=True, description="Admit a request only if its whole prompt fits into the free blocks."
    )
    watermark: ShareBelowOne = Field(default=0.0, description="Share of blocks that admission keeps free.")
    speculative: SpeculativeSpec | None = Field(
        default=None, description="Speculative decoding: the draft method and its settings."
    )
    num_speculative_tokens: FewOrZero = Field(
        default=0,
        description="Short form of speculative: draft tokens per request and step, which take no time to make.",
        json_schema_extra=unit("tokens"),
    )
    acceptance: Accept | None = Field(
        default=None,
        description="Accepted draft tokens per verify step, for workloads without `accept`.",
        json_schema_extra=unit("tokens, or share of 1"),
    )
    cudagraph: Literal["full_and_piecewise", "full_decode_only", "full", "piecewise", "none"] = Field(
        default="full_and_piecewise", description="Which steps run as CUDA graphs."
    )
    cudagraph_capture_sizes: tuple[StepTokens, ...] | None = Field(
        default=None, max_length=10_000, description="Token counts with a captured graph; by vLLM's rule if not given."
    )
    moe_backend: Literal["auto", "deep_gemm", "marlin"] = Field(
        default="auto",
        description="Kernels of routed experts. auto: those of the profile, which are Triton's on Hopper; deep_gemm: "
        "DeepGEMM's for fp8 in blocks, which vLLM 0.11.1 to 0.14 chose on Hopper for fewer than 8 GPUs; marlin: "
        "Marlin's for 4-bit weights, from NVIDIA's tables (steelyard[silicon]).",
    )
    enforce_eager: bool = Field(default=False, description="Run without CUDA graphs.")
    disable_custom_all_reduce: bool = Field(
        default=False,
        description="Tensor-parallel groups add up with NCCL alone, instead of vLLM's own kernels for small tensors.",
    )
    fresh: bool = Field(
        default=False,
        description=(
            "Engines have just been started. Their first steps beyond the captured sizes compile kernels of routed "
            "experts, one or two seconds each, during which all requests wait. Only kernels in the GPU's profile are "
            "simulated. Leave it off for engines that have served for a while."
        ),
    )
    warm_up: tuple[StepTokens, ...] = Field(
        default=(),
        description="Token counts of steps that a fresh engine ran before, such as warm-up prompts.",
    )
    kv_cache_dtype: Literal["auto", "fp8"] = Field(
        default="auto", description="Data type of the KV cache; auto is that of the model."
    )

    @model_validator(mode="before")
    @classmethod
    def _as_the_scheduler_is_known(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        named = _NAMED.get(data["scheduler"], {}) if isinstance(data.get("scheduler"), str) else {}
        runtime = data.get("runtime")
        release = release_of(runtime.get("version")) if isinstance(runtime, Mapping) else None
        return {**(vllm_defaults(release) if release else {}), **named, **data}

    @model_validator(mode="after")
    def _coherent(self) -> EngineSpec:
        if self.scheduler == "sglang" and self.block_size != 1:
            raise mistake("SGLang keeps single tokens; leave it at 1", "block_size")
        if self.block_size not in _BLOCK_SIZES:
            raise mistake(f"engines have blocks of {_listed(_BLOCK_SIZES)} tokens", "block_size")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise mistake(
                f"{self.max_num_batched_tokens} is below max_num_seqs ({self.max_num_seqs}); every request "
                "of a step needs at least one token",
                "max_num_batched_tokens",
            )
        if self.num_gpu_blocks is not None and self.kv_cache_memory_bytes is not None:
            raise mistake("num_gpu_blocks says this; give one of the two", "kv_cache_memory_bytes")
        if self.warm_up and not self.fresh:
            raise mistake("only a fresh engine is warmed up; set fresh: true", "warm_up")
        if self.warm_up and max(self.warm_up) > self.max_num_batched_tokens:
            raise mistake(
                f"no step has {max(self.warm_up)} tokens; at most max_num_batched_tokens "
                f"({self.max_num_batched_tokens})",
                "warm_up",
            )
        self._check_graphs()
        self._check_speculation()
        check_tiers(self.tiers, self.enable_prefix_caching)
        sizes = self.cudagraph_capture_sizes
        if sizes is not None and list(sizes) != sorted(set(sizes)):
            raise mistake("sizes must rise, each given once", "cudagraph_capture_sizes")
        return self

    def _check_graphs(self) -> None:
        """An eager engine has no graphs: its ``cudagraph`` is none unless given, and then it is refused."""
        if not self.enforce_eager:
            return
        if "cudagraph" not in self.model_fields_set:
            object.__setattr__(self, "cudagraph", "none")  # set as a default, so that it does not count as given
        if self.cudagraph != "none":
            raise mistake(f"an eager engine has no graphs ({self.cudagraph}); give one of the two", "enforce_eager")

    def _check_speculation(self) -> None:
        """Refuse speculation that is given twice."""
        if self.speculative is None:
            return
        if self.num_speculative_tokens:
            raise mistake("speculative.num_tokens says this; give one of the two", "num_speculative_tokens")
        if self.acceptance is not None:
            raise mistake("speculative.acceptance says this; give one of the two", "acceptance")

    @property
    def drafts(self) -> int:
        """Draft tokens per request and step; 0 is no speculation."""
        return self.num_speculative_tokens if self.speculative is None else self.speculative.num_tokens

    @property
    def accepted(self) -> AcceptSpec | None:
        """Accepted draft tokens, for workloads without `accept`."""
        return self.acceptance if self.speculative is None else self.speculative.acceptance

    @property
    def schedules_ahead(self) -> bool:
        """Whether a step is scheduled before the result of the last is known; not with n-gram drafts."""
        return self.async_scheduling and (self.speculative is None or self.speculative.method != "ngram")
