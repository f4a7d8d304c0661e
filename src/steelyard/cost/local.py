"""Attention in chunks: a token attends to the tokens since the last multiple of the chunk.

To the kernel, the parts of a prompt in different chunks are prompts of different requests, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steelyard.cost.source import Decodes, PrefillAttention


def cut(chunks: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Each prompt chunk of (tokens, context before) as its parts, with the context of each in its own chunk."""
    found = []
    for tokens, before in chunks:
        while tokens > 0:
            inside = before % size
            own = min(tokens, size - inside)
            found.append((own, inside))
            tokens, before = tokens - own, before + own
    return found


@dataclass(frozen=True)
class ChunkedPrefill:
    """Prompt chunks, cut where attention starts anew."""

    whole: PrefillAttention
    size: int

    @property
    def provenance(self) -> int:
        return self.whole.provenance

    def seconds(self, chunks: Sequence[tuple[int, int]]) -> float:
        return self.whole.seconds(cut(chunks, self.size))

    def together(self, chunks: Sequence[tuple[int, int]], decodes: Decodes) -> float | None:
        """Decodes are taken to see a whole chunk at most, which is more than those beyond the first chunk do."""
        seen = min(decodes.cached, decodes.requests * self.size)
        capped = Decodes(decodes.requests, seen, min(decodes.longest, self.size))
        return self.whole.together(cut(chunks, self.size), capped)
