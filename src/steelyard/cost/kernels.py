"""Kernels that an engine compiles when a step first runs them.

Triton compiles the experts' kernel once for each tiling of their rows, and specialises each on whether 16 divides its
arguments: the number of rows, and the number of padded rows after each expert's share is rounded up to whole tiles.
Start-up runs the largest step, the largest batch and every captured size, so steps that replay a graph find their
kernels compiled. Any other step that is first to need a kernel waits for the compiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from typing import NamedTuple

from steelyard.cost.graphs import GraphPlan


class Kernel(NamedTuple):
    """A kernel, and its compile time relative to a typical one: larger tiles take longer."""

    name: str
    weight: float = 1.0


Variant = tuple[Kernel, bool, bool]  # and whether 16 divides the rows, and the padded rows
_DIVISOR = 16  # Triton specialises on divisibility by 16, and tiles are multiples of it


@dataclass(frozen=True)
class ExpertKernel:
    """The kernel that runs the experts of one kind of layer, by a step's tokens."""

    by_tokens: Sequence[Kernel]
    top_k: int
    experts: int

    def at(self, tokens: int) -> Variant:
        """The variant that a step of ``tokens`` runs."""
        rows = tokens * self.top_k  # padding adds up to a tile less one for each expert
        return self.by_tokens[tokens], rows % _DIVISOR == 0, (rows - self.experts) % _DIVISOR == 0


class FirstUses:
    """The compiled kernels of one engine, whose start-up ran steps of ``ran`` tokens."""

    def __init__(self, experts: Sequence[ExpertKernel], graphs: GraphPlan, ran: Iterable[int], seconds: float) -> None:
        self._experts = experts
        self._graphs = graphs
        self._compiled = {each.at(tokens) for tokens in ran for each in experts}
        self.seconds = seconds  # to compile a typical one
        self.count = 0  # compiled since
        self.waited = 0.0  # seconds, for these

    def missing(self, tokens: int, decode_only: bool) -> set[Variant]:
        """What a step has to compile."""
        if self._graphs.launch(tokens, decode_only) != "eager":
            return set()
        return {each.at(tokens) for each in self._experts} - self._compiled

    def compile(self, tokens: int, decode_only: bool) -> float:
        """Compile what a step lacks; returns the compile time in units of a typical kernel's."""
        missing = self.missing(tokens, decode_only)
        self._compiled |= missing
        self.count += len(missing)
        weight = fsum(kernel.weight for kernel, *_ in missing)
        self.waited += weight * self.seconds
        return weight
