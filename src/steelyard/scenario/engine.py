"""How an engine behaves, in vLLM's own names and with its defaults."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from steelyard.scenario.base import Count, Share, Spec, Whole, mistake
from steelyard.scenario.workload import Accept


class EngineSpec(Spec):
    """Settings of every engine of the fleet."""

    max_num_seqs: Count = Field(default=256, description="Most requests in one step.")
    max_num_batched_tokens: Count = Field(default=8192, description="Most tokens in one step.")
    max_model_len: Count | None = Field(
        default=None, description="Longest prompt plus output; the model's own if not given."
    )
    block_size: Count = Field(default=16, description="Tokens per KV-cache block.")
    gpu_memory_utilization: Annotated[Share, Field(gt=0)] = Field(
        default=0.92,
        description="Share of GPU memory for weights, activations, graphs and KV cache together.",
    )
    num_gpu_blocks: Annotated[Count, Field(ge=2)] | None = Field(
        default=None,
        description="KV-cache blocks instead of the memory model's figure, the null block counted.",
    )
    enable_prefix_caching: bool = Field(default=True, description="Reuse the KV blocks of equal prefixes.")
    enable_chunked_prefill: bool = Field(default=True, description="Split long prompts over several steps.")
    long_prefill_token_threshold: Whole = Field(
        default=0, description="Most prompt tokens of one request in a step; 0 is no such limit."
    )
    policy: Literal["fcfs", "priority"] = Field(default="fcfs", description="Order of the waiting queue.")
    async_scheduling: bool = Field(default=True, description="Schedule a step while the one before it runs.")
    scheduler_reserve_full_isl: bool = Field(
        default=True, description="Admit a request only when its whole prompt fits into the free blocks."
    )
    watermark: Annotated[Share, Field(lt=1)] = Field(
        default=0.0, description="Share of blocks that admission keeps free."
    )
    num_speculative_tokens: Whole = Field(default=0, description="Draft tokens per step; 0 is no speculation.")
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

    @model_validator(mode="after")
    def _coherent(self) -> EngineSpec:
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
        sizes = self.cudagraph_capture_sizes
        if sizes is not None and list(sizes) != sorted(set(sizes)):
            raise mistake("sizes must rise, each given once", "cudagraph_capture_sizes")
        return self
