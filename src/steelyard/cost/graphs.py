"""CUDA graphs: which steps replay one, and to what size they are padded."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

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
    """How steps up to the largest captured size are launched; larger ones are launched kernel by kernel.

    Full graphs of decodes have the same number of tokens for each request: with drafts to verify, only multiples of it
    are captured. A decode-only step without such a graph runs like any other step.
    """

    sizes: tuple[int, ...]
    decodes: Launch
    mixed: Launch
    decode_sizes: tuple[int, ...] | None = None  # None: the same sizes

    def launch(self, tokens: int, decode_only: bool) -> Launch:
        """How a step of ``tokens`` is launched."""
        if decode_only and self._among_decodes(tokens):
            return self.decodes
        return self.mixed if self.sizes and tokens <= self.sizes[-1] else "eager"

    def padded(self, tokens: int, decode_only: bool) -> int | None:
        """The captured size of such a step, or None if it runs without a graph."""
        if self.launch(tokens, decode_only) == "eager":
            return None
        sizes = self._whole if decode_only and self._among_decodes(tokens) else self.sizes
        return sizes[bisect_left(sizes, tokens)]

    def of_width(self, tokens: int, requests: int) -> GraphPlan:
        """The plan for decodes of ``tokens`` each, for up to ``requests`` requests."""
        if tokens == 1 or self.decodes != "whole" or self.mixed == "whole" or not self.sizes:
            return self
        rounded = {-(-size // tokens) * tokens for size in self.sizes}
        most = min(self.sizes[-1], tokens * requests)
        return replace(self, decode_sizes=tuple(sorted(size for size in rounded if size <= most)))

    @property
    def _whole(self) -> tuple[int, ...]:
        return self.sizes if self.decode_sizes is None else self.decode_sizes

    def _among_decodes(self, tokens: int) -> bool:
        return bool(self._whole) and tokens <= self._whole[-1]


def graph_plan(engine: EngineSpec) -> GraphPlan:
    """The graphs an engine with these settings captures."""
    mode = "none" if engine.enforce_eager else engine.cudagraph
    sizes = engine.cudagraph_capture_sizes
    if sizes is None:
        sizes = _sizes(engine)
    reachable = tuple(size for size in sizes if size <= engine.max_num_batched_tokens)
    return GraphPlan(reachable if mode != "none" else (), *_MODES[mode])


def _sizes(engine: EngineSpec) -> tuple[int, ...]:
    """With drafts: one more token for each request, and the usual numbers of requests with all their tokens."""
    each, tokens = 1 + engine.drafts, engine.max_num_batched_tokens
    sizes = default_capture_sizes(engine.max_num_seqs * each, tokens)
    if each == 1:
        return sizes
    counts = {*default_capture_sizes(engine.max_num_seqs, tokens), engine.max_num_seqs}
    full = {each * count for count in counts if count <= engine.max_num_seqs and each * count <= sizes[-1]}
    return tuple(sorted({*sizes, *full}))
