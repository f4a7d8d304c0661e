"""Which replicas take requests, and the requests that wait until one does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from steelyard.balance.autoscale import Scaling
from steelyard.engine import ABORTED, Request
from steelyard.fleet.driver import FleetDriver
from steelyard.fleet.frontend import Frontend
from steelyard.fleet.uptime import ReplicaState, Uptime


@dataclass(frozen=True)
class ReplicaPool:
    """A pool's replicas at its largest. The first ``begins`` of them are up at the start."""

    replicas: range
    begins: int
    scaling: Scaling | None = None
    model: str = ""  # that it serves, where there are several


class Presence:
    """Opens and closes replicas to new requests, and tells the routers."""

    def __init__(self, driver: FleetDriver, pools: Sequence[ReplicaPool], uptime: Uptime) -> None:
        self._driver = driver
        self.pools = pools
        self.uptime = uptime
        self.pool_of = {replica: k for k, pool in enumerate(pools) for replica in pool.replicas}
        self._open = Counter(map(self._kind, self.pool_of))  # replicas open to new requests, by kind
        self._starts = [0] * len(driver.engines)  # by replica: number of its latest start; older ones are cancelled
        self.starts_at = [inf] * len(driver.engines)  # by replica: when it comes up, by its latest start
        self.waiting: dict[int, Request] = {}  # requests that arrived while no replica was up
        self.unplaced: dict[int, int] = {}  # prompts computed while no decode replica was up: their prefill replica

    def begin(self) -> None:
        """Open the replicas that are up at the start."""
        for pool in self.pools:
            for k, replica in enumerate(pool.replicas):
                if k < pool.begins:
                    self.uptime.set(replica, ReplicaState.UP, 0.0)
                else:
                    self.close(replica)

    def has_replica(self, model: str, answering: bool) -> bool:
        """Whether any replica takes new requests or, with ``answering``, computed prompts."""
        return self._open[answering, model] > 0

    def close(self, replica: int) -> None:
        """Send nothing new to a replica."""
        self._tell_router(replica, up=False)

    def start_at(self, replica: int, at: float) -> None:
        """Bring a replica up at a second, unless `cancel_start` is called before."""
        self._starts[replica] += 1
        self.starts_at[replica] = at
        number = self._starts[replica]
        self._driver.at(at, lambda now: self._come_up(replica, now) if number == self._starts[replica] else None)

    def cancel_start(self, replica: int) -> None:
        """Cancel the pending start of a replica."""
        self._starts[replica] += 1

    def await_replica(self, r: Request) -> None:
        """A request waits for a replica until its client gives up."""
        self.waiting[r.index] = r
        abort_at = self._driver.desk.abort_at(r)
        if abort_at < inf:
            self._driver.at(abort_at, lambda now: self._give_up(r, now))

    def _give_up(self, r: Request, now: float) -> None:
        """The client of a waiting request gives up. Logged by its last replica, or by the first one."""
        i, driver = r.index, self._driver
        if self.waiting.get(i) is not r:
            return
        del self.waiting[i]
        r.status = ABORTED
        log = driver.engines[max(int(driver.desk.replica[i]), 0)].log
        log.given_up[i] = (now, "the client gave up")
        log.done(r)
        del driver.in_flight[i]
        driver.ended(1)
        driver.take_over(i, -1, now)
        driver.follow(now, i)

    def _come_up(self, replica: int, now: float) -> None:
        driver = self._driver
        self.uptime.set(replica, ReplicaState.UP, now)
        driver.frontends[replica] = Frontend(driver.desk.host)
        self._tell_router(replica, up=True)
        if replica in driver.taking:
            requests, self.waiting = self.waiting, {}
            for r in requests.values():
                driver.send(r, now)
        else:
            unplaced, self.unplaced = self.unplaced, {}
            for i, source in unplaced.items():
                driver.hand_over(i, source, now)

    def _kind(self, replica: int) -> tuple[bool, str]:
        """(whether it is a decode replica, its model)."""
        return replica in self._driver.answering, self.pools[self.pool_of[replica]].model

    def _tell_router(self, replica: int, up: bool) -> None:
        self._open[self._kind(replica)] += 1 if up else -1
        driver = self._driver
        if replica in driver.taking:
            driver.router.available(replica, up)
        else:
            assert driver.handover is not None
            driver.handover.router.available(replica - driver.handover.prefills, up)
