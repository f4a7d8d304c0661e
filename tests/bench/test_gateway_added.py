"""What is said to be added to a time to first token is what was added, however engines wait."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bench.gateway_added import Legs, added, added_at_same_waits, waits_of
from bench.gateway_added import Probe as Asked

COUNT, WAYS, WAIT = 600, ((0.5, 0.1), (2.5, 1.5)), (120.0, 170.0, 220.0)  # of pairs; ms

Floats = NDArray[np.float64]


def drawn(random: np.random.Generator, way: int, count: int) -> Legs:
    """Requests whose engine makes a step every 50 ms, and takes 2 to 4 of them for a first token."""
    to_engine, to_client = (random.lognormal(np.log(each), 0.9, count) for each in WAYS[way])
    return Legs(to_engine, random.choice(WAIT, count) + random.uniform(0, 50, count), to_client)


def probes(legs: Legs) -> list[Asked]:
    return [Asked("", 0.0, seconds) for seconds in (legs.way + legs.in_engine) / 1e3]


def truth() -> Floats:
    """Of so many requests that chance does not count."""
    random = np.random.default_rng(0)
    direct, gateway = (drawn(random, way, 300_000) for way in (0, 1))
    times = [np.percentile(each.way + each.in_engine, (50, 99)) for each in (direct, gateway)]
    return np.asarray(times[1] - times[0])


def test_the_same_waits_give_what_was_added_and_differences_of_runs_give_chance() -> None:
    right = truth()
    found, plain = [], []
    for seed in range(1, 5):
        random = np.random.default_rng(seed)
        direct, gateway = (drawn(random, way, COUNT) for way in (0, 1))
        p50, p99 = (each.gateway - each.direct for each in added_at_same_waits(direct, gateway))
        assert abs(p50 - right[0]) < 1.0 and abs(p99 - right[1]) < 2.0, seed
        found.append(p50)
        plain.append(added(probes(direct), probes(gateway))[0])
    assert np.std(found) < np.std([each.gateway - each.direct for each in plain]) / 3


def test_waits_that_differ_are_told() -> None:
    random = np.random.default_rng(1)
    direct, gateway = (drawn(random, way, COUNT) for way in (0, 1))
    assert waits_of(direct, gateway).alike
    waits = waits_of(direct, gateway._replace(in_engine=gateway.in_engine + 12.0))
    assert not waits.alike and 6.0 < waits.longer < 18.0
