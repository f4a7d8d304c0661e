"""Fleets that change while they serve. Each part has a module: crashes and slow hardware (`faults`), requests that
start over (`retries`), autoscaling (`scaler`), which replicas are up (`presence`), and which request is where
(`placements`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from steelyard.balance.autoscale import WatchingRule
from steelyard.balance.route import Router
from steelyard.engine import Engine, Request
from steelyard.errors import UserError
from steelyard.fleet.desk import Desk
from steelyard.fleet.driver import FleetDriver
from steelyard.fleet.faults import Crash, Fault, Faults, SlowGpu, SlowLink
from steelyard.fleet.handover import Handover
from steelyard.fleet.placements import Placements
from steelyard.fleet.presence import Presence, ReplicaPool
from steelyard.fleet.retries import Retries
from steelyard.fleet.scaler import Scaler
from steelyard.fleet.uptime import Uptime

__all__ = ["Crash", "DynamicFleet", "Dynamics", "ReplicaPool", "SlowGpu", "SlowLink"]


@dataclass
class Dynamics:
    """What will happen to a fleet and, after the run, what happened."""

    pools: Sequence[ReplicaPool]
    changes: Sequence[Fault] = ()
    uptime: Uptime = field(init=False)
    crashed: int = 0
    retries: dict[int, int] = field(default_factory=dict)  # by request that had to start over: how often

    def __post_init__(self) -> None:
        self.uptime = Uptime(sum(len(pool.replicas) for pool in self.pools))

    def retries_of(self, requests: int) -> NDArray[np.int64]:
        """How often each request had to start over."""
        found = np.zeros(requests, dtype=np.int64)
        found[list(self.retries)] = list(self.retries.values())
        return found

    @property
    def awaits_first_tokens(self) -> bool:
        """Whether an autoscaling rule of any pool needs times of first tokens."""
        rules = (pool.scaling.rule for pool in self.pools if pool.scaling is not None)
        return any(isinstance(rule, WatchingRule) and rule.awaits_first_tokens for rule in rules)


class DynamicFleet:
    """A driver with replicas that come and go."""

    def __init__(
        self,
        engines: Sequence[Engine],
        desk: Desk,
        router: Router,
        handover: Handover | None,
        ended: Callable[[int], bool | None],
        dynamics: Dynamics,
    ) -> None:
        self.dynamics = dynamics
        self.driver = FleetDriver(engines, desk, router, handover, ended, self, dynamics.awaits_first_tokens)
        self.presence = Presence(self.driver, dynamics.pools, dynamics.uptime)
        self.placements = Placements(self.driver)
        self.retries = Retries(self.driver, self.presence, self.placements)
        self.faults = Faults(self.driver, self.presence, self.retries, dynamics.changes)
        self.scaler = Scaler(self.driver, self.presence, self.placements)

    def run(self, until: float = inf) -> None:
        """Handle all events up to a second."""
        self.presence.begin()
        self.faults.announce()
        self.scaler.announce()
        self.driver.run(until)
        self.dynamics.crashed, self.dynamics.retries = self.faults.crashed, self.retries.count
        waiting = len(self.driver.in_flight)
        if waiting and not self.driver.clock.agenda:
            raise UserError(
                f"{waiting} requests wait for a replica that never comes up again; "
                "give crashes a restart_after, or leave a replica to serve"
            )

    # -- the `Changes` protocol, as the driver calls it ---------------------------------------------------------

    def has_replica(self, model: str, answering: bool) -> bool:
        return self.presence.has_replica(model, answering)

    def await_replica(self, r: Request) -> None:
        self.presence.await_replica(r)

    def await_decode_replica(self, i: int, replica: int) -> None:
        self.presence.unplaced[i] = replica

    def placed(self, r: Request, replica: int) -> None:
        self.placements.placed(r, replica)
        self.scaler.placed(r, replica)

    def undone(self, replica: int) -> list[Request]:
        return self.faults.undone(replica)

    def first_token(self, i: int, replica: int, now: float) -> None:
        self.scaler.first_token(i, replica, now)

    def ends(self, i: int, replica: int, now: float) -> None:
        self.scaler.ended(self.placements.ended(i), replica, now)

    def left(self, replica: int, now: float) -> None:
        self.scaler.left(replica, now)
