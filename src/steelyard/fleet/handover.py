"""Prefill/decode disaggregation: which decode engine gets a request, and how its KV cache is transferred.

As in vLLM, a decode engine admits a request before the transfer. It allocates blocks for the whole prompt and fetches
them from the prefill engine, which keeps its own until then. The request runs in the step after they have arrived.
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
    """How KV cache is transferred, and its size."""

    token_bytes: float
    layers: int
    ports: Ports  # out of prefill replicas and into decode replicas
    latency: float = 0.0  # seconds that each transfer takes to start
    layerwise: bool = False
    first_token_from_prefill: bool = False
    by_model: Mapping[str, tuple[float, int]] = field(default_factory=dict)  # bytes and layers, where they differ

    def kv_of(self, model: str) -> tuple[float, int]:
        """KV bytes of a token, and the number of layers with KV cache."""
        return self.by_model.get(model, (self.token_bytes, self.layers))


class Waiting(NamedTuple):
    """A request whose prompt is computed and which its decode engine has not fetched yet."""

    prefill: Request
    replica: int  # the prefill replica
    output: int  # output tokens of the whole request
    model: str = ""


class Handover:
    """Moves requests from prefill to decode engines. In the fleet's order, prefill engines come first."""

    def __init__(self, router: Router, transfers: Transfers) -> None:
        self.prefills = len(transfers.ports.out)
        self.router = router
        self.transfers = transfers
        self.network = Network()
        self.waiting: dict[int, Waiting] = {}  # by request
        self._under_way: dict[int, tuple[Request, int]] = {}  # by transfer: its request and decode replica
        self._fetching: set[int] = set()  # requests
        self._wanted: dict[int, int] = {}  # by request: output tokens

    def first_part(self, r: Request) -> Request:
        """The request for its prefill engine: one output token, blocks kept for the decode engine."""
        self._wanted[r.index] = r.output
        r.keep = r.output > 1 or not self.transfers.first_token_from_prefill
        r.output = 1
        return r

    def second_part(self, r: Request, replica: int, routed: RoutedRequest, now: float) -> tuple[Request, int]:
        """The request for its decode engine, and the replica."""
        output = self._wanted.pop(r.index)
        self.waiting[r.index] = Waiting(r, replica, output, routed.model)
        chosen = self.router.choose(replace(routed, at=now))
        sent = 1 if self.transfers.first_token_from_prefill else 0
        second = Request(r.index, r.arrival, r.prompt + sent, output - sent, r.priority, r.keys, r.chain, r.accept)
        second.remote = r.prompt
        second.phase, second.rest, second.opening = r.phase, r.rest, r.opening
        return second, self.prefills + chosen

    def unfetched(self, index: int) -> Waiting | None:
        """Forget a request whose prompt will not be fetched. Returns it; None if it is being fetched or unknown."""
        return None if index in self._fetching else self.waiting.pop(index, None)

    def start(self, r: Request, tokens: int, replica: int, now: float) -> None:
        """A decode engine starts to fetch ``tokens`` tokens of a request."""
        transfers = self.transfers
        self._fetching.add(r.index)
        first, source, _, model = self.waiting[r.index]
        token_bytes, layers = transfers.kv_of(model)
        path = transfers.ports.path(source, replica - self.prefills)
        size = tokens * token_bytes
        left = size
        if transfers.layerwise:
            # Layers sent during prefill: assumed to go at the rate that a transfer would get now.
            rate = min(link.bandwidth * link.factor / (link.active + 1) for link in path)
            left = max(size / layers, size - rate * (now - first.scheduled))
        number = self.network.start(size, path, now, left)
        self._under_way[number] = r, replica

    def ended(self) -> tuple[Request, int, Waiting]:
        """End the next transfer: its request, decode replica and source."""
        _, number = self.network.end_next()
        r, replica = self._under_way.pop(number)
        self._fetching.remove(r.index)
        return r, replica, self.waiting.pop(r.index)

    def forget(self, index: int, now: float) -> Waiting | None:
        """A request starts over: drop it and cancel its transfer. Returns where its prompt is kept, if it is."""
        self._wanted.pop(index, None)
        self._fetching.discard(index)
        for number in [number for number, (r, _) in self._under_way.items() if r.index == index]:
            del self._under_way[number]
            self.network.cancel(number, now)
        return self.waiting.pop(index, None)
