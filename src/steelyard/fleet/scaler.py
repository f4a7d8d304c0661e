"""Pools that grow and shrink, as their rules or schedules want it."""

from __future__ import annotations

from steelyard.balance.autoscale import BySlo, Scaling
from steelyard.engine import FINISHED, Request
from steelyard.fleet.presence import Pool, Presence
from steelyard.fleet.together import Together
from steelyard.fleet.uptime import COMES_OR_IS, State
from steelyard.fleet.whereabouts import Whereabouts


class Scaler:
    """Starts and drains replicas. Rules that go by latencies are told them as clients come to know them."""

    def __init__(self, together: Together, presence: Presence, places: Whereabouts) -> None:
        self._together, self._presence, self._places = together, presence, places
        self._uptime = presence.uptime
        rules = [pool.scaling.rule if pool.scaling else None for pool in presence.pools]
        self._by_slo = {k: rule for k, rule in enumerate(rules) if isinstance(rule, BySlo)}

    def announce(self) -> None:
        """Put the first look at each pool, and all that is scheduled, on the clock."""
        for pool in self._presence.pools:
            if pool.scaling is not None:
                self._announce(pool, pool.scaling)

    def _announce(self, pool: Pool, scaling: Scaling) -> None:
        if scaling.rule is not None:
            self._together.at(scaling.every, lambda now: self._look(pool, scaling, now))
        for at, wanted in scaling.schedule:
            self._together.at(at, lambda now, wanted=wanted: self._scale(pool, scaling, wanted, now))  # type: ignore[misc]

    def first_token(self, i: int, replica: int, now: float) -> None:
        """A replica has given a request's first token; one that came again after a crash is old news."""
        rule = self._by_slo.get(self._presence.pool_of[replica])
        if rule is not None and i not in self._places.seen:
            rule.note("ttft", now, now - float(self._together.desk.arrival[i]))

    def ended(self, r: Request, replica: int, now: float) -> None:
        """A request has ended on a replica."""
        rule = self._by_slo.get(self._presence.pool_of[replica])
        if rule is not None and r.status == FINISHED and r.output > 1 and r.first >= 0:
            ends = self._together.engines[replica].log.ends
            rule.note("tpot", now, (ends[r.last] - ends[r.first]) / (r.output - 1))

    def left(self, replica: int, now: float) -> None:
        """A replica has one request less; one that drains and has none left stops."""
        self._places.there[replica] -= 1
        if self._uptime.states[replica] is State.DRAINING:
            self._stop_if_empty(replica, now)

    def _look(self, pool: Pool, scaling: Scaling, now: float) -> None:
        """Every so often: does a pool have the right size?"""
        together, presence = self._together, self._presence
        waiting = presence.nowhere if pool.replicas[0] in together.taking else presence.unplaced
        unfinished = sum(self._places.there[replica] for replica in pool.replicas)
        unfinished += sum(together.asked[i].model == pool.model for i in waiting)
        here = len(self._uptime.among(pool.replicas, COMES_OR_IS))
        self._scale(pool, scaling, scaling.wanted(now, here, unfinished), now)
        together.at(now + scaling.every, lambda then: self._look(pool, scaling, then))

    def _scale(self, pool: Pool, scaling: Scaling, wanted: int, now: float) -> None:
        """Start what lacks; of what is too much go first those that do not serve yet, then the highest numbers."""
        uptime = self._uptime
        here = uptime.among(pool.replicas, COMES_OR_IS)
        for replica in uptime.among(pool.replicas, (State.OFF,))[: max(0, wanted - len(here))]:
            uptime.set(replica, State.STARTING, now)
            self._presence.expect(replica, now + scaling.startup)
        order = (State.UP, State.DOWN, State.STARTING)
        here.sort(key=lambda replica: (order.index(uptime.states[replica]), replica))
        for replica in reversed(here[wanted:]):
            self._dismiss(replica, now)

    def _dismiss(self, replica: int, now: float) -> None:
        self._presence.expect_no_more(replica)
        if self._uptime.states[replica] is State.UP:
            self._presence.close(replica)
            self._uptime.set(replica, State.DRAINING, now)
            self._stop_if_empty(replica, now)
        else:
            self._uptime.set(replica, State.OFF, now)

    def _stop_if_empty(self, replica: int, now: float) -> None:
        if not self._places.there[replica]:
            self._together.run_to(replica, now).crash(now)  # nothing is left but the cache
            self._uptime.set(replica, State.OFF, now)
            self._together.sleep(replica)
