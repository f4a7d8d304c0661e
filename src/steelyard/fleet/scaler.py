"""Autoscaling: starts and drains replicas by a rule or a schedule."""

from __future__ import annotations

from steelyard.balance.autoscale import PoolView, Scaling, WatchingRule
from steelyard.engine import FINISHED, Request
from steelyard.errors import UserError
from steelyard.fleet.driver import FleetDriver
from steelyard.fleet.placements import Placements
from steelyard.fleet.presence import Presence, ReplicaPool
from steelyard.fleet.uptime import PRESENT_OR_COMING, ReplicaState

_MOST_LOOKS = 50_000_000  # at single replicas, in the decisions of a run: some ten seconds of CPU time
_DECISION = 50  # looks that the rest of a decision takes as long as


class Scaler:
    """Starts and drains replicas. Rules that watch are told of each request when something happens to it."""

    def __init__(self, driver: FleetDriver, presence: Presence, placements: Placements) -> None:
        self._driver, self._presence, self._placements = driver, presence, placements
        self._uptime = presence.uptime
        rules = [pool.scaling.rule if pool.scaling else None for pool in presence.pools]
        self._looks = 0
        self._watching = {k: rule for k, rule in enumerate(rules) if isinstance(rule, WatchingRule)}

    def announce(self) -> None:
        """Schedule the first check of each pool, and all scheduled sizes."""
        for pool in self._presence.pools:
            if pool.scaling is not None:
                self._announce(pool, pool.scaling)

    def _announce(self, pool: ReplicaPool, scaling: Scaling) -> None:
        if scaling.rule is not None:
            self._driver.at(scaling.every, lambda now: self._check(pool, scaling, now))
        for at, wanted in scaling.schedule:
            self._driver.at(at, lambda now, wanted=wanted: self._scale(pool, scaling, wanted, now))  # type: ignore[misc]

    def placed(self, r: Request, replica: int) -> None:
        """A request was sent to a replica."""
        rule = self._rule_of(replica)
        if rule is not None:
            rule.arrived(r.index, r.arrival, r.prompt)

    def first_token(self, i: int, replica: int, now: float) -> None:
        """A replica has produced a request's first token. Repeated ones after a crash do not count."""
        rule = self._rule_of(replica)
        if rule is not None and i not in self._placements.seen:
            rule.first_token(i, now, now - float(self._driver.desk.arrival[i]))

    def ended(self, r: Request, replica: int, now: float) -> None:
        """A request has ended on a replica."""
        rule = self._rule_of(replica)
        if rule is None:
            return
        if r.status != FINISHED:
            rule.gave_up(r.index, now)
            return
        tpot = None
        if r.output > 1 and r.first >= 0:
            ends = self._driver.engines[replica].log.ends
            tpot = (ends[r.last] - ends[r.first]) / (r.output - 1)
        rule.ended(r.index, now, r.output, r.hit, tpot)

    def _rule_of(self, replica: int) -> WatchingRule | None:
        return self._watching.get(self._presence.pool_of[replica])

    def left(self, replica: int, now: float) -> None:
        """A replica has one request less. A draining replica without requests stops."""
        self._placements.count[replica] -= 1
        if self._uptime.states[replica] is ReplicaState.DRAINING:
            self._stop_if_empty(replica, now)

    def _check(self, pool: ReplicaPool, scaling: Scaling, now: float) -> None:
        """Compare a pool's size with what its rule wants, every ``scaling.every`` seconds."""
        self._count_looks(pool, scaling, now)
        self._scale(pool, scaling, scaling.wanted(self._view(pool, now)), now)
        self._driver.at(now + scaling.every, lambda then: self._check(pool, scaling, then))

    def _view(self, pool: ReplicaPool, now: float) -> PoolView:
        driver, presence, count = self._driver, self._presence, self._placements.count
        waiting = presence.waiting if pool.replicas[0] in driver.taking else presence.unplaced
        unfinished = sum(count[replica] for replica in pool.replicas)
        unfinished += sum(driver.in_flight[i].model == pool.model for i in waiting)
        here = self._uptime.among(pool.replicas, PRESENT_OR_COMING)
        starting = [replica for replica in here if self._uptime.states[replica] is not ReplicaState.UP]
        leaving = sum(count[replica] for replica in self._uptime.among(pool.replicas, (ReplicaState.DRAINING,)))
        times = tuple(sorted(max(0.0, presence.starts_at[replica] - now) for replica in starting))
        return PoolView(now, len(here) - len(starting), unfinished, times, leaving)

    def _count_looks(self, pool: ReplicaPool, scaling: Scaling, now: float) -> None:
        """Refuse to decide again and again while requests pause for years."""
        self._looks += _DECISION + len(pool.replicas)
        if self._looks > _MOST_LOOKS:
            raise UserError(
                f"autoscale.every: {now / scaling.every:,.0f} decisions about {len(pool.replicas):,} replicas by "
                f"second {now:g}, and the run goes on; give more than {scaling.every:g} s, or shorter pauses"
            )

    def _scale(self, pool: ReplicaPool, scaling: Scaling, wanted: int, now: float) -> None:
        """Bring a pool to ``wanted`` replicas. Those not up yet stop first, then those of the highest numbers."""
        uptime = self._uptime
        here = uptime.among(pool.replicas, PRESENT_OR_COMING)
        for replica in uptime.among(pool.replicas, (ReplicaState.OFF,))[: max(0, wanted - len(here))]:
            uptime.set(replica, ReplicaState.STARTING, now)
            self._presence.start_at(replica, now + scaling.startup)
        order = (ReplicaState.UP, ReplicaState.DOWN, ReplicaState.STARTING)
        here.sort(key=lambda replica: (order.index(uptime.states[replica]), replica))
        for replica in reversed(here[wanted:]):
            self._drain(replica, now)

    def _drain(self, replica: int, now: float) -> None:
        self._presence.cancel_start(replica)
        if self._uptime.states[replica] is ReplicaState.UP:
            self._presence.close(replica)
            self._uptime.set(replica, ReplicaState.DRAINING, now)
            self._stop_if_empty(replica, now)
        else:
            self._uptime.set(replica, ReplicaState.OFF, now)

    def _stop_if_empty(self, replica: int, now: float) -> None:
        if not self._placements.count[replica]:
            self._driver.run_to(replica, now).crash(now)  # nothing is left but the cache
            self._uptime.set(replica, ReplicaState.OFF, now)
            self._driver.sleep(replica)
