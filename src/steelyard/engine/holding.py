"""Ended requests whose blocks stay taken: until another engine has fetched them, or for the rounds that come next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from steelyard.engine.request import Request

if TYPE_CHECKING:
    from steelyard.engine.policies.policy import Policy


class Holding:
    """Who holds blocks of an engine though it has ended, and for whom."""

    def __init__(self) -> None:
        self.kept = 0  # ended requests whose blocks somebody is still to fetch
        self.held: dict[Request, None] = {}  # ended requests that hold theirs for their next rounds, oldest first
        self.heirs: dict[Request, Sequence[Request]] = {}  # next rounds that have not begun, and who holds for them

    def stop(self, r: Request, scheduler: Policy) -> None:
        """An ended request holds nothing for next rounds any longer."""
        if r in self.held:
            del self.held[r]
            scheduler.let_go(r)

    def stop_oldest(self, scheduler: Policy) -> None:
        """Others need the blocks more than rounds to come."""
        self.stop(next(iter(self.held)), scheduler)

    def inherit(self, r: Request, scheduler: Policy) -> None:
        """A request has begun, or ended before it could: nothing has to be held for it."""
        for each in self.heirs.pop(r, ()):
            self.stop(each, scheduler)
