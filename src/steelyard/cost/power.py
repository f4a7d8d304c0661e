"""Clocks under the GPU's power limit.

Kernels are timed in short runs, at the highest clock. An engine runs for seconds. Where its steps would take more power
than the board may draw, the GPU lowers its clock until they do not. So a step's energy matters, and not only its time.
Both are added up over the operators, and so is the time that goes with the clock: reading memory hardly does,
multiplying does.

Then all follows from one equation. With cycles that are longer by a share ``x``, a step takes ``seconds + x * clocked``
and ``joules * (1 - settling * x)``, since a lower clock needs less voltage. ``x`` is such that this is what the limit
allows. Large matrices were timed at the limit: what that took longer is taken off first and comes back with ``x``,
which then also slows all that runs beside them. The attention of prompts was, too, and is left as it is. No step
becomes shorter than the sum of its operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from steelyard.cost.measured import MeasuredSource
from steelyard.cost.source import Floats, RowOperator
from steelyard.model import AttentionOperator, Elementwise, Gemm

_VALUE_BYTES = 2  # of a weight, an activation or a cached value
_SHORT_RUNS = 512  # rows up to which a profile times matrices at the highest clock: its bands of more met the limit


@dataclass(frozen=True)
class PowerCosts:
    """What work takes at the highest clock, and how that changes with the clock."""

    idle: float  # watts of kernels that do nothing
    flop: float  # joules of a 16-bit operation of a matrix
    byte: float  # joules of a byte from memory or to it
    cached_byte: float  # joules of a cached byte that a decode reads, with what is done with it
    settling: float  # share by which work takes less energy, for cycles that are longer by a share
    attention_clocked: float  # share of the time of decodes' attention that goes with the clock
    prompt_peak: float  # share of the peak arithmetic that a long prompt's attention reaches at the limit
    limited: float  # time of large matrices at the limit, relative to the highest clock


COSTS = {"h200": PowerCosts(128.7, 0.932e-12, 98.96e-12, 189.6e-12, 0.723, 0.18, 0.561, 1.166)}
"""By GPU, from single operators that ran for a second each (docs/profiles.md)."""


class Rows(NamedTuple):
    """All operators but attention at some number of rows."""

    joules: float
    clocked: float  # seconds that go with the clock
    already: float  # seconds that the limit had added when they were timed


class AttentionPower(NamedTuple):
    """Attention of one kind of layer."""

    cached: float  # joules per token that a decode reads
    pair: float  # seconds of a pair of tokens of a prompt at the limit
    window: int | None


@dataclass(frozen=True)
class StepPower:
    """Energy of an engine's steps, and how much longer they take than at the highest clock."""

    costs: PowerCosts
    watts: float  # that the limit leaves beyond idle
    tokens: list[Rows]
    head: list[Rows]
    attention: tuple[AttentionPower, ...]

    def slowed(
        self,
        rows: int,
        sampled: int,
        decodes: tuple[int, float],
        chunks: Sequence[tuple[int, int]],
        fixed: float,
        attention: float,
        host: float = 0.0,
    ) -> float:
        """Seconds that the limit adds to a step of decodes (their number, and the cached tokens of all) and chunks.

        ``fixed`` and ``attention`` are its seconds without attention, and those of attention. While the GPU waits for
        the ``host``, which takes this long for each step, it draws less.
        """
        tokens, head = self.tokens[rows], self.head[sampled]
        requests, kv = decodes
        joules, prompts = tokens.joules + head.joules, 0.0
        for part in self.attention:
            joules += part.cached * (kv if part.window is None else min(kv, requests * part.window))
            prompts += part.pair * sum(_pairs(new, before, part.window) for new, before in chunks)
        prompts = min(prompts, attention)
        joules += self.watts * prompts
        already = tokens.already + head.already
        excess = joules - self.watts * max(fixed - already + attention, host)
        if excess <= 0.0:
            return 0.0
        clocked = tokens.clocked + head.clocked + self.costs.attention_clocked * (attention - prompts)
        longer = clocked * excess / (self.watts * clocked + self.costs.settling * joules)
        return max(0.0, longer - already)


def _pairs(new: int, before: int, window: int | None) -> float:
    """Pairs of query and key of a chunk."""
    every = new * before + new * (new + 1) / 2
    return every if window is None else min(every, float(new) * window)


class PowerTables:
    """Adds up the energy of operators. Of most kinds it was not measured: with one of those there is no `StepPower`."""

    def __init__(self, source: MeasuredSource, tokens: int, head: int) -> None:
        self._costs = COSTS.get(source.gpu.name) if source.matrices.points and source.attention.points else None
        self._source = source
        self._tokens = np.zeros((len(Rows._fields), tokens))
        self._head = np.zeros((len(Rows._fields), head))
        self._attention: list[AttentionPower] = []

    def rows(self, operator: RowOperator, layers: int, rows: Floats, seconds: Floats) -> None:
        """Add an operator of ``layers`` layers, with its seconds."""
        if self._costs is None:
            return
        if isinstance(operator, Gemm) and operator.weight_bytes == _VALUE_BYTES:
            found = self._matrix(operator, rows, seconds, self._costs)
        elif isinstance(operator, Elementwise):
            found = np.array([self._costs.byte * operator.bytes * rows, seconds, np.zeros_like(rows)])
        else:
            self._costs = None
            return
        table = self._head if operator.per == "sequence" else self._tokens
        table += layers * found

    def _matrix(self, gemm: Gemm, rows: Floats, seconds: Floats, costs: PowerCosts) -> Floats:
        """The nearer the arithmetic is to its peak, the more of the time goes with the clock."""
        few = rows <= _SHORT_RUNS
        short = self._source.matrices.seconds(gemm.n, gemm.k, rows[few]).seconds
        already = seconds * (1.0 - 1.0 / costs.limited)
        already[few] = np.maximum(0.0, self._source.at_kept_up(gemm, rows[few]) - short)
        flops = 2.0 * gemm.n * gemm.k * rows
        moved = _VALUE_BYTES * (gemm.n * gemm.k + rows * (gemm.k + gemm.n))
        alone = seconds - already
        of_peak = np.divide(flops / self._source.gpu.peak("bf16"), alone, out=np.zeros_like(alone), where=alone > 0)
        joules = np.where(rows > 0, costs.flop * flops + costs.byte * moved, 0.0)
        return np.array([joules, alone * np.minimum(1.0, of_peak) ** 2, already])

    def attention(self, operator: AttentionOperator, layers: int, kv_bytes: float) -> None:
        """Add the attention of ``layers`` layers."""
        if self._costs is None:
            return
        if (
            operator.attention not in ("gqa", "mfa")
            or kv_bytes != _VALUE_BYTES
            or operator.context_parallel is not None
        ):
            self._costs = None
            return
        flops = float(layers * operator.prefill.flops_per_pair)
        cached = layers * self._costs.cached_byte * kv_bytes * operator.kv_elements
        pair = flops / (self._costs.prompt_peak * self._source.gpu.peak("bf16"))
        self._attention.append(AttentionPower(cached, pair, operator.window))

    def power(self) -> StepPower | None:
        """The energy of steps, if that of all operators is known."""
        if self._costs is None:
            return None
        watts = self._source.gpu.tdp_watts - self._costs.idle
        return StepPower(self._costs, watts, _listed(self._tokens), _listed(self._head), tuple(self._attention))


def _listed(table: Floats) -> list[Rows]:
    return [Rows(*each) for each in table.T.tolist()]
