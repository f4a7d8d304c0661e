"""Links shared by transfers: each gets an equal share of every link on its path, and runs at the rate of the slowest.

When a transfer starts or ends, only transfers that share a link with it change their rate. So the cost of an update
does not grow with the fleet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush


@dataclass
class Link:
    """One direction of a port or an uplink, and its traffic so far."""

    bandwidth: float  # bytes per second
    factor: float = 1.0  # share of the bandwidth available now
    transfers: dict[int, None] = field(default_factory=dict)  # active
    carried: float = 0.0  # bytes
    busy: float = 0.0  # seconds with an active transfer
    last: float = 0.0  # when its last transfer ended
    _since: float = 0.0

    def enter(self, transfer: int, now: float) -> None:
        if not self.transfers:
            self._since = now
        self.transfers[transfer] = None

    def leave(self, transfer: int, now: float, size: float) -> None:
        del self.transfers[transfer]
        self.carried += size
        self.last = now
        if not self.transfers:
            self.busy += now - self._since

    @property
    def share(self) -> float:
        """Bytes per second for each active transfer."""
        return self.bandwidth * self.factor / len(self.transfers)


@dataclass
class _Transfer:
    path: Sequence[Link]
    size: float
    left: float
    since: float  # when ``left`` was computed
    rate: float = 0.0
    version: int = 0  # of its entry in the heap


class Network:
    """All active transfers. ``next_end`` is when the first of them ends, if none starts before."""

    def __init__(self) -> None:
        self._transfers: dict[int, _Transfer] = {}
        self._heap: list[tuple[float, int, int]] = []
        self._started = 0

    def start(self, size: float, path: Sequence[Link], now: float, left: float | None = None) -> int:
        """Start a transfer of ``size`` bytes, of which ``left`` are still to be sent. Returns its number."""
        number = self._started
        self._started += 1
        self._transfers[number] = _Transfer(path, size, size if left is None else left, now)
        for link in path:
            link.enter(number, now)
        self._update_rates(path, now)
        if not path:
            heappush(self._heap, (now, number, 0))
        return number

    @property
    def next_end(self) -> float:
        """The second at which the next transfer ends; infinite without any."""
        heap = self._heap
        while heap and not self._valid(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else float("inf")

    def end_next(self) -> tuple[float, int]:
        """End the next transfer: when it ended, and its number."""
        now = self.next_end
        number = heappop(self._heap)[1]
        transfer = self._transfers.pop(number)
        for link in transfer.path:
            link.leave(number, now, transfer.size)
        self._update_rates(transfer.path, now)
        return now, number

    def cancel(self, number: int, now: float) -> None:
        """Cancel a transfer. What had been sent counts as carried."""
        transfer = self._transfers.pop(number)
        left = max(0.0, transfer.left - transfer.rate * (now - transfer.since))
        for link in transfer.path:
            link.leave(number, now, transfer.size - left)
        self._update_rates(transfer.path, now)

    def change(self, link: Link, factor: float, now: float) -> None:
        """Set the share of its bandwidth that a link has from now on."""
        link.factor = factor
        self._update_rates((link,), now)

    def _valid(self, entry: tuple[float, int, int]) -> bool:
        transfer = self._transfers.get(entry[1])
        return transfer is not None and transfer.version == entry[2]

    def _update_rates(self, path: Sequence[Link], now: float) -> None:
        """Recompute the rates of all transfers on these links."""
        for number in {each: None for link in path for each in link.transfers}:
            transfer = self._transfers[number]
            rate = min(link.share for link in transfer.path)
            if rate == transfer.rate:
                continue
            transfer.left = max(0.0, transfer.left - transfer.rate * (now - transfer.since))
            transfer.since, transfer.rate = now, rate
            transfer.version += 1
            heappush(self._heap, (now + transfer.left / rate, number, transfer.version))


@dataclass(frozen=True)
class Port:
    """One replica's links in one direction: within its node, or its NICs and its leaf switch's uplinks."""

    nic: Link
    peer: Link
    node: int = 0
    leaf: int = 0
    uplink: Link | None = None  # shared by the leaf; None: not oversubscribed


@dataclass(frozen=True)
class Ports:
    """The replicas that send, and those that receive."""

    out: Sequence[Port]
    into: Sequence[Port]

    def path(self, source: int, target: int) -> tuple[Link, ...]:
        """Links from a sending to a receiving replica, each by its index on its own side."""
        sender, receiver = self.out[source], self.into[target]
        if sender.node == receiver.node:
            return sender.peer, receiver.peer
        if sender.leaf == receiver.leaf:
            return sender.nic, receiver.nic
        uplinks = tuple(port.uplink for port in (sender, receiver) if port.uplink is not None)
        return sender.nic, *uplinks, receiver.nic
