"""GPU memory: what is left for KV blocks after weights, activations and captured graphs."""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.cost.graphs import GraphPlan
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

RUNTIME_BYTES = 640 << 20  # CUDA context, library handles and workspaces
GRAPH_BYTES_PER_KERNEL = 24 << 10  # of a captured graph: nodes and arguments
LOGITS_BYTES = 10  # per logit at the sampler: 16-bit, its 32-bit copy and the softmax of it


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes per GPU, and the KV blocks they leave (usable ones: vLLM's figure less its null block)."""

    total: int
    usable: int
    weights: int
    activations: int
    graphs: int
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
            "graph_bytes": self.graphs,
            "runtime_bytes": self.runtime,
            "kv_bytes": self.kv,
            "block_bytes": self.block_bytes,
            "num_gpu_blocks": self.blocks + 1,
        }


def plan_memory(model: ModelSpec, gpu: Gpu, tp: int, engine: EngineSpec, graphs: GraphPlan) -> MemoryPlan:
    """How much of each GPU goes where; refuses a model that leaves no room for KV blocks."""
    weights = weight_bytes(model, tp=tp)
    activations = _activation_bytes(model, tp, engine)
    captured = _graph_bytes(model, tp, graphs)
    usable = int(gpu.memory_bytes * engine.gpu_memory_utilization)
    block_bytes = engine.block_size * kv_bytes_per_token(model, engine.kv_cache_dtype, tp)
    left = usable - weights - activations - captured - RUNTIME_BYTES
    blocks = engine.num_gpu_blocks if engine.num_gpu_blocks is not None else left // block_bytes
    if left <= 0 or blocks < 2:
        taken = {"weights": weights, "activations": activations, "captured graphs": captured, "runtime": RUNTIME_BYTES}
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
        graphs=captured,
        runtime=RUNTIME_BYTES,
        block_bytes=block_bytes,
        blocks=blocks - 1,
    )


def _activation_bytes(model: ModelSpec, tp: int, engine: EngineSpec) -> int:
    """The most that lives at once in a step of the largest batch: one layer's widest pair of tensors, or the logits."""
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
    return max(layer_bytes, logits_bytes)


def _graph_bytes(model: ModelSpec, tp: int, graphs: GraphPlan) -> int:
    kernels = sum(layer.count * len(operators(model, layer, tp)) for layer in model.layers)
    kinds = int(graphs.full) + int(graphs.pieces)
    return len(graphs.sizes) * kinds * kernels * GRAPH_BYTES_PER_KERNEL


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
