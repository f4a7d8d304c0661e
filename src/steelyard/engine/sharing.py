"""Blocks that several requests hold."""

from __future__ import annotations


class SharedBlocks:
    """How many blocks have more than one holder, and how many holders these have beyond the first."""

    __slots__ = ("again", "several")

    def __init__(self) -> None:
        self.several = 0
        self.again = 0

    def joined(self, holders: int, blocks: int) -> None:
        """Blocks got one more holder and now have ``holders``."""
        if holders > 1:
            self.again += blocks
            if holders == 2:
                self.several += blocks

    def left(self, holders: int, blocks: int) -> None:
        """Blocks lost a holder and now have ``holders``."""
        if holders:
            self.again -= blocks
            if holders == 1:
                self.several -= blocks
