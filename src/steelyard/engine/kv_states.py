"""The paged KV cache of a model with recurrent layers, as in vLLM without prefix caching of their state.

Besides the blocks of its tokens, a request holds as many blocks as there are KV-cache groups of recurrent layers (times
the states that drafts need): each has the state of a group's layers. It gets them when it is admitted and keeps them to
its end. Without prefix caching all blocks are alike, so they are only counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.engine.kv import KVCache
from steelyard.engine.limits import Limits

if TYPE_CHECKING:
    from steelyard.engine.content import Names
    from steelyard.engine.request import Request


class KVStates(KVCache):
    """Counted blocks: ``width`` for the same tokens, and ``states`` for each request."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits.blocks, limits.block_size, False, limits.watermark)
        self.width = len(limits.windows)
        self.states = limits.states

    def match(self, r: Request) -> int:
        return 0

    def admit(self, r: Request, found: int, tokens: int, whole: int, watermark: bool) -> bool:
        """Give a waiting request its states and room for ``tokens``, if ``whole`` tokens would fit as well."""
        size, spare = self.block_size, self.free - (self.watermark if watermark else 0)
        blocks = -(-tokens // size)
        if self.states + self.width * max(blocks, -(-whole // size)) > spare:
            return False
        r.blocks = blocks
        self.take(self.states + self.width * blocks)
        return True

    def grow(self, r: Request, tokens: int) -> bool:
        """Give a running request room for ``tokens`` in all. False if there are not enough free blocks."""
        need = -(-tokens // self.block_size) - r.blocks
        if need > 0:
            if self.width * need > self.free:
                return False
            self.take(self.width * need)
            r.blocks += need
        return True

    def release(self, r: Request) -> None:
        """Take back all blocks of a request that was admitted; each of them has tokens in some."""
        if r.blocks:
            self.free += self.states + self.width * r.blocks
        r.blocks = r.cached = 0

    def keep(self, r: Request, names: Names) -> None:
        """Nothing can be found again."""

    def complete(self, r: Request, tokens: int) -> None:
        """Nothing can be found again."""

    def forget(self, r: Request, tokens: int) -> None:
        """Nothing was named."""
