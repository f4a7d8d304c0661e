"""Random numbers in GPU memory, handed out in pieces, so that no measurement has to generate data."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import torch

_MOST_BYTES = 24 << 30  # enough for the largest point of the grid
_SHARE = 0.4  # of the GPU's memory
_CHUNK = 1 << 28  # elements generated at a time: bounds temporary memory
_ALIGNED = 128  # elements


class Arena:
    """16-bit random numbers; pieces taken since the last ``reset`` do not overlap and must not be written to."""

    def __init__(self) -> None:
        size = min(_MOST_BYTES, int(_SHARE * torch.cuda.get_device_properties(0).total_memory))
        self._numbers = torch.empty(size // 2, device="cuda", dtype=torch.bfloat16)
        for start in range(0, size // 2, _CHUNK):
            self._numbers[start : start + _CHUNK].normal_(0.0, 0.1)
        self._next = 0

    def reset(self) -> None:
        """Make all memory available again."""
        self._next = 0

    def take(self, *shape: int) -> Any:
        """A tensor of this shape."""
        start, count = self._next, prod(shape)
        if start + count > len(self._numbers):
            raise RuntimeError(f"{2 * count >> 20} MiB more than the arena's {2 * len(self._numbers) >> 30} GiB")
        self._next = start + -(-count // _ALIGNED) * _ALIGNED
        return self._numbers[start : start + count].view(shape)


@cache
def arena() -> Arena:
    """The arena of this process."""
    return Arena()
