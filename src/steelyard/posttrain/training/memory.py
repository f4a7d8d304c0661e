"""GPU memory of a training job: weights, gradients, optimiser states, activations and logits of the fullest GPU.

What a layer keeps for its backward pass follows from its operators: inputs of matrices and norms, inputs and outputs of
attention (not its scores: FlashAttention is assumed). Between blocks, tensor-parallel ranks keep a part of the tokens
each, as with Megatron's sequence parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steelyard.hardware import Gpu
from steelyard.model import AttentionOperator, Elementwise, Gemm, GroupedGemm, Layer, ModelSpec, Routing, Stage
from steelyard.model.weights import layer_matrices, lm_head, vector_elements
from steelyard.posttrain.training.kernels import ON_TOKEN_PARTS, layer_operators
from steelyard.posttrain.training.layout import FSDP, TrainLayout
from steelyard.posttrain.training.settings import TrainSettings

WEIGHT_BYTES = 2
MASTER_BYTES = 4  # weights in 32 bits, which updates are applied to
MOMENT_BYTES = 8  # Adam's two, 32 bits each
LOGIT_BYTES = 2 + 4 + 2  # as multiplied, in 32 bits (turned into gradients in place), gradients in 16 bits
RUNTIME_BYTES = 2 << 30  # CUDA context, NCCL's buffers for several groups, workspaces
USABLE = 0.94  # share of a GPU's memory: the rest is lost to fragmentation
_FLOAT32 = 4


@dataclass(frozen=True)
class Weights:
    """Weights of one GPU, by the ranks that have the same ones."""

    dense: int
    experts: int

    def sharded(self, layout: TrainLayout) -> float:
        """The weights of its shard, if ranks with the same weights keep a shard each."""
        return self.dense / layout.shards + self.experts / layout.expert_shards

    def kept(self, layout: TrainLayout) -> tuple[float, float]:
        """Bytes of weights, and of optimiser states, that it keeps. With FSDP it has master weights only, which are
        cast to 16 bits when gathered."""
        sharded = self.sharded(layout)
        if layout.zero >= FSDP:
            return MASTER_BYTES * sharded, MOMENT_BYTES * sharded
        whole = float(self.total)
        return WEIGHT_BYTES * whole, (MASTER_BYTES + MOMENT_BYTES) * (sharded if layout.zero else whole)

    @property
    def total(self) -> int:
        return self.dense + self.experts


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes of the fullest GPU by purpose, and its capacity."""

    weights: float
    gradients: float
    optimiser: float
    activations: float
    logits: float
    gathered: float  # whole layers that FSDP has gathered at a time
    other_models: float  # reference policy and reward model
    runtime: float
    usable: float

    @property
    def states(self) -> float:
        """Bytes that ZeRO shards."""
        return self.weights + self.gradients + self.optimiser

    @property
    def total(self) -> float:
        return sum(self.by_kind().values())

    @property
    def spare(self) -> float:
        """Bytes that are free; negative if some are missing."""
        return self.usable - self.total

    @property
    def fits(self) -> bool:
        return self.spare >= 0

    def by_kind(self) -> dict[str, float]:
        """Bytes of each kind."""
        return {kind: size for kind, size in vars(self).items() if kind != "usable"}


@dataclass(frozen=True)
class Footprint:
    """What one GPU of a stage holds, whatever the number of ranks and the tokens of a micro-batch."""

    weights: Weights
    gathered: float  # bytes of whole layers, with FSDP
    activations: float  # bytes of a token
    logits: int  # bytes of a token that has logits


def training_memory(model: ModelSpec, gpu: Gpu, layout: TrainLayout, settings: TrainSettings) -> TrainingMemory:
    """Memory of the stage that needs most of it, with micro-batches as large as the layout allows."""
    return fullest(footprints(model, layout), gpu, layout, settings)


def footprints(model: ModelSpec, layout: TrainLayout) -> tuple[Footprint, ...]:
    """What GPUs of each stage hold."""
    return tuple(
        Footprint(
            stage_weights(stage, layout),
            _gathered(stage, layout),
            _activations(model, stage, layout, in_flight=layout.pp - index),
            lm_head(stage.model, layout.tp).n * LOGIT_BYTES if stage.last else 0,
        )
        for index, stage in enumerate(layout.stages(model))
    )


def fullest(stages: Sequence[Footprint], gpu: Gpu, layout: TrainLayout, settings: TrainSettings) -> TrainingMemory:
    """Memory of the stage that needs most of it."""
    return max((_stage_memory(stage, gpu, layout, settings) for stage in stages), key=lambda each: each.total)


def memory_refusal(model: ModelSpec, gpu: Gpu, layout: TrainLayout, memory: TrainingMemory) -> str | None:
    """Why a job does not fit, largest parts first; None if it does."""
    if memory.fits:
        return None
    largest = sorted(memory.by_kind().items(), key=lambda kind: -kind[1])[:3]
    said = ", ".join(f"{name} {size / 2**30:.1f} GiB" for name, size in largest)
    return (
        f"{model.name} at {layout} lacks {-memory.spare / 2**30:.1f} GiB on each {gpu.full_name}: it needs "
        f"{memory.total / 2**30:.1f} of {memory.usable / 2**30:.1f} GiB ({said})"
    )


