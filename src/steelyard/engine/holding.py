"""Ended requests whose blocks stay allocated: until another engine has fetched them, or for their next rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from steelyard.engine.request import Request

if TYPE_CHECKING:
    from steelyard.engine.policies.policy import Policy


class HeldBlocks:
    """Ended requests that still hold blocks of an engine, and the requests they hold them for."""

    def __init__(self) -> None:
        self.kept = 0  # ended requests whose blocks another engine has yet to fetch
        self.held: dict[Request, None] = {}  # ended requests that hold blocks for their next rounds, oldest first
        self.successors: dict[Request, Sequence[Request]] = {}  # rounds that have not started, and who holds for them

    def release(self, r: Request, scheduler: Policy) -> None:
        """Free what an ended request holds for its next rounds."""
        if r in self.held:
            del self.held[r]
            scheduler.let_go(r)

    def release_oldest(self, scheduler: Policy) -> None:
        """Free the blocks held longest, since running requests need them."""
        self.release(next(iter(self.held)), scheduler)

    def release_for(self, r: Request, scheduler: Policy) -> None:
        """A next round has started or ended: free what was held for it."""
        for each in self.successors.pop(r, ()):
            self.release(each, scheduler)
