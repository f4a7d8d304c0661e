"""GPU memory: what is left for KV blocks after weights, activations and the runtime.

vLLM finds out by running its largest batch once. It counts what it uses more than before that, so the buffers of NCCL,
which it opens first, count for nothing. Up to 0.19 graphs use memory that it leaves free, by default a tenth of the
GPU; from 0.20 on an estimate of them counts, and a twelfth is left (vllm/v1/worker/gpu_worker.py and
vllm/config/cache.py of 0.19 to 0.28). The constants are those of 0.26, with its graphs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from steelyard.cost.kv_layout import ALL_TOKENS, kv_layout
from steelyard.cost.speculation import Draft
from steelyard.errors import NoRoom, UserError
from steelyard.hardware import Gpu
from steelyard.model import (
    Gemm,
    GroupedGemm,
    Layout,
    ModelSpec,
    Stage,
    as_layout,
    check_layout,
    check_tp,
    head_operators,
    operators,
    stage_weight_bytes,
    stages,
    weight_bytes,
)
from steelyard.scenario import EngineSpec

RUNTIME_BYTES = 230 << 20  # CUDA context and library handles: vLLM 0.26 reports 0.22 and 0.23 GiB on an H200
WORKSPACE_BYTES = 870 << 20  # partial attention results, workspaces of matrices and sampling, in the same engines
LOGITS_BYTES = 4  # per logit at the sampler, in float32


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
    draft: int = 0  # weights of the draft model; its keys and values are in the blocks
    windows: tuple[int | None, ...] = ALL_TOKENS  # of the KV-cache groups
    chunked: bool = False  # whether these are chunks
    block_size: int | None = None  # tokens of a block, if not those of the settings
    states: int = 0  # blocks of recurrent state for each request

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
            **({"draft_bytes": self.draft} if self.draft else {}),
            **({"kv_groups": len(self.windows) + self.states} if self.windows != ALL_TOKENS or self.states else {}),
            **({"state_blocks_per_request": self.states} if self.states else {}),
            **({"block_tokens": self.block_size} if self.block_size is not None else {}),
        }


def plan_memory(
    model: ModelSpec, gpu: Gpu, tp: int | Layout, engine: EngineSpec, draft: Draft | None = None, role: str = "serve"
) -> MemoryPlan:
    """The memory of each GPU of a pool; refuses a model that leaves no room for KV blocks.

    All stages of a pipeline have the same number of blocks, so the stage with the least room decides. The draft model
    is on the last stage, and its layers have their part in every block.
    """
    if isinstance(tp, int):
        check_tp(model, tp)
    else:
        check_layout(model, tp)
    layout = as_layout(tp)
    plans = (
        _plan_stage(model, stage, gpu, layout, engine, draft if stage.last else None, role)
        for stage in stages(model, layout)
    )
    return min(plans, key=lambda plan: plan.blocks)


def _plan_stage(
    model: ModelSpec, stage: Stage, gpu: Gpu, layout: Layout, engine: EngineSpec, draft: Draft | None, role: str
) -> MemoryPlan:
    weights = stage_weight_bytes(stage, layout)
    drafting = 0 if draft is None else draft.weight_bytes(layout)
    activations = _activation_bytes(stage, layout, engine)
    usable = int(gpu.memory_bytes * engine.gpu_memory_utilization)
    kept = kv_layout(model, stage, layout, engine, role, draft)
    block_bytes = kept.block_bytes
    if draft is not None:
        block_bytes += engine.block_size * draft.kv_bytes_per_token(engine.kv_cache_dtype, layout)
    left = usable - weights - drafting - activations - RUNTIME_BYTES
    if engine.kv_cache_memory_bytes is not None:  # which vLLM takes whatever the share of the GPU is
        left += gpu.memory_bytes - usable
    blocks = _wanted_blocks(engine, block_bytes)
    blocks = left // block_bytes if blocks is None else blocks
    if left <= 0 or blocks < 2:
        taken = {"weights": weights, "activations": activations, "runtime": RUNTIME_BYTES}
        if drafting:
            taken["draft"] = drafting
        raise NoRoom(_no_room(model, gpu, layout, engine, taken))
    if blocks * block_bytes > left:
        key = "num_gpu_blocks" if engine.num_gpu_blocks is not None else "kv_cache_memory_bytes"
        raise UserError(
            f"engine.{key}: {blocks} blocks take {_gib(blocks * block_bytes)}, but only {_gib(left)} are left "
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
        draft=drafting,
        windows=kept.windows,
        chunked=kept.chunked,
        block_size=kept.block_size,
        states=kept.states,
    )


def _wanted_blocks(engine: EngineSpec, block_bytes: int) -> int | None:
    """The blocks that a user asks for, as a number or by their bytes; None if as many as fit."""
    if engine.kv_cache_memory_bytes is None:
        return engine.num_gpu_blocks
    blocks = engine.kv_cache_memory_bytes // block_bytes
    if blocks < 2:
        raise UserError(
            f"engine.kv_cache_memory_bytes: {engine.kv_cache_memory_bytes} bytes are less than two blocks; a block has "
            f"{block_bytes}"
        )
    return blocks


def _activation_bytes(stage: Stage, layout: Layout, engine: EngineSpec) -> int:
    """Memory of a step with the largest batch: half of one layer's widest pair of tensors, the logits, workspaces.

    Tokens gathered from all data-parallel ranks need room for every choice, wherever its expert is.
    """
    model, rows = stage.model, engine.max_num_batched_tokens
    gathers = layout.dp > 1 and layout.all2all == "allgather_reducescatter"
    widest = 0.0
    for layer in model.layers:
        for operator in operators(model, layer, layout):
            if isinstance(operator, Gemm):
                widest = max(widest, operator.k + operator.n)
            elif isinstance(operator, GroupedGemm):
                slots = layout.dp * (operator.top_k if gathers or layout.dp == 1 else operator.choices)
                widest = max(widest, slots * (operator.k + operator.n))
    layer_bytes = int(rows * (widest + 2 * model.hidden) * model.dtype_bytes)
    logits_bytes = 0
    if stage.last:
        head = next(op for op in head_operators(model, 1) if isinstance(op, Gemm))
        logits_bytes = min(rows, engine.max_num_seqs) * head.n * LOGITS_BYTES
    return layer_bytes // 2 + logits_bytes + WORKSPACE_BYTES


def _no_room(model: ModelSpec, gpu: Gpu, layout: Layout, engine: EngineSpec, taken: dict[str, int]) -> str:
    usable = gpu.memory_bytes * engine.gpu_memory_utilization
    parts = ", ".join(f"{name} {_gib(size)}" for name, size in taken.items())
    return (
        f"model {model.name} does not fit on {gpu.full_name} at {layout}: per GPU it needs {parts}, and "
        f"gpu_memory_utilization {engine.gpu_memory_utilization} of its memory is {_gib(usable)}, which leaves no room "
        f"for KV blocks; {_advice(model, gpu, layout, usable, taken)}"
    )


def _advice(model: ModelSpec, gpu: Gpu, layout: Layout, usable: float, taken: dict[str, int]) -> str:
    if taken["activations"] > taken["weights"]:
        return "lower engine.max_num_batched_tokens or engine.max_num_seqs"
    spare = usable - sum(taken.values()) + taken["weights"]
    for wider in range(layout.tp + 1, gpu.gpus_per_node // (layout.pp * layout.dp) + 1):
        try:
            if weight_bytes(model, tp=replace(layout, tp=wider)) < 0.9 * spare:
                return f"fleet.tp={wider} would fit"
        except UserError:
            continue  # the model does not split that way
    return "take a larger GPU or smaller weights"


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"
