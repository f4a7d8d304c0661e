"""What a gateway adds to times: differences of percentiles, and how sure they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.gateway_engine import Stay

_RESAMPLES = 1000
_PERCENTS = (50.0, 99.0)

Floats = NDArray[np.float64]


class Probe(NamedTuple):
    """A request: its name, when it was sent, when its first token was there, and its stay in an engine, where engines
    note it."""

    name: str
    begun: float
    got: float
    stay: Stay | None = None


class Added(NamedTuple):
    """Of one percentile, in ms: directly, through the gateway, and between what the difference is in 95 % of
    resamples."""

    direct: float
    gateway: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.gateway - self.direct:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


class Legs(NamedTuple):
    """The time to first token of requests, in its parts."""

    to_engine: Floats
    in_engine: Floats
    to_client: Floats

    @property
    def way(self) -> Floats:
        """What is not the engine's."""
        return self.to_engine + self.to_client


def added(direct: Sequence[Probe], gateway: Sequence[Probe]) -> list[Added]:
    """What the gateway adds to the median and the 99th percentile of times to first token. Resamples are of pairs."""
    times = np.array([[(each.got - each.begun) * 1e3 for each in way] for way in (direct, gateway)])
    found, random = _percentiles(times), np.random.default_rng(1)
    chosen = (random.integers(0, times.shape[1], times.shape[1]) for _ in range(_RESAMPLES))
    samples = np.array([np.diff(_percentiles(times[:, each]), axis=0)[0] for each in chosen])
    low, high = np.percentile(samples, (2.5, 97.5), axis=0)
    return [Added(*map(float, each)) for each in zip(*found, low, high, strict=True)]


def legs(probes: Sequence[Probe]) -> Legs:
    """Parts of the times to first token, in ms, as engines have noted them."""
    rows = [(each.begun, each.stay.read, each.stay.left, each.got) for each in probes if each.stay is not None]
    return Legs(*np.diff(np.array(rows), axis=1).T * 1e3)


def leg_rows(direct: Legs, gateway: Legs) -> Iterator[tuple[str, Floats, Floats]]:
    """Name, and percentiles directly and through the gateway, of each part."""
    parts = {
        "until the engine has it": (direct.to_engine, gateway.to_engine),
        "from the engine to the client": (direct.to_client, gateway.to_client),
        "both: the way": (direct.way, gateway.way),
        "in the engine": (direct.in_engine, gateway.in_engine),
    }
    for name, (one, other) in parts.items():
        yield name, np.percentile(one, _PERCENTS), np.percentile(other, _PERCENTS)


def _percentiles(times: Floats) -> Floats:
    """Of each way, in a row of its own."""
    return np.percentile(times, _PERCENTS, axis=1).T
