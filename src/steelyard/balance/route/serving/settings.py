"""Settings of the routers of a serving fleet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RouterSettings:
    """The defaults suit engines with blocks of 16 tokens."""

    block_size: int = 16  # tokens of a KV block
    cache_blocks: int | None = None  # what a replica's cache holds; None: all that was ever sent
    overlap_weight: float = 1.0  # of a block to compute against a block in use
    temperature: float = 0.0  # 0: always the best
    ttft: float = 1.0  # seconds in which the first token should come
