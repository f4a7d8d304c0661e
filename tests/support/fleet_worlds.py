"""Fleets of engines for a world."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from math import inf

import numpy as np

from steelyard.balance.route import Router
from steelyard.cost.host import NO_HOST, HostTerms
from steelyard.engine import FINISHED, Engine, Limits
from steelyard.fleet import Desk, run_fleet
from steelyard.validate.parity import LinearCost
from support.engine_worlds import Ask, World

BLIND = ["round-robin", "random", "sticky"]
ROUTERS = [*BLIND, "least-outstanding", "power-of-two", "prefix-aware"]


def patient(world: World) -> World:
    """Nobody asks again at the very second of an abort, when other engines may have scheduled already."""
    asks = (
        replace(ask, think=0.5) if ask.after >= 0 and world.asks[ask.after].abort < inf and not ask.think else ask
        for ask in world.asks
    )
    return replace(world, asks=tuple(asks))


class Fleet:
    """Fresh engines and a fresh desk for a world."""

    def __init__(self, world: World, replicas: int, host: HostTerms = NO_HOST) -> None:
        self.world = world
        self.desk = Desk(world.workload(), [world.limits], host=host)
        self.engines = [
            Engine(world.limits, world.cost, self.desk.names, wake=host.wake, reactive=world.reactive)
            for _ in range(replicas)
        ]

    def run(self, router: Router) -> Fleet:
        """Serve everything the way a simulation does."""
        run_fleet(self.engines, self.desk, router)
        return self

    def ends(self) -> dict[int, float]:
        """The second at which each request that got to an engine ended."""
        ends: dict[int, float] = {}
        for engine in self.engines:
            log = engine.log
            for index, status, last in zip(*(log.ended[k].tolist() for k in ("index", "status", "last")), strict=True):
                assert index not in ends
                ends[index] = log.ends[last] if status == FINISHED else log.given_up[index][0]
        return ends

    def digest(self) -> str:
        """A fingerprint of everything that happened, to the last bit."""
        parts = [self.desk.arrival.tobytes(), self.desk.replica.tobytes()]
        for engine in self.engines:
            parts += [engine.log.ends.tobytes(), engine.log.requests.tobytes(), engine.log.rows.tobytes()]
        return hashlib.sha256(b"".join(parts)).hexdigest()


def busy_world() -> World:
    """Sessions, shared openings and aborts enough that any order of looking would show."""
    rng = np.random.default_rng(11)
    asks: list[Ask] = []
    for i in range(120):
        opening = ((int(rng.integers(3)), 32),) if i % 3 else ()
        asks.append(
            Ask(
                prompt=int(rng.integers(33, 90)),
                output=int(rng.integers(1, 40)),
                at=i // 4 * 0.4,
                after=i - 40 if i >= 60 else -1,
                think=0.3,
                abort=4.0 if i % 7 == 0 else inf,
                content=opening,
                stream=3 + i,
            )
        )
    return World(Limits(40, 256, block_size=8, max_num_seqs=6), LinearCost(0.02, 1e-4, 1e-6), tuple(asks))
