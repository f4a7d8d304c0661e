"""Kernels that an engine compiles when a step first runs them.

Triton compiles the experts' kernel once for each way to tile their rows, and of each once more where 16 divides a
number that it is given: the rows, and the places for them once each expert's share is filled up to whole tiles.
Start-up runs the largest step, the largest batch and every captured size, so steps that replay a graph find theirs; the
launch of any other that comes first waits for the compiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from typing import NamedTuple

from steelyard.cost.graphs import GraphPlan


class Kernel(NamedTuple):
    """A kernel, and how long it takes to compile over what kernels usually take: larger tiles take longer."""

    name: str
    weight: float = 1.0


Variant = tuple[Kernel, bool, bool]  # and whether 16 divides the rows it was compiled for, and their places
_APART = 16  # tiles are multiples of it


@dataclass(frozen=True)
class ExpertKernel:
    """The kernel that runs the experts of one kind of layer, by a step's tokens."""

    by_tokens: Sequence[Kernel]
    top_k: int
    experts: int

    def at(self, tokens: int) -> Variant:
        """The variant of it that a step of so many tokens runs."""
        rows = tokens * self.top_k  # and up to a tile less one more for each expert
        return self.by_tokens[tokens], rows % _APART == 0, (rows - self.experts) % _APART == 0


class FirstUses:
    """The kernels of one engine since its start-up, which ran steps of the ``ran`` numbers of tokens."""

    def __init__(self, experts: Sequence[ExpertKernel], graphs: GraphPlan, ran: Iterable[int], seconds: float) -> None:
        self._experts = experts
        self._graphs = graphs
        self._compiled = {each.at(tokens) for tokens in ran for each in experts}
        self.seconds = seconds  # to compile a usual one
        self.count = 0  # compiled since
        self.waited = 0.0  # seconds, for these

    def missing(self, tokens: int, decode_only: bool) -> set[Variant]:
        """What such a step would have to compile."""
        if self._graphs.launch(tokens, decode_only) != "eager":
            return set()
        return {each.at(tokens) for each in self._experts} - self._compiled

    def compile(self, tokens: int, decode_only: bool) -> float:
        """Such a step runs: how often the time of a usual kernel it compiles; what it needs is there from then on."""
        missing = self.missing(tokens, decode_only)
        self._compiled |= missing
        self.count += len(missing)
        weight = fsum(kernel.weight for kernel, *_ in missing)
        self.waited += weight * self.seconds
        return weight
