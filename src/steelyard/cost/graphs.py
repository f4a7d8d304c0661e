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


_MODES: dict[str, tuple[Launch, Launch]] = {  # decode-only steps, all others
    "full_and_piecewise": ("whole", "pieces"),
    "full_decode_only": ("whole", "eager"),
    "full": ("whole", "whole"),
    "piecewise": ("pieces", "pieces"),
    "none": ("eager", "eager"),
}


@dataclass(frozen=True)
class GraphPlan:
    """How steps of up to the largest captured size get to the GPU; larger ones go kernel by kernel."""

    sizes: tuple[int, ...]
    decodes: Launch
    mixed: Launch

    def launch(self, tokens: int, decode_only: bool) -> Launch:
        """How a step of so many tokens does."""
        if not self.sizes or tokens > self.sizes[-1]:
            return "eager"
        return self.decodes if decode_only else self.mixed

    def padded(self, tokens: int, decode_only: bool) -> int | None:
        """The captured size such a step runs at, or None if it runs without a graph."""
        if self.launch(tokens, decode_only) == "eager":
            return None
        return self.sizes[bisect_left(self.sizes, tokens)]


def graph_plan(engine: EngineSpec) -> GraphPlan:
    """The graphs an engine with these settings captures."""
    mode = "none" if engine.enforce_eager else engine.cudagraph
    sizes = engine.cudagraph_capture_sizes
    if sizes is None:
        sizes = default_capture_sizes(engine.max_num_seqs, engine.max_num_batched_tokens)
    reachable = tuple(size for size in sizes if size <= engine.max_num_batched_tokens)
    return GraphPlan(reachable if mode != "none" else (), *_MODES[mode])
