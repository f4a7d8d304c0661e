"""Blocks that several requests hold at once."""

from __future__ import annotations


class Sharing:
    """How many blocks have more than one holder, and how many holders these have beyond the first."""

    __slots__ = ("again", "several")

    def __init__(self) -> None:
        self.several = 0
        self.again = 0

    def joined(self, holders: int, blocks: int) -> None:
        """Blocks have one holder more, and so many by now."""
        if holders > 1:
            self.again += blocks
            if holders == 2:
                self.several += blocks

    def left(self, holders: int, blocks: int) -> None:
        """Blocks have one holder less; so many are left."""
        if holders:
            self.again -= blocks
            if holders == 1:
                self.several -= blocks