def _stage_memory(stage: Footprint, gpu: Gpu, layout: TrainLayout, settings: TrainSettings) -> TrainingMemory:
    held = stage.weights
    whole, sharded = float(held.total), held.sharded(layout)
    weights, optimiser = held.kept(layout)
    copy = WEIGHT_BYTES * (sharded if layout.zero >= FSDP else whole)
    others = (settings.reference == "resident") + settings.reward
    rows = layout.micro_batch_tokens
    return TrainingMemory(
        weights=settings.trained * weights,
        gradients=settings.trained * settings.gradient_bytes * (sharded if layout.zero >= 2 else whole),
        optimiser=settings.trained * optimiser,
        activations=rows * stage.activations,
        logits=float(min(rows, settings.loss_chunk or rows) * stage.logits),
        gathered=stage.gathered if layout.zero >= FSDP else 0.0,
        other_models=others * copy,
        runtime=float(RUNTIME_BYTES),
        usable=USABLE * gpu.memory_bytes,
    )


def stage_weights(stage: Stage, layout: TrainLayout) -> Weights:
    """Weights of each GPU of a stage."""
    model, served = stage.model, layout.as_served
    tables = 1 if model.tied_embeddings and stage.first and stage.last else stage.first + stage.last
    dense = tables * lm_head(model, layout.tp).elements + (model.hidden if stage.last else 0)
    experts = 0
    for layer in model.layers:
        own = _layer_weights(model, layer, layout)
        dense += layer.count * (own.dense + vector_elements(model, layer, served))
        experts += layer.count * own.experts
    return Weights(dense, experts)


def _layer_weights(model: ModelSpec, layer: Layer, layout: TrainLayout) -> Weights:
    matrices = layer_matrices(model, layer, layout.as_served)
    experts = sum(matrix.elements for matrix in matrices if matrix.part == "experts")
    return Weights(sum(matrix.elements for matrix in matrices) - experts, experts)


def _gathered(stage: Stage, layout: TrainLayout) -> float:
    """The current layer, the next one, and the embedding tables, which stay gathered."""
    model = stage.model
    largest = max(_layer_weights(model, layer, layout).total for layer in model.layers)
    tables = (1 if model.tied_embeddings else 2) * lm_head(model, layout.tp).elements
    return float(WEIGHT_BYTES * (2 * largest + tables))


def _activations(model: ModelSpec, stage: Stage, layout: TrainLayout, in_flight: int) -> float:
    """Bytes per token of one GPU: what all micro-batches in flight keep, and the current layer."""
    between = model.hidden * model.dtype_bytes / layout.tp
    kept = working = 0.0
    for layer in stage.model.layers:
        heavy, light = saved_bytes(model, layer, layout)
        if layout.recompute == "full":
            kept += layer.count * between
            working = max(working, heavy + light)
        elif layout.recompute == "selective":
            kept += layer.count * heavy
            working = max(working, light)
        else:
            kept += layer.count * (heavy + light)
    return in_flight * (kept + between * (stage.first + stage.last)) + working


def saved_bytes(model: ModelSpec, layer: Layer, layout: TrainLayout) -> tuple[float, float]:
    """Bytes per token that one layer keeps for its backward pass, and of these the results of norms and activations,
    which selective recomputation does not keep."""
    size, pooled = model.dtype_bytes, layout.as_served.dp
    between = model.hidden * size / layout.tp
    heavy = light = 0.0
    for op in layer_operators(model, layer, layout, Routing()):
        if isinstance(op, AttentionOperator):
            seen = op.prefill
            queries, keys = seen.heads * seen.qk_dim, seen.kv_heads * (seen.qk_dim + seen.v_dim)
            heavy += size * (queries + keys) + _FLOAT32 * seen.heads
        elif isinstance(op, GroupedGemm):
            heavy += pooled * op.choices * size * (op.k if op.name == "experts_gate_up" else op.n)
        elif isinstance(op, Gemm) and op.name in ("o_proj", "q_b_proj", "kv_b_proj"):
            heavy += op.k * size
        elif isinstance(op, Elementwise):
            kept, recomputed = _kept_around(op, between, pooled)
            heavy, light = heavy + kept, light + recomputed
    return heavy, light


def _kept_around(op: Elementwise, between: float, pooled: int) -> tuple[float, float]:
    """What is kept of an element-wise operator's input, and of its result."""
    if op.name in ON_TOKEN_PARTS:
        return between, between
    if op.name in ("act", "shared_act"):
        return op.bytes * 2 / 3, op.bytes / 3
    if op.name == "experts_act":
        return pooled * op.bytes * 2 / 3, pooled * op.bytes / 3
    if op.name in ("qk_norm", "latent_norm"):
        return op.bytes / 2, 0.0
    return 0.0, 0.0
