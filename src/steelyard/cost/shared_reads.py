"""Reads of shared blocks that a decode step saves, since another request of its batch has just read them.

Requests with a common prefix share blocks. A later request of the batch finds them in the GPU's L2 cache, if less than
its size was read in between. The positions of these requests in the batch are unknown and assumed to be random.
docs/profiles.md says how this was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from steelyard.hardware import Gpu

# Both measured on an H200 with tools/shared_reads.py (docs/profiles.md, "Shared prefixes").
_GAIN = 0.48  # share of a token's time that a cache hit saves: the kernel still processes the token
_MOST = 0.37  # largest share of all tokens' time that is saved: beyond, multiprocessors are the bottleneck
_GRAIN_BITS = 4  # leading bits by which sums of cached tokens are distinguished; chosen


class Spared(NamedTuple):
    """Cached tokens to subtract for L2 hits, in steps with ``low`` up to ``high`` cached tokens."""

    tokens: int
    low: int
    high: int


@dataclass(frozen=True)
class SharedReads:
    """How many cached tokens of a layer fit the GPU's L2 cache."""

    tokens: float

    @classmethod
    def of(cls, gpu: Gpu, token_bytes: float) -> SharedReads:
        """For layers with ``token_bytes`` per cached token on each GPU."""
        return cls(gpu.l2_bytes / token_bytes)

    def spared(self, kv: int, several: int, again: int) -> Spared:
        """Of ``kv`` cached tokens, several requests share ``several``, and ``again`` reads of these are repeated.

        Of n requests at random positions of the batch, two neighbours are closer than a share x of it with probability
        1 - (1 - x)^n.
        """
        grain = max(0, kv.bit_length() - _GRAIN_BITS)
        low = kv >> grain << grain
        near = min(1.0, self.tokens / low)
        found = again * (1.0 - (1.0 - near) ** (1.0 + again / several))
        return Spared(int(min(_GAIN * found, _MOST * low)), low, low + (1 << grain) - 1)
