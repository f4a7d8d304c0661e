"""What a decode step need not read from memory, since another request of its batch has just read it.

Requests with a common prefix hold the same blocks. Whoever comes later in the batch finds them in the GPU's cache, if
less than that holds has been read in between. How the requests of one prefix lie in the batch is not known; they are
taken to be anywhere. docs/profiles.md says how this was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from steelyard.hardware import Gpu

_PARTS = 2  # of the cache: each holds what its own multiprocessors read, so that both hold the same
_MOST = 0.1  # of its reads that a kernel can gain by: beyond that its multiprocessors are what is slow
_GRAIN_BITS = 4  # sums of cached tokens are told apart by so many leading bits


class Spared(NamedTuple):
    """Cached tokens that are not read from memory, of steps that have ``low`` up to ``high`` in all."""

    tokens: int
    low: int
    high: int


@dataclass(frozen=True)
class SharedReads:
    """Cached tokens of a layer that the GPU's cache holds."""

    tokens: float

    @classmethod
    def of(cls, gpu: Gpu, token_bytes: float) -> SharedReads:
        """For layers whose cached tokens are of so many bytes on each GPU."""
        return cls(gpu.l2_bytes / _PARTS / token_bytes)

    def spared(self, kv: int, several: int, again: int) -> Spared:
        """Of ``kv`` cached tokens, of which more than one request holds ``several``, to be read ``again`` times more.

        Of n requests that lie anywhere in the batch, two neighbours are closer than a share x of it with a probability
        of 1 - (1 - x)^n.
        """
        grain = max(0, kv.bit_length() - _GRAIN_BITS)
        low = kv >> grain << grain
        near = min(1.0, self.tokens / low)
        found = again * (1.0 - (1.0 - near) ** (1.0 + again / several))
        return Spared(int(min(found, _MOST * low)), low, low + (1 << grain) - 1)
