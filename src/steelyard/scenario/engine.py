"""How an engine behaves, in vLLM's own names and with its defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from steelyard.scenario.base import Count, Share, Spec, Whole, mistake
from steelyard.scenario.speculation import SpeculativeSpec
from steelyard.scenario.tiers import TierSpec, check_tiers
from steelyard.scenario.workload import Accept, AcceptSpec

SchedulerName = Literal["vllm", "sglang", "sarathi", "orca", "static", "phase-aware"]
_NAMED: dict[str, dict[str, Any]] = {  # what each is known by; what the scenario says itself comes first
    "sarathi": {"max_num_batched_tokens": 512, "watermark": 0.01},
    "orca": {"enable_chunked_prefill": False, "enable_prefix_caching": False},
    "static": {"enable_chunked_prefill": False, "enable_prefix_caching": False},
    "sglang": {"block_size": 1},
}


_BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)  # that vLLM takes


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes[:-1])) + f" or {sizes[-1]}"


class SglangSpec(Spec):
    """What only SGLang's scheduler has, in its names and with its defaults."""

    schedule_policy: Literal["lpm", "fcfs"] = Field(
        default="fcfs", description="Order of the waiting queue: longest match in the cache, or first come."
    )
    max_prefill_tokens: Count = Field(default=16384, description="Most prompt tokens of a prefill batch.")
    enable_mixed_chunk: bool = Field(default=False, description="Decodes run beside chunks of prompts.")
    schedule_conservativeness: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="How much room is kept for tokens still to come; more is more careful."
    )
    max_new_tokens: Count | None = Field(
        default=None, description="What every request says it may ask for; its output if not given."
    )
    ignore_eos: bool = Field(default=False, description="Requests are known to run to their last token.")


class EngineSpec(Spec):
    """Settings of every engine of the fleet."""

    scheduler: SchedulerName = Field(
        default="vllm",
        description="Who decides what a step runs (docs/schedulers.md); some bring settings of their own.",
    )
    sglang: SglangSpec = Field(default=SglangSpec(), description="Settings that only SGLang's scheduler has.")
    max_num_seqs: Count = Field(default=256, description="Most requests in one step.")
    max_num_batched_tokens: Count = Field(default=8192, description="Most tokens in one step.")
    max_model_len: Count | None = Field(
        default=None, description="Longest prompt plus output; the model's own if not given."
    )
    block_size: Count = Field(
        default=16, description=f"Tokens per KV-cache block: {_listed(_BLOCK_SIZES)}; 1 with SGLang's scheduler."
    )
    gpu_memory_utilization: Annotated[Share, Field(gt=0)] = Field(
        default=0.92,
        description="Share of GPU memory for weights, activations, graphs and KV cache together.",
    )
    num_gpu_blocks: Annotated[Count, Field(ge=2)] | None = Field(
        default=None,
        description="KV-cache blocks instead of the memory model's figure, the null block counted.",
    )
    disable_hybrid_kv_cache_manager: bool | None = Field(
        default=None,
        description="Layers with a sliding window keep blocks of all tokens, as those do that see everything. If not "
        "given, only where blocks of windows are not simulated (docs/fleets.md).",
    )
    enable_prefix_caching: bool = Field(default=True, description="Reuse the KV blocks of equal prefixes.")
    tiers: tuple[TierSpec, ...] = Field(
        default=(), description="Memory for KV blocks below the GPU's, nearest first: host, disk, remote."
    )
    enable_chunked_prefill: bool = Field(default=True, description="Split long prompts over several steps.")
    long_prefill_token_threshold: Whole = Field(
        default=0, description="Most prompt tokens of one request in a step; 0 is no such limit."
    )
    policy: Literal["fcfs", "priority"] = Field(default="fcfs", description="Order of the waiting queue.")
    async_scheduling: bool = Field(
        default=True,
        description="Schedule a step while the one before it runs; never with n-gram drafts, which are made of its "
        "result.",
    )
    scheduler_reserve_full_isl: bool = Field(
        default=True, description="Admit a request only when its whole prompt fits into the free blocks."
    )
    watermark: Annotated[Share, Field(lt=1)] = Field(
        default=0.0, description="Share of blocks that admission keeps free."
    )
    speculative: SpeculativeSpec | None = Field(default=None, description="Drafts to verify, and who makes them.")
    num_speculative_tokens: Whole = Field(
        default=0, description="Short form of speculative: draft tokens per step that cost nothing to make."
    )
    acceptance: Accept | None = Field(
        default=None,
        description="Accepted draft tokens per verify step, for workloads that say nothing themselves.",
    )
    cudagraph: Literal["full_and_piecewise", "full_decode_only", "full", "piecewise", "none"] = Field(
        default="full_and_piecewise", description="Which steps run as CUDA graphs."
    )
    cudagraph_capture_sizes: tuple[Count, ...] | None = Field(
        default=None, description="Token counts with a captured graph; vLLM's own rule if not given."
    )
    enforce_eager: bool = Field(default=False, description="No CUDA graphs at all.")
    fresh: bool = Field(
        default=False,
        description=(
            "Each engine has just been started for this run. The first steps beyond the captured sizes then compile "
            "kernels of routed experts (a second or two each, for all to wait), as far as the GPU's profile knows "
            "them. Leave it off for the steady state of engines that have served for a while."
        ),
    )
    warm_up: tuple[Count, ...] = Field(
        default=(),
        description="Tokens of steps that a fresh engine has run before, such as prompts sent to warm it up.",
    )
    kv_cache_dtype: Literal["auto", "fp8"] = Field(default="auto", description="Type of cached keys and values.")

    @model_validator(mode="before")
    @classmethod
    def _as_the_scheduler_is_known(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and isinstance(data.get("scheduler"), str):
            return {**_NAMED.get(data["scheduler"], {}), **data}
        return data

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
        """Eager engines have none, so that is what they are said to have where nothing is given."""
        if not self.enforce_eager:
            return
        if "cudagraph" not in self.model_fields_set:
            object.__setattr__(self, "cudagraph", "none")  # a default, so not among the fields that are set
        if self.cudagraph != "none":
            raise mistake(f"an eager engine has no graphs ({self.cudagraph}); give one of the two", "enforce_eager")

    def _check_speculation(self) -> None:
        """It is said once."""
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
        """How many of them are accepted, for workloads that do not say."""
        return self.acceptance if self.speculative is None else self.speculative.acceptance

    @property
    def schedules_ahead(self) -> bool:
        """Whether steps are scheduled before the result of the one before is known; not with drafts made from it."""
        return self.async_scheduling and (self.speculative is None or self.speculative.method != "ngram")
