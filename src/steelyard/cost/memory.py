"""GPU memory: what is left for KV blocks after weights, activations and the runtime.

vLLM finds out by running its largest batch once, before it captures graphs, so those come out of what it leaves unused.
"""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.errors import UserError
from steelyard.hardware import Gpu
from steelyard.model import (
    Gemm,
    GroupedGemm,
    ModelSpec,
    head_operators,
    kv_bytes_per_token,
    operators,
    weight_bytes,
)
from steelyard.scenario import EngineSpec

RUNTIME_BYTES = 230 << 20  # CUDA context and library handles: 0.22 and 0.23 GiB told by vLLM 0.26 on an H200
WORKSPACE_BYTES = 870 << 20  # attention's partial results, matrices' and sampling's workspaces, in the same two engines
LOGITS_BYTES = 4  # per logit at the sampler, beyond that


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes per GPU, and the KV blocks they leave (usable ones: vLLM's figure less its null block)."""

    total: int
    usable: int
    weights: int
    activations: int
    runtime: int
    block_bytes: int
    blocks: int

    @property
    def kv(self) -> int:
        """Bytes of all usable blocks."""
        return self.blocks * self.block_bytes

    def summary(self) -> dict[str, int]:
        """JSON-ready figures."""
        return {
            "total_bytes": self.total,
            "usable_bytes": self.usable,
            "weights_bytes": self.weights,
            "activation_bytes": self.activations,
            "runtime_bytes": self.runtime,
            "kv_bytes": self.kv,
            "block_bytes": self.block_bytes,
            "num_gpu_blocks": self.blocks + 1,
        }


def plan_memory(model: ModelSpec, gpu: Gpu, tp: int, engine: EngineSpec) -> MemoryPlan:
    """How much of each GPU goes where; refuses a model that leaves no room for KV blocks."""
    weights = weight_bytes(model, tp=tp)
    activations = _activation_bytes(model, tp, engine)
    usable = int(gpu.memory_bytes * engine.gpu_memory_utilization)
    block_bytes = engine.block_size * kv_bytes_per_token(model, engine.kv_cache_dtype, tp)
    left = usable - weights - activations - RUNTIME_BYTES
    blocks = engine.num_gpu_blocks if engine.num_gpu_blocks is not None else left // block_bytes
    if left <= 0 or blocks < 2:
        taken = {"weights": weights, "activations": activations, "runtime": RUNTIME_BYTES}
        raise UserError(_no_room(model, gpu, tp, engine, taken))
    if blocks * block_bytes > left:
        raise UserError(
            f"engine.num_gpu_blocks: {blocks} blocks take {_gib(blocks * block_bytes)}, but only {_gib(left)} are left "
            f"on {gpu.full_name} beside {model.name}; at most {left // block_bytes} blocks fit"
        )
    return MemoryPlan(
        total=gpu.memory_bytes,
        usable=usable,
        weights=weights,
        activations=activations,
        runtime=RUNTIME_BYTES,
        block_bytes=block_bytes,
        blocks=blocks - 1,
    )


def _activation_bytes(model: ModelSpec, tp: int, engine: EngineSpec) -> int:
    """What a step of the largest batch needs: half of one layer's widest pair of tensors, the logits, workspaces."""
    rows = engine.max_num_batched_tokens
    widest = 0
    for layer in model.layers:
        for operator in operators(model, layer, tp):
            if isinstance(operator, Gemm):
                widest = max(widest, operator.k + operator.n)
            elif isinstance(operator, GroupedGemm):
                widest = max(widest, operator.top_k * (operator.k + operator.n))
    layer_bytes = rows * (widest + 2 * model.hidden) * model.dtype_bytes
    head = next(op for op in head_operators(model, 1) if isinstance(op, Gemm))
    logits_bytes = min(rows, engine.max_num_seqs) * head.n * LOGITS_BYTES
    return layer_bytes // 2 + logits_bytes + WORKSPACE_BYTES


def _no_room(model: ModelSpec, gpu: Gpu, tp: int, engine: EngineSpec, taken: dict[str, int]) -> str:
    usable = gpu.memory_bytes * engine.gpu_memory_utilization
    parts = ", ".join(f"{name} {_gib(size)}" for name, size in taken.items())
    return (
        f"model {model.name} does not fit on {gpu.full_name} at tp={tp}: per GPU it needs {parts}, and "
        f"gpu_memory_utilization {engine.gpu_memory_utilization} of its memory is {_gib(usable)}, which leaves no room "
        f"for KV blocks; {_advice(model, gpu, tp, usable, taken)}"
    )


def _advice(model: ModelSpec, gpu: Gpu, tp: int, usable: float, taken: dict[str, int]) -> str:
    if taken["activations"] > taken["weights"]:
        return "lower engine.max_num_batched_tokens or engine.max_num_seqs"
    spare = usable - sum(taken.values()) + taken["weights"]
    for wider in range(tp + 1, gpu.gpus_per_node + 1):
        try:
            if weight_bytes(model, tp=wider) < 0.9 * spare:
                return f"fleet.tp={wider} would fit"
        except UserError:
            continue  # the model does not split that way
    return "take a larger GPU or smaller weights"


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"
