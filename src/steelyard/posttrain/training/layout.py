"""The layout of a training job over its GPUs, in Megatron's terms, and which layouts cannot work.

Ranks are numbered tensor-parallel first, then context-parallel, then data-parallel, pipeline stages last. Experts are
divided whole among ``ep`` neighbouring ranks of a stage; with ``ep=1`` they are sliced like dense layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from steelyard.errors import UserError
from steelyard.hardware import Topology
from steelyard.model import Layout, ModelSpec, MoeFfn, Stage, check_layout, stages

Recompute = Literal["none", "selective", "full"]
Context = Literal["ring", "ulysses"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
FSDP = 3  # the ZeRO stage of PyTorch's fully sharded data parallelism


@dataclass(frozen=True)
class TrainLayout:
    """Degrees of parallelism, what data-parallel ranks shard, and the tokens of one GPU's micro-batch.

    ``zero`` 0 keeps everything on every rank; 1 shards optimiser states, 2 gradients too, 3 (FSDP) weights too.
    ``recompute`` full runs a layer's forward pass again in its backward pass; selective only attention, norms and
    activations. ``context`` is how sequences are split over ``cp`` ranks: keys and values go round a ring (Megatron),
    or ranks swap tokens for heads before attention and back after it (Ulysses, as verl does with FSDP).
    ``uneven_stages`` allows stages of different numbers of layers.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    cp: int = 1
    zero: int = 1
    recompute: Recompute = "none"
    micro_batch_tokens: int = 8192
    context: Context = "ring"
    uneven_stages: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def ranks_sharing_experts(self) -> int:
        """Data-parallel ranks that the experts are split over. Each of them has all dense layers."""
        sharing = -(-self.ep // (self.tp * self.cp))
        return self.dp if self.dp % sharing else sharing

    @property
    def replica_gpus(self) -> int:
        """GPUs that hold one copy of the model: the unit by which a job grows or shrinks. With FSDP, all GPUs."""
        return self.gpus if self.zero >= FSDP else self.tp * self.cp * self.pp * self.ranks_sharing_experts

    @property
    def replicas(self) -> int:
        """Copies of the model."""
        return self.gpus // self.replica_gpus

    @property
    def shards(self) -> int:
        """Ranks with the same dense weights, over which states are sharded."""
        return self.dp * self.cp

    @property
    def expert_shards(self) -> int:
        """Ranks with the same experts."""
        return self.shards if self.ep == 1 else self.tp * self.shards // self.ep

    @property
    def budget(self) -> int:
        """Tokens of one micro-batch, over all context-parallel ranks."""
        return self.micro_batch_tokens * self.cp

    @property
    def ranks_in_step(self) -> int:
        """Data-parallel ranks that synchronise in every layer, so that each micro-batch waits for the slowest: all with
        ZeRO-2 and 3, otherwise those that split experts."""
        return self.dp if self.zero >= 2 else self.ranks_sharing_experts

    @property
    def as_served(self) -> Layout:
        """The engine layout whose operators have the shapes that one GPU sees here."""
        if self.ep == 1:
            return Layout(tp=self.tp)
        return Layout(tp=self.tp, dp=self.ep // self.tp, expert_parallel=True, all2all="deepep_high_throughput")

    def stages(self, model: ModelSpec) -> tuple[Stage, ...]:
        """The pipeline's stages, in order."""
        return stages(model, Layout(pp=self.pp))

    def __str__(self) -> str:
        degrees = {"tp": self.tp, "pp": self.pp, "dp": self.dp, "ep": self.ep, "cp": self.cp}
        said = [f"{name}={degree}" for name, degree in degrees.items() if degree != 1] or ["dp=1"]
        return " ".join([*said, f"zero={self.zero}", f"recompute={self.recompute}"])


def layout_refusal(model: ModelSpec, topology: Topology, layout: TrainLayout) -> str | None:
    """Why a model cannot be laid out like this, memory aside; None if it can."""
    return next(_problems(model, topology, layout), None)


def _problems(model: ModelSpec, topology: Topology, layout: TrainLayout) -> Iterator[str]:
    degrees = {"tp": layout.tp, "pp": layout.pp, "dp": layout.dp, "ep": layout.ep, "cp": layout.cp}
    for name, degree in degrees.items():
        if degree < 1:
            yield f"{name}={degree}: it must be at least 1"
            return
    if layout.zero not in (0, 1, 2, 3):
        yield f"zero={layout.zero}: choose 0, 1, 2 or 3 (3 is FSDP)"
    if layout.recompute not in RECOMPUTE:
        yield f"recompute={layout.recompute!r}: choose one of {', '.join(RECOMPUTE)}"
    if layout.micro_batch_tokens < 1:
        yield f"micro_batch_tokens={layout.micro_batch_tokens}: it must be at least 1"
    if layout.tp > topology.gpus_per_node:
        yield f"tp={layout.tp} leaves the node, which has {topology.gpus_per_node} GPUs"
    if layout.zero >= 2 and layout.pp > 1:
        yield f"zero={layout.zero} with pp={layout.pp}: gradients would be shared out in every micro-batch; use zero=1"
    if layout.pp > model.num_layers:
        yield f"pp={layout.pp}: {model.name} has only {model.num_layers} layers"
    elif model.num_layers % layout.pp and not layout.uneven_stages:
        yield f"pp={layout.pp} does not divide the {model.num_layers} layers of {model.name}; see uneven_stages"
    if any(layer.attention is None or layer.ffn is None for layer in model.layers):
        yield f"{model.name} has layers without attention or feed-forward block, whose training is not simulated"
        return
    if any(attention.indexer is not None or attention.chunked for attention, _ in model.attentions):
        yield f"{model.name} has sparse or chunked attention, whose training is not simulated"
        return
    heads = min(attention.heads for attention, _ in model.attentions) // layout.tp
    if layout.context not in ("ring", "ulysses"):
        yield f"context={layout.context!r}: choose ring or ulysses"
    elif layout.context == "ulysses" and heads % layout.cp:
        yield f"cp={layout.cp}: ulysses cannot deal out the {heads} attention heads of a rank"
    yield from _expert_problems(model, layout)
    try:
        check_layout(model, layout.as_served)
    except UserError as error:
        yield str(error)


def _expert_problems(model: ModelSpec, layout: TrainLayout) -> Iterator[str]:
    counts = [layer.ffn.experts for layer in model.layers if isinstance(layer.ffn, MoeFfn)]
    if layout.ep == 1:
        return
    if not counts:
        yield f"ep={layout.ep}: {model.name} has no routed experts"
        return
    if layout.ep % layout.tp:
        yield f"ep={layout.ep} must be 1 or a multiple of tp={layout.tp}"
    if (layout.tp * layout.shards) % layout.ep:
        yield f"ep={layout.ep} does not divide the {layout.tp * layout.shards} ranks of a stage (tp x cp x dp)"
    if any(count % layout.ep for count in counts):
        yield f"ep={layout.ep} does not divide the {min(counts)} experts of {model.name}"
