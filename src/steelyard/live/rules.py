"""What a gateway lets through: tokens, sizes, rates, and how long it waits for a client."""

from __future__ import annotations

from dataclasses import dataclass, field

from steelyard.live.access import Access

IDENTIFIER = "[A-Za-z0-9._:/+=@-]{1,200}"
"""Names of trajectories, groups and requests."""


@dataclass
class Rates:
    """A bucket of requests for each token: so many a second, and as many at once."""

    per_second: float
    _left: dict[str, tuple[float, float]] = field(default_factory=dict)  # requests, and when that was

    def take(self, client: str, now: float) -> bool:
        """Whether one more is allowed."""
        left, since = self._left.get(client, (self.per_second, now))
        left = min(self.per_second, left + (now - since) * self.per_second)
        if left < 1:
            self._left[client] = left, now
            return False
        self._left[client] = left - 1, now
        return True


@dataclass(frozen=True)
class ClientPatience:
    """What a client may take of the gateway's connections and time. All are chosen."""

    connections: int = 4096  # at once; also bounded by the files that the process may open
    head_seconds: float = 10.0  # for a whole head to come, and for the rest of a body that nobody wants
    body_seconds: float = 30.0
    stall_seconds: float = 30.0  # without reading any of what was written to it


@dataclass(frozen=True)
class GatewayRules:
    """What the gateway lets through."""

    access: Access = field(default_factory=Access)
    most_bytes: int = 16 << 20  # of a body: a million token ids
    rates: Rates | None = None
    patience: ClientPatience = field(default_factory=ClientPatience)
