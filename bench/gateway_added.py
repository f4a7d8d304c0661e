"""What a gateway adds to times: differences of percentiles, and how sure they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.gateway_engine import Stay

_RESAMPLES = 1000
_PERCENTS = (50.0, 99.0)

Floats = NDArray[np.float64]


class Probe(NamedTuple):
    """A request: its engine (-1: not known, as through a fleet's gateway), its name, when it was sent, and when its
    first token was there."""

    engine: int
    name: str
    begun: float
    got: float


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
    """What the gateway adds to the median and the 99th percentile of the time to first token.

    Each engine counts as often directly as through the gateway: one may be busier than the other, and a controller that
    sees it avoids it. Resamples are of pairs, which were sent one after the other.
    """
    one, other = _columns(direct), _columns(gateway)
    found = _both(*one, *other)
    random = np.random.default_rng(1)
    samples = []
    for _ in range(_RESAMPLES):
        chosen = random.integers(0, len(one[0]), len(one[0]))
        each = _both(*(column[chosen] for column in (*one, *other)))
        samples.append(each[1] - each[0])
    low, high = np.percentile(np.array(samples), (2.5, 97.5), axis=0)
    return [Added(*(float(column[place]) for column in (*found, low, high))) for place in range(len(_PERCENTS))]


def legs(probes: Sequence[Probe], stays: Mapping[str, Stay]) -> Legs:
    """Parts of the times to first token, in ms, as engines have noted them."""
    rows = [(probe.begun, *stays[probe.name], probe.got) for probe in probes]
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


def _columns(probes: Sequence[Probe]) -> tuple[NDArray[np.int64], Floats]:
    """Engines and times in ms."""
    return np.array([each.engine for each in probes]), np.array([(each.got - each.begun) * 1e3 for each in probes])


def _both(
    engines: NDArray[np.int64], direct: Floats, chosen: NDArray[np.int64], gateway: Floats
) -> tuple[Floats, Floats]:
    """Percentiles directly, with engines weighted, and through the gateway."""
    weights = np.ones(len(direct))
    if (chosen >= 0).all():
        for engine in np.unique(engines):
            weights[engines == engine] = np.mean(chosen == engine) / np.mean(engines == engine)
    return _percentiles(direct, weights), _percentiles(gateway, np.ones(len(gateway)))


def _percentiles(values: Floats, weights: Floats) -> Floats:
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return values[order][np.searchsorted(below, np.array(_PERCENTS) / 100.0 * below[-1])]
