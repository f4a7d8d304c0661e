"""Attention over the chunks of prompts in a step, alone or among decodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from steelyard.cost.measured.correction import Correction
from steelyard.cost.measured.tiles import GRAPH_TOKENS, HeadShape, batch_load, tile_costs
from steelyard.cost.source import Decodes

_STAGGERED = 0.3  # share of the largest tile by which multiprocessors end apart in a mixed step; fitted to the profile
_NEW_GRAIN, _BEFORE_GRAIN = 16, 64  # tokens that lengths are rounded to, less than a tile or a block
_MOST_REMEMBERED = 1 << 16  # entries of a cache: bounds its memory


class _Chunk(NamedTuple):
    """One chunk alone, in microseconds."""

    mean: float
    last: float
    largest: float
    whole: float


@dataclass(frozen=True)
class MeasuredPrefill:
    """Prefill attention of one layer."""

    shape: HeadShape
    correction: Correction
    sms: int
    window: int | None
    provenance: int
    _seen: dict[tuple[int, int, bool], _Chunk] = field(default_factory=dict)

    def seconds(self, chunks: Sequence[tuple[int, int]]) -> float:
        if len(chunks) == 1:
            ((new, before),) = chunks
            return 1e-6 * self._chunk(new, before, new > GRAPH_TOKENS).whole
        return self._kernel(chunks, None)

    def together(self, chunks: Sequence[tuple[int, int]], decodes: Decodes) -> float:
        return self._kernel(chunks, decodes)

    def _kernel(self, chunks: Sequence[tuple[int, int]], decodes: Decodes | None) -> float:
        """A step's chunks of (new tokens, cached tokens before them), with its decodes if there are any.

        Different tiles fill each other's gaps: the step ends with the slowest chunk, with the longest decode, or when
        the multiprocessors have done all work.
        """
        tokens = sum(new for new, _ in chunks) + (decodes.requests if decodes else 0)
        parts = [self._chunk(new, before, tokens > GRAPH_TOKENS) for new, before in chunks]
        mean, longest = self._decodes(decodes, tokens) if decodes else (0.0, 0.0)
        through = mean + sum(part.mean for part in parts) + _STAGGERED * max(part.largest for part in parts)
        slowest = max(part.last for part in parts)
        return 1e-6 * (tile_costs(self.shape.dim).start + max(through, slowest, longest))

    def _chunk(self, new: int, before: int, large: bool) -> _Chunk:
        """One chunk. Lengths are rounded up by less than a tile or a block, so that results can be cached."""
        new, before = -(-new // _NEW_GRAIN) * _NEW_GRAIN, -(-before // _BEFORE_GRAIN) * _BEFORE_GRAIN
        key = new, before, large
        found = self._seen.get(key)
        if found is None:
            queries, keys = [new], [before + new]
            load = batch_load(
                self.shape, queries, keys, self.sms, self.window, GRAPH_TOKENS + 1 if large else GRAPH_TOKENS
            )
            costs = tile_costs(self.shape.dim)
            factor = self.correction.of_batch(self.shape, queries, keys, load)
            whole = load.microseconds(costs) * factor
            found = _Chunk(factor * load.mean, max(0.0, whole - costs.start), factor * load.largest, whole)
            if len(self._seen) < _MOST_REMEMBERED:
                self._seen[key] = found
        return found

    def _decodes(self, decodes: Decodes, tokens: int) -> tuple[float, float]:
        """Microseconds of decodes on each multiprocessor, and of the longest one alone."""
        costs, heads = tile_costs(self.shape.dim), self.shape.kv_heads
        token = max(costs.streamed_token, costs.block / costs.keys)
        requests, cached, longest = decodes
        if self.window is not None:
            cached, longest = min(cached, requests * self.window), min(longest, self.window)
        mean = heads * (requests * costs.tile + token * cached) / self.sms
        if tokens <= GRAPH_TOKENS:
            longest = min(longest, int(heads * cached / self.sms) + costs.keys)
        return mean, costs.tile + token * longest
