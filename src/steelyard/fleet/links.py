"""Links shared by transfers: each gets an equal share of every link on its path, and runs at the rate of the slowest.

Transfers on the same path always have the same rate, so they are kept together: a `_Route` knows how much each of its
transfers has been sent, and which ends first. When a transfer starts or ends, only routes that share a link with it
change their rate. The cost of an update grows neither with the fleet nor with the transfers that are under way.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf


@dataclass(eq=False)
class Link:
    """One direction of a port or an uplink, and its traffic so far."""

    bandwidth: float  # bytes per second
    factor: float = 1.0  # share of the bandwidth available now
    active: int = 0  # transfers
    carried: float = 0.0  # bytes
    busy: float = 0.0  # seconds with an active transfer
    last: float = 0.0  # when its last transfer ended
    routes: dict[_Route, None] = field(default_factory=dict)  # with active transfers
    spans: array[float] = field(default_factory=lambda: array("d"))  # starts and ends of the times it was busy
    _since: float = 0.0

    def enter(self, now: float) -> None:
        if not self.active:
            self._since = now
        self.active += 1

    def leave(self, now: float, size: float) -> None:
        self.active -= 1
        self.carried += size
        self.last = now
        if not self.active:
            self.busy += now - self._since
            self.spans.extend((self._since, now))

    @property
    def share(self) -> float:
        """Bytes per second for each active transfer."""
        return self.bandwidth * self.factor / self.active


@dataclass(eq=False)
class _Route:
    """All active transfers on one path."""

    path: Sequence[Link]
    active: int = 0
    sent: float = 0.0  # bytes of each transfer that has been active since ``sent`` was 0
    since: float = 0.0  # when ``sent`` was computed
    rate: float = 0.0  # of each
    version: int = 0  # of its entry in the network's heap
    ends: list[tuple[float, int]] = field(default_factory=list)  # heap: ``sent`` at the end of each, and its number

    def advance(self, now: float) -> None:
        if self.rate < inf:
            self.sent += self.rate * (now - self.since)
        self.since = now


@dataclass
class _Transfer:
    route: _Route
    size: float
    end: float  # its route's ``sent`` when it ends


class Network:
    """All active transfers. ``next_end`` is when the first of them ends, if none starts before."""

    def __init__(self) -> None:
        self._transfers: dict[int, _Transfer] = {}
        self._routes: dict[tuple[int, ...], _Route] = {}
        self._heap: list[tuple[float, int, int, _Route]] = []
        self._started = 0

    def start(self, size: float, path: Sequence[Link], now: float, left: float | None = None) -> int:
        """Start a transfer of ``size`` bytes, of which ``left`` are still to be sent. Returns its number."""
        number = self._started
        self._started += 1
        route = self._routes.setdefault(tuple(map(id, path)), _Route(path))
        if not route.active:
            route.sent, route.since = 0.0, now
            route.rate = 0.0 if path else inf
            for link in path:
                link.routes[route] = None
        route.advance(now)
        route.active += 1
        transfer = _Transfer(route, size, route.sent + (size if left is None else left))
        self._transfers[number] = transfer
        heappush(route.ends, (transfer.end, number))
        for link in path:
            link.enter(now)
        self._reckon(route, now)
        return number

    @property
    def next_end(self) -> float:
        """The second at which the next transfer ends; infinite without any."""
        heap = self._heap
        while heap and heap[0][2] != heap[0][3].version:
            heappop(heap)
        return heap[0][0] if heap else inf

    def end_next(self) -> tuple[float, int]:
        """End the next transfer: when it ended, and its number."""
        now = self.next_end
        number = heappop(self._heap)[1]
        self._remove(number, now, self._transfers[number].size)
        return now, number

    def cancel(self, number: int, now: float) -> None:
        """Cancel a transfer. What had been sent counts as carried."""
        transfer = self._transfers[number]
        transfer.route.advance(now)
        left = max(0.0, transfer.end - transfer.route.sent)
        self._remove(number, now, transfer.size - left)

    def change(self, link: Link, factor: float, now: float) -> None:
        """Set the share of its bandwidth that a link has from now on."""
        link.factor = factor
        self._update_rates((link,), now)

    def _remove(self, number: int, now: float, carried: float) -> None:
        route = self._transfers.pop(number).route
        route.advance(now)
        route.active -= 1
        for link in route.path:
            link.leave(now, carried)
            if not route.active:
                del link.routes[route]
        self._reckon(route, now)

    def _reckon(self, route: _Route, now: float) -> None:
        """After a transfer has joined or left a route: when its first one ends, and the rates of all that it meets."""
        self._update_rates(route.path, now)
        self._expect(route, now)

    def _update_rates(self, path: Sequence[Link], now: float) -> None:
        """Recompute the rates of all routes over these links."""
        for route in {each: None for link in path for each in link.routes}:
            rate = min(link.share for link in route.path)
            if rate != route.rate:
                route.advance(now)
                route.rate = rate
                self._expect(route, now)

    def _expect(self, route: _Route, now: float) -> None:
        """Say when the next transfer of a route ends."""
        route.version += 1
        ends = route.ends
        while ends and ends[0][1] not in self._transfers:
            heappop(ends)
        if ends:
            end, number = ends[0]
            left = max(0.0, end - route.sent)
            heappush(self._heap, (now + left / route.rate, number, route.version, route))


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
