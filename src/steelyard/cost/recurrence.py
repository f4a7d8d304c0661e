"""Updates of recurrent state: gated delta nets and Mamba-2, by arithmetic and memory.

A decode reads and writes the state of its request, whatever the request's length. A prompt is computed in chunks, by
kernels as in flash-linear-attention and Mamba-2: within a chunk as small matrix products, between chunks through the
state. The chunks of a gated delta net follow each other, since what one writes depends on the state that it finds, so
a short batch keeps only as many multiprocessors busy as it has heads. Mamba-2 computes all chunks at once and then
passes states on. No kernel of either was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steelyard.cost.source import ANALYTIC, Curve, Decodes
from steelyard.model import Recurrence

_DECODE_KERNELS = 1  # beside the short convolution, which is an operator of its own
_PREFILL_KERNELS = {"gated_delta": 6, "mamba2": 5}  # of flash-linear-attention and of vLLM's Mamba-2
_STATE_COLUMNS = 64  # of a head's state that one multiprocessor carries through the chunks of a gated delta net
_PASSES = 3  # times that a token's values are moved between the kernels of a prompt: in, between, out


@dataclass(frozen=True)
class ScanRates:
    """Arithmetic and bandwidth that kernels reach, on how many multiprocessors, and the least time of a kernel."""

    flops: float
    bytes: float
    sms: int
    kernel_seconds: float


@dataclass(frozen=True)
class RecurrenceDecodes:
    """One token for each of the decodes."""

    operator: Recurrence
    rates: ScanRates

    def curve(self, requests: int) -> Curve:
        """The same for any number of cached tokens."""
        return Curve((0.0,), (self.seconds(requests),), ANALYTIC)

    def seconds(self, requests: int) -> float:
        """Every state is read and written."""
        moved = requests * (2 * self.operator.state_bytes + self.operator.token_bytes)
        return _DECODE_KERNELS * self.rates.kernel_seconds + moved / self.rates.bytes


@dataclass(frozen=True)
class RecurrencePrefill:
    """Prompt chunks of a step, whatever was computed before them."""

    operator: Recurrence
    rates: ScanRates
    provenance: int = ANALYTIC

    def seconds(self, chunks: Sequence[tuple[int, int]]) -> float:
        operator, rates = self.operator, self.rates
        parts = sum(-(-tokens // operator.chunk) for tokens, _ in chunks)
        tokens = sum(new for new, _ in chunks)
        within, between = self._flops_of_chunk()
        at_once = min(1.0, parts * operator.heads / rates.sms)
        arithmetic = parts * within / (rates.flops * at_once)
        if operator.recurrence == "gated_delta":
            columns = -(-operator.head_dim // _STATE_COLUMNS)
            at_once = min(1.0, len(chunks) * operator.heads * columns / rates.sms)
        arithmetic += parts * between / (rates.flops * at_once)
        kept = operator.heads * operator.head_dim * operator.state_dim * operator.value_bytes
        moved = 2 * (len(chunks) * operator.state_bytes + parts * kept) + _PASSES * tokens * operator.token_bytes
        started = _PREFILL_KERNELS[operator.recurrence] * rates.kernel_seconds
        return started + max(arithmetic, moved / rates.bytes)

    def together(self, chunks: Sequence[tuple[int, int]], decodes: Decodes) -> float:
        """Decodes have kernels of their own."""
        return self.seconds(chunks) + RecurrenceDecodes(self.operator, self.rates).seconds(decodes.requests)

    def _flops_of_chunk(self) -> tuple[float, float]:
        """Operations of a whole chunk on one GPU: within it, and through the state."""
        operator = self.operator
        chunk, keys, values = operator.chunk, operator.state_dim, operator.head_dim
        state = 2.0 * chunk * keys * values  # a product of the chunk's tokens with a state, or into one
        if operator.recurrence == "mamba2":  # scores by group, their product with values; into the state, out of it
            scores, product = 2.0 * chunk**2 * keys, 2.0 * chunk**2 * values
            return operator.groups * scores + operator.heads * (product + state), operator.heads * state
        # scores of keys with keys and of queries with keys, a triangular inverse, and its products with keys and
        # values, the scores' with values; then the state read by keys and by queries, and written
        within = 2.0 * chunk**2 * (3 * keys + 2 * values) + chunk**3
        return operator.heads * within, operator.heads * 3 * state
