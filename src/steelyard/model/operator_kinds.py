"""What one kernel computes and reads, with the numbers a cost model needs.

All shapes are per GPU. An operator's work is per token of the step, per sequence where only sampled rows take part, or
per token of all data-parallel ranks together (pooled), which is what routed experts see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.model.routing import RankLoad

Floats = NDArray[np.float64]
Per = Literal["token", "sequence", "pooled"]
CollectiveKind = Literal["allreduce", "nccl_allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "send"]


@dataclass(frozen=True)
class Gemm:
    """rows x k times k x n. weight_bytes is per weight; compute names the tensor-core dtype."""

    name: str
    k: int
    n: int
    weight_bytes: float
    compute: str
    per: Per = "token"
    kind: Literal["gemm"] = "gemm"


@dataclass(frozen=True)
class GroupedGemm:
    """One k x n GEMM per expert that any token chose; each token visits top_k of them.

    ``experts`` are those of one GPU, which get ``share`` of all choices on average. ``load`` is the load of the busiest
    GPU, or None if one GPU has all experts and they are chosen evenly. ``elsewhere`` are choices of local tokens whose
    expert is on another GPU. ``gated`` experts have a gate beside their first matrix, and ``n`` counts both.
    """

    name: str
    k: int
    n: int
    experts: int
    top_k: int
    weight_bytes: float
    compute: str
    per: Per = "token"
    share: float = 1.0
    load: RankLoad | None = None
    elsewhere: float = 0.0
    gated: bool = True
    kind: Literal["grouped_gemm"] = "grouped_gemm"

    @property
    def choices(self) -> float:
        """Experts of this GPU that a token visits on average."""
        return self.top_k * self.share

    def visits(self, rows: Floats) -> Floats:
        """Rows of all experts of the busiest GPU, for each number of tokens."""
        return rows * self.top_k if self.load is None else self.load.visits(rows)

    def touched(self, rows: Floats) -> Floats:
        """Experts of the busiest GPU that any token chose: the weights of others are not read."""
        if self.load is None:
            return self.experts * (1.0 - (1.0 - self.top_k / self.experts) ** rows)
        return self.load.touched(rows)


@dataclass(frozen=True)
class AttentionShape:
    """Heads and dims a kernel sees; kv_heads < heads means queries share keys."""

    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int

    @property
    def flops_per_pair(self) -> int:
        """Floating-point operations for one query token against one key token, all heads."""
        return 2 * self.heads * (self.qk_dim + self.v_dim)


@dataclass(frozen=True)
class ContextParallel:
    """Cached tokens are split over ``ranks`` adjacent GPUs, which exchange values of ``value_bytes``."""

    ranks: int
    value_bytes: int


@dataclass(frozen=True)
class AttentionOperator:
    """Attention over the cache.

    mla runs prefill as plain multi-head attention and decode over the latent as if it had one KV
    head; the other kinds run both alike. kv_elements are the values read per cached token at decode.
    With context parallelism a decode has the heads of all its GPUs and the tokens of one.

    Two kinds belong to sparse attention. An ``indexer`` scores every pair of tokens, with keys of ``value_bytes`` a
    value whatever the cache's type, and moves ``pair_bytes`` for each of them (the scores, written and read). Then
    ``sparse`` attention runs over the latent, prompts too, and a query reads only its ``window`` best tokens.
    """

    name: str
    attention: str
    prefill: AttentionShape
    decode: AttentionShape
    kv_elements: int
    window: int | None
    compute: str
    context_parallel: ContextParallel | None = None
    chunked: bool = False  # tokens see those since the last multiple of ``window``
    value_bytes: float | None = None
    pair_bytes: int = 0
    kind: Literal["attention"] = "attention"


@dataclass(frozen=True)
class Recurrence:
    """The update of a state of fixed size for each request, by one token or by the tokens of a prompt.

    ``state_bytes`` are those of a request's state on one GPU, with the tokens that the short convolution has seen.
    ``token_bytes`` are read and written for each token beside it. A prompt is computed in chunks of ``chunk`` tokens.
    """

    name: str
    recurrence: Literal["gated_delta", "mamba2"]
    heads: int
    head_dim: int
    state_dim: int
    groups: int
    chunk: int
    state_bytes: int
    value_bytes: int  # of one value of the state
    token_bytes: int
    compute: str
    kind: Literal["recurrence"] = "recurrence"


@dataclass(frozen=True)
class Elementwise:
    """Work bound by memory: bytes read and written per token (or per sequence)."""

    name: str
    bytes: int
    per: Per = "token"
    kind: Literal["elementwise", "embedding", "sampling", "one_pass_sampling"] = "elementwise"


@dataclass(frozen=True)
class Collective:
    """Communication among ``ranks`` GPUs of an engine: ``first`` and others at multiples of ``stride`` from it.

    ``bytes`` per row are those of the whole tensor that is reduced, gathered or scattered, or of the message of a send.
    In an all-to-all, whose rows are the tokens of one rank, they are those of one copy of a token sent to ``top_k`` of
    all ``experts``, or back; ``mode`` names DeepEP's kernels.
    """

    name: str
    bytes: int
    per: Per = "token"
    kind: CollectiveKind = "allreduce"
    ranks: int = 2
    mode: Literal["high_throughput", "low_latency"] | None = None
    top_k: int = 1
    experts: int = 1
    stride: int = 1
    first: int = 0


Operator = Gemm | GroupedGemm | AttentionOperator | Recurrence | Elementwise | Collective
