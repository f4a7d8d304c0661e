"""The parts of a transformer that matter for the cost of serving it.

Plain frozen records: a model is a few kinds of layer, each with a count. Readers make them
(`config`, `families`); sizes and operators are derived from them (`size`, `operators`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AttentionKind = Literal["gqa", "mla", "mfa"]
Part = Literal["attention", "ffn", "experts", "plain"]
"""Which weights a quantisation may cover; `plain` ones (router, embedding, head) stay in 16 bits."""


@dataclass(frozen=True)
class Attention:
    """One attention block.

    gqa: grouped-query attention (multi-head when kv_heads == heads).
    mla: DeepSeek's latent attention; the cache holds kv_lora_rank + qk_rope_dim values per token.
    mfa: Step3's factorised attention; queries pass through a shared low rank, all heads share one KV head.
    """

    kind: AttentionKind
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    q_lora_rank: int | None = None
    kv_lora_rank: int = 0
    qk_nope_dim: int = 0
    qk_rope_dim: int = 0
    v_head_dim: int = 0
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False


@dataclass(frozen=True)
class DenseFfn:
    """A gated feed-forward block: every family read here has gate, up and down projections."""

    intermediate: int
    bias: bool = False


@dataclass(frozen=True)
class MoeFfn:
    """Routed experts, with `shared_intermediate` the summed width of the experts every token visits."""

    experts: int
    top_k: int
    expert_intermediate: int
    shared_experts: int = 0
    shared_intermediate: int = 0
    shared_gate: bool = False
    expert_bias: bool = False
    router_bias: bool = False


@dataclass(frozen=True)
class Layer:
    """One kind of decoder layer and how many the model has of it."""

    attention: Attention
    ffn: DenseFfn | MoeFfn
    sandwich_norms: bool = False  # Gemma also norms what attention and FFN return
    count: int = 1


@dataclass(frozen=True)
class Quantization:
    """How quantised weights are stored and multiplied.

    weight_bytes is per element with all scales except those per output. compute is the dtype of the tensor cores,
    or None if weights are only stored quantised and multiplied in the model's own dtype.
    """

    method: str
    weight_bytes: float
    compute: str | None
    parts: tuple[Part, ...] = ("attention", "ffn", "experts")
    block: int | None = None  # weights are scaled in blocks of this size, which a TP shard may not cut
    channel_bytes: int = 0  # of scales for each output of a matrix


@dataclass(frozen=True)
class ModelSpec:
    """A whole model: its kinds of layer in order of first appearance, embedding and output head."""

    name: str
    family: str
    hidden: int
    layers: tuple[Layer, ...]
    vocab: int
    tied_embeddings: bool
    max_position: int
    dtype: str  # 'bfloat16' or 'float16': activations, and weights that are not quantised
    quantization: Quantization | None = None
    mtp_layers: int = 0

    @property
    def num_layers(self) -> int:
        return sum(layer.count for layer in self.layers)

    @property
    def dtype_bytes(self) -> int:
        return 2

    @property
    def compute(self) -> str:
        """The model's own dtype under the short name used for hardware peaks."""
        return {"bfloat16": "bf16", "float16": "fp16"}[self.dtype]
