"""What a decode step need not read from memory, since another request of its batch has just read it.

Requests with a common prefix hold the same blocks. Whoever comes later in the batch finds them in the GPU's cache, if
less than that holds has been read in between. How the requests of one prefix lie in the batch is not known; they are
taken to be anywhere. docs/profiles.md says how this was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from steelyard.hardware import Gpu

_GAIN = 0.48  # of what a token adds to a step's time that is saved if it is found: it still goes through the kernel
_MOST = 0.37  # of what all tokens add that is ever saved: beyond that the multiprocessors are what is slow
_GRAIN_BITS = 4  # sums of cached tokens are told apart by so many leading bits


class Spared(NamedTuple):
    """Cached tokens to take off, for what is found in the GPU's cache, in steps that have ``low`` up to ``high``."""

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
        return cls(gpu.l2_bytes / token_bytes)

    def spared(self, kv: int, several: int, again: int) -> Spared:
        """Of ``kv`` cached tokens, of which more than one request holds ``several``, to be read ``again`` times more.

        Of n requests that lie anywhere in the batch, two neighbours are closer than a share x of it with a probability
        of 1 - (1 - x)^n.
        """
        grain = max(0, kv.bit_length() - _GRAIN_BITS)
        low = kv >> grain << grain
        near = min(1.0, self.tokens / low)
        found = again * (1.0 - (1.0 - near) ** (1.0 + again / several))
        return Spared(int(min(_GAIN * found, _MOST * low)), low, low + (1 << grain) - 1)
