"""What a gateway adds to times: differences of percentiles, and how sure they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.gateway_engine import Stay

_RESAMPLES = 1000
_DRAWS = 16  # waits of each request in a resample, where waits are drawn
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


class Waits(NamedTuple):
    """What requests waited in engines: how much longer those through the gateway did on average, in ms and between
    what in 95 % of resamples, and how the waits of each way go with the rest of their times."""

    longer: float
    low: float
    high: float
    correlation_direct: float
    correlation_gateway: float

    @property
    def alike(self) -> bool:
        """Whether no difference can be seen."""
        return self.low <= 0 <= self.high


def added(direct: Sequence[Probe], gateway: Sequence[Probe]) -> list[Added]:
    """What the gateway adds to the median and the 99th percentile of times to first token. Resamples are of pairs."""
    times = np.array([[(each.got - each.begun) * 1e3 for each in way] for way in (direct, gateway)])
    return _added(_percentiles(times), (_percentiles(times[:, each]) for each in _resamples(times.shape[1])))


def added_at_same_waits(direct: Legs, gateway: Legs) -> list[Added]:
    """The same if requests of both ways waited in the engine as long as those of both together.

    An engine does not know which way a request came. But waits are several times as long as the ways, so in a run they
    differ by chance, by more than the gateway adds. Each request has its own way and any of all waits.
    """
    waits, ways = np.concatenate([direct.in_engine, gateway.in_engine]), np.array([direct.way, gateway.way])
    draws = np.random.default_rng(2)

    def of(chosen: NDArray[np.int64]) -> Floats:
        drawn = draws.choice(waits, (len(chosen), _DRAWS))
        return _percentiles((ways[:, chosen, np.newaxis] + drawn).reshape(2, -1))

    every = (ways[:, :, np.newaxis] + waits).reshape(2, -1)
    return _added(_percentiles(every), (of(each) for each in _resamples(ways.shape[1])))


def waits_of(direct: Legs, gateway: Legs) -> Waits:
    """How far waits in engines are the same both ways."""
    longer = gateway.in_engine - direct.in_engine
    means = [longer[each].mean() for each in _resamples(len(longer))]
    correlations = [float(np.corrcoef(each.way, each.in_engine)[0, 1]) for each in (direct, gateway)]
    return Waits(float(longer.mean()), *map(float, np.percentile(means, (2.5, 97.5))), *correlations)


def _added(found: Floats, resampled: Iterable[Floats]) -> list[Added]:
    low, high = np.percentile([gateway - direct for direct, gateway in resampled], (2.5, 97.5), axis=0)
    return [Added(*map(float, each)) for each in zip(*found, low, high, strict=True)]


def _resamples(count: int) -> Iterator[NDArray[np.int64]]:
    random = np.random.default_rng(1)
    return (random.integers(0, count, count) for _ in range(_RESAMPLES))


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
