"""Prefill here, decode there: who takes a request over, and how its keys and values get across.

As in vLLM, a decode engine admits a request before anything is sent: it takes blocks for the whole prompt, fetches them
from the prefill engine, which keeps its own until then, and runs the request in the step after they have come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from steelyard.balance.route import RoutedRequest, Router
from steelyard.engine import Request
from steelyard.fleet.links import Network, Ports


@dataclass(frozen=True)
class Transfers:
    """What it takes to move keys and values."""

    token_bytes: float
    layers: int
    ports: Ports  # out of prefill replicas and into decode ones
    latency: float = 0.0  # seconds, of any transfer
    layerwise: bool = False
    first_token_from_prefill: bool = False
    by_model: Mapping[str, tuple[float, int]] = field(default_factory=dict)  # bytes and layers, where they differ

    def kv_of(self, model: str) -> tuple[float, int]:
        """Bytes of a token, and the layers that they are of."""
        return self.by_model.get(model, (self.token_bytes, self.layers))


class Waiting(NamedTuple):
    """A request between its two engines."""

    prefill: Request
    replica: int  # that computed its prompt
    output: int  # tokens it wants in all
    model: str = ""


class Handover:
    """The way from prefill to decode engines; decode engines follow the prefill ones in the fleet's order."""

    def __init__(self, router: Router, transfers: Transfers) -> None:
        self.prefills = len(transfers.ports.out)
        self.router = router
        self.transfers = transfers
        self.network = Network()
        self.waiting: dict[int, Waiting] = {}  # by request
        self._under_way: dict[int, tuple[Request, int]] = {}  # by transfer: the request and its decode replica
        self._fetching: set[int] = set()  # requests
        self._wanted: dict[int, int] = {}  # by request: output tokens

    def first_part(self, r: Request) -> Request:
        """A request as its prefill engine gets it: one token, and the blocks kept for the other."""
        self._wanted[r.index] = r.output
        r.keep = r.output > 1 or not self.transfers.first_token_from_prefill
        r.output = 1
        return r

    def second_part(self, r: Request, replica: int, asked: RoutedRequest, now: float) -> tuple[Request, int]:
        """The same request for a decode engine, and which one."""
        output = self._wanted.pop(r.index)
        self.waiting[r.index] = Waiting(r, replica, output, asked.model)
        there = self.router.choose(replace(asked, at=now))
        told = 1 if self.transfers.first_token_from_prefill else 0
        second = Request(r.index, r.arrival, r.prompt + told, output - told, r.priority, r.keys, r.chain, r.accept)
        second.remote = r.prompt
        second.phase, second.rest, second.opening = r.phase, r.rest, r.opening
        return second, self.prefills + there

    def unfetched(self, index: int) -> Waiting | None:
        """Where a request that will not be fetched any more has its prompt; None if there is no such."""
        return None if index in self._fetching else self.waiting.pop(index, None)

    def start(self, r: Request, tokens: int, replica: int, now: float) -> None:
        """A decode engine fetches so many tokens of a request."""
        transfers = self.transfers
        self._fetching.add(r.index)
        first, source, _, model = self.waiting[r.index]
        token_bytes, layers = transfers.kv_of(model)
        path = transfers.ports.path(source, replica - self.prefills)
        size = tokens * token_bytes
        left = size
        if transfers.layerwise:
            # What went across beside the prompt is reckoned at the rate a transfer would get now.
            rate = min(link.bandwidth * link.factor / (len(link.transfers) + 1) for link in path)
            left = max(size / layers, size - rate * (now - first.scheduled))
        number = self.network.start(size, path, now, left)
        self._under_way[number] = r, replica

    def ended(self) -> tuple[Request, int, Waiting]:
        """The transfer that is through next: the request, its decode replica, and where it came from."""
        _, number = self.network.end_next()
        r, replica = self._under_way.pop(number)
        self._fetching.remove(r.index)
        return r, replica, self.waiting.pop(r.index)

    def forget(self, index: int, now: float) -> Waiting | None:
        """A request starts over, wherever it is on its way; where its prompt still lies, if that is kept."""
        self._wanted.pop(index, None)
        self._fetching.discard(index)
        for number in [number for number, (r, _) in self._under_way.items() if r.index == index]:
            del self._under_way[number]
            self.network.cancel(number, now)
        return self.waiting.pop(index, None)
