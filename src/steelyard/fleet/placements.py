"""Which replica has which request, and how much of it its client has already seen."""

from __future__ import annotations

from steelyard.engine import Request
from steelyard.fleet.driver import FleetDriver


class Placements:
    """``where``: the replica of each request. ``count``: by replica, requests that it has or keeps blocks for."""

    def __init__(self, driver: FleetDriver) -> None:
        self._handover, self._answering = driver.handover, driver.answering
        self.where: dict[int, tuple[int, Request]] = {}  # replica, and the request object on it
        self.count = [0] * len(driver.engines)
        self.seen: dict[int, int] = {}  # by request that started over: deliveries its client has seen

    def placed(self, r: Request, replica: int) -> None:
        """A request was sent to a replica, for the first time or again."""
        known = self.seen.get(r.index, 0)
        if known and self._handover is not None:
            from_prefill = int(self._handover.transfers.first_token_from_prefill)
            known = max(known - from_prefill, 0) if replica in self._answering else min(known, from_prefill)
        r.seen = known
        self.where[r.index] = replica, r
        self.count[replica] += 1

    def ended(self, i: int) -> Request:
        """A request has ended. Returns it as it was at its end."""
        self.seen.pop(i, None)
        return self.where.pop(i)[1]

    def lost(self, i: int) -> int:
        """A request has to start over. Returns the replica it was on. Its client keeps what it has seen."""
        where, r = self.where.pop(i)
        self.count[where] -= 1
        known = r.deliveries
        if self._handover is not None:
            from_prefill = int(self._handover.transfers.first_token_from_prefill)
            known = from_prefill + known if where in self._answering else from_prefill * known
        self.seen[i] = max(self.seen.get(i, 0), known)
        return where
