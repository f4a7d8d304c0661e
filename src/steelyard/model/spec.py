"""The parts of a transformer that matter for the cost of serving it.

Plain frozen records: a model is a few kinds of layer, each with a count. Readers make them
(`config`, `families`); sizes and operators are derived from them (`size`, `operators`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AttentionKind = Literal["gqa", "mla", "mfa"]
NormWeights = Literal["head", "all heads", "none"]
"""What the weights of the norms of queries and keys cover: one head's values, those of all heads, or there are none."""
Part = Literal["attention", "ffn", "experts", "plain"]
"""Which weights a quantisation may cover; `plain` ones (router, embedding, head) stay in 16 bits."""


@dataclass(frozen=True)
class Indexer:
    """DeepSeek's lightning indexer: small heads score all cached tokens, and attention reads the ``top_k`` best."""

    heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True)
class Attention:
    """One attention block.

    gqa: grouped-query attention (multi-head when kv_heads == heads).
    mla: DeepSeek's latent attention; the cache holds kv_lora_rank + qk_rope_dim values per token.
    mfa: Step3's factorised attention; queries pass through a shared low rank, all heads share one KV head.

    A token attends to the last ``window`` tokens; if ``chunked``, to those since the last multiple of ``window``.
    If ``gated``, the output is multiplied by a gate of its width, which is projected together with the queries.
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
    chunked: bool = False
    gated: bool = False
    rope: bool = True
    qk_norm_weights: NormWeights = "head"
    indexer: Indexer | None = None


@dataclass(frozen=True)
class Recurrent:
    """A block with a state of fixed size for each request, in place of keys and values.

    gated_delta: Qwen's gated delta net. mamba2: Mamba-2. Each of ``heads`` has a state of ``head_dim`` x ``state_dim``
    values of ``state_bytes`` each. ``groups`` of heads share keys and queries (Mamba-2 calls them B and C). A short
    convolution sees ``conv`` tokens. A prompt is computed in chunks of ``chunk`` tokens.
    """

    kind: Literal["gated_delta", "mamba2"]
    heads: int
    head_dim: int
    state_dim: int
    groups: int
    conv: int
    chunk: int
    state_bytes: int
    conv_bias: bool = False
    bias: bool = False

    @property
    def inner(self) -> int:
        """Width of its values, of its gate and of its output."""
        return self.heads * self.head_dim


@dataclass(frozen=True)
class DenseFfn:
    """A feed-forward block: up and down projections, and a gate as wide as up unless not ``gated``."""

    intermediate: int
    bias: bool = False
    gated: bool = True


@dataclass(frozen=True)
class MoeFfn:
    """Routed experts, with `shared_intermediate` the summed width of the experts every token visits.

    Tokens are projected to ``latent`` values before the routed experts and back after them, if that is not 0.
    """

    experts: int
    top_k: int
    expert_intermediate: int
    shared_experts: int = 0
    shared_intermediate: int = 0
    shared_gate: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    gated: bool = True
    latent: int = 0

    @property
    def matrices(self) -> int:
        """Matrices of an expert."""
        return 3 if self.gated else 2


@dataclass(frozen=True)
class Layer:
    """One kind of decoder layer and how many the model has of it.

    It has attention or a recurrent block, and a feed-forward block, or only one of them.
    """

    attention: Attention | None
    ffn: DenseFfn | MoeFfn | None
    sandwich_norms: bool = False  # Gemma also norms what attention and FFN return
    count: int = 1
    recurrent: Recurrent | None = None

    @property
    def blocks(self) -> int:
        """Blocks with a norm before (or after) each."""
        return (self.attention is not None) + (self.recurrent is not None) + (self.ffn is not None)


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
    """A whole model: its kinds of layer in order of first appearance, embedding and output head.

    ``order`` has the kind of every layer, where it does not follow from the counts (see `layout.stages`).
    """

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
    order: tuple[int, ...] = ()

    @property
    def attentions(self) -> tuple[tuple[Attention, int], ...]:
        """The attention of each kind of layer that has one, and how many layers."""
        return tuple((layer.attention, layer.count) for layer in self.layers if layer.attention is not None)

    @property
    def recurrents(self) -> tuple[tuple[Recurrent, int], ...]:
        """The recurrent block of each kind of layer that has one, and how many layers."""
        return tuple((layer.recurrent, layer.count) for layer in self.layers if layer.recurrent is not None)

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
