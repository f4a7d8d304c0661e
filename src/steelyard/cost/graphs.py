"""CUDA graphs: which steps replay a captured one, and to what size they are padded."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from steelyard.cost.host import Launch
from steelyard.scenario import EngineSpec


def default_capture_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> tuple[int, ...]:
    """vLLM's rule: 1, 2, 4, then every 8 up to 256, then every 16, up to twice the batch (at most 512)."""
    top = min(2 * max_num_seqs, 512, max_num_batched_tokens)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
    return tuple(size for size in sizes if size <= top)


@dataclass(frozen=True)
class GraphPlan:
    """What is captured. ``full``: whole decode-only steps; ``pieces``: everything but attention, for any step."""

    sizes: tuple[int, ...]
    full: bool
    pieces: bool

    def padded(self, tokens: int, decode_only: bool) -> int | None:
        """The captured size a step of so many tokens runs at, or None if it runs without a graph."""
        if not (self.pieces or (self.full and decode_only)):
            return None
        if not self.sizes or tokens > self.sizes[-1]:
            return None
        return self.sizes[bisect_left(self.sizes, tokens)]

    def launch(self, tokens: int, decode_only: bool) -> Launch:
        """How a step of so many tokens gets to the GPU."""
        if self.padded(tokens, decode_only) is None:
            return "eager"
        return "whole" if decode_only and self.full else "pieces"


def graph_plan(engine: EngineSpec) -> GraphPlan:
    """The graphs an engine with these settings captures."""
    mode = "none" if engine.enforce_eager else engine.cudagraph
    sizes = engine.cudagraph_capture_sizes
    if sizes is None:
        sizes = default_capture_sizes(engine.max_num_seqs, engine.max_num_batched_tokens)
    reachable = tuple(size for size in sizes if size <= engine.max_num_batched_tokens)
    return GraphPlan(
        sizes=reachable if mode != "none" else (),
        full=mode in ("full_and_piecewise", "full_decode_only"),
        pieces=mode in ("full_and_piecewise", "piecewise"),
    )
