"""Which replica has which request, and what its client has already seen of it."""

from __future__ import annotations

from steelyard.engine import Request
from steelyard.fleet.together import Together


class Whereabouts:
    """By request: the replica it is on. By replica: how many requests it still has, or keeps something of."""

    def __init__(self, together: Together) -> None:
        self._handover, self._answering = together.handover, together.answering
        self.where: dict[int, tuple[int, Request]] = {}  # and the request as it is there
        self.there = [0] * len(together.engines)
        self.seen: dict[int, int] = {}  # by request that started over: deliveries its client had

    def placed(self, r: Request, replica: int) -> None:
        """A replica gets a request, perhaps not the first one to have it."""
        known = self.seen.get(r.index, 0)
        if known and self._handover is not None:
            told = int(self._handover.transfers.first_token_from_prefill)
            known = max(known - told, 0) if replica in self._answering else min(known, told)
        r.seen = known
        self.where[r.index] = replica, r
        self.there[replica] += 1

    def ended(self, i: int) -> Request:
        """A request needs no place any more; as it was at its end."""
        self.seen.pop(i, None)
        return self.where.pop(i)[1]

    def lost(self, i: int) -> int:
        """A request has to start over; the replica that it was on. Its client keeps what it has seen."""
        where, r = self.where.pop(i)
        self.there[where] -= 1
        known = r.deliveries
        if self._handover is not None:
            told = int(self._handover.transfers.first_token_from_prefill)
            known = told + known if where in self._answering else told * known
        self.seen[i] = max(self.seen.get(i, 0), known)
        return where
