"""Fleets that change while they serve: crashes, slow GPUs, narrow links, and pools that grow and shrink.

When an engine crashes, all that is on it is lost, down to the tokens of steps that had not ended. Its requests start
over: they go back to the router, prompt and all, and find no more of their work done than the prefix cache of their
new place happens to hold. Their clients keep what they have seen: tokens that come again are not shown again, so the
first token stays the first one, and the next new one ends a long gap. While no replica is there requests wait for one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappush
from math import inf, isnan

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.step import StepTime
from steelyard.engine import ABORTED, FINISHED, Engine, Request, StepCost
from steelyard.errors import UserError
from steelyard.fleet.autoscale import BySlo, Scaling
from steelyard.fleet.desk import Desk
from steelyard.fleet.frontend import Frontend
from steelyard.fleet.handover import Handover, Waiting
from steelyard.fleet.links import Link
from steelyard.fleet.routers import Router
from steelyard.fleet.together import ARRIVE, CHANGE, FETCH, FIRST, HAND_OVER, SEE, Together
from steelyard.fleet.uptime import COMES_OR_IS, SERVES, State, Uptime

Action = Callable[[float], None]


@dataclass(frozen=True)
class Crash:
    """An engine dies, and comes back empty; or never, with an infinite ``back_after``."""

    at: float
    replica: int
    back_after: float


@dataclass(frozen=True)
class Slow:
    """Steps that an engine decides upon meanwhile take longer on the GPU."""

    at: float
    until: float
    replica: int
    factor: float  # on GPU time


@dataclass(frozen=True)
class Narrow:
    """A link gives less than its bandwidth."""

    at: float
    until: float
    link: Link
    factor: float  # on bandwidth


@dataclass(frozen=True)
class Pool:
    """Replicas that may ever be there, those that are when it begins first."""

    replicas: range
    begins: int
    scaling: Scaling | None = None
    model: str = ""  # that it serves, where there are several


@dataclass
class Dynamics:
    """What is to happen to a fleet, and afterwards what did."""

    pools: Sequence[Pool]
    changes: Sequence[Crash | Slow | Narrow] = ()
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


@dataclass(frozen=True)
class Slowed:
    """A step's cost on a GPU that takes longer for everything."""

    cost: StepCost
    factor: float

    def decode_line(self, n: int, kv: int, longest: int) -> tuple[float, float, int]:
        a, b, kv_max = self.cost.decode_line(n, kv, longest)
        return a * self.factor, b * self.factor, kv_max

    def decode_host(self, n: int) -> tuple[float, float, float]:
        prepare, launch, tail = self.cost.decode_host(n)
        return prepare, launch, tail * self.factor

    def mixed(self, n: int, kv: int, longest: int, chunks: list[tuple[int, int]]) -> StepTime:
        time = self.cost.mixed(n, kv, longest, chunks)
        return time._replace(gpu=time.gpu * self.factor, tail=time.tail * self.factor)


class Changing(Together):
    """Engines on one clock, some of which come and go."""

    def __init__(
        self,
        engines: Sequence[Engine],
        desk: Desk,
        router: Router,
        handover: Handover | None,
        ended: Callable[[int], None],
        dynamics: Dynamics,
    ) -> None:
        super().__init__(engines, desk, router, handover, ended)
        self.dynamics = dynamics
        self.uptime = dynamics.uptime
        self.answering = range(len(self.taking), len(engines))  # replicas that prompts are handed on to
        self.open: Counter[tuple[bool, str]] = Counter()  # replicas there for new requests: answering or not, model
        self.actions: dict[int, Action] = {}  # by number of the event
        self.told = 0  # events so far
        self.starts = [0] * len(engines)  # times each was asked to come up: an outdated one does not count
        self.dies = [inf] * len(engines)  # when each crashes next
        self.where: dict[int, tuple[int, Request]] = {}  # the replica of each request, as it is there
        self.there = [0] * len(engines)  # requests that each still has or keeps something of
        self.seen: dict[int, int] = {}  # by request that started over: deliveries its client had
        self.nowhere: dict[int, Request] = {}  # requests that no replica is there for
        self.unplaced: dict[int, int] = {}  # prompts computed while no decode replica is there, and where they are
        self.costs = [engine.cost for engine in engines]
        self.slowed: list[dict[int, float]] = [{} for _ in engines]  # factors on each, by change
        self.narrowed: dict[int, list[float]] = {}  # factors on each link, by its id
        self.rules = [pool.scaling.rule if pool.scaling else None for pool in dynamics.pools]
        self.pool_of = {replica: k for k, pool in enumerate(dynamics.pools) for replica in pool.replicas}
        for replica in self.pool_of:
            self.open[self._of_kind(replica)] += 1
        watched = any(isinstance(rule, BySlo) and "ttft" in rule.limits for rule in self.rules)
        self.awaits_first_tokens = self.awaits_first_tokens or watched

    def run(self) -> None:
        """Everything that happens, in order."""
        for pool in self.dynamics.pools:
            for k, replica in enumerate(pool.replicas):
                if k < pool.begins:
                    self.uptime.set(replica, State.UP, 0.0)
                else:
                    self._tell_router(replica, up=False)
        for k, change in enumerate(self.dynamics.changes):
            self._announce(k, change)
        for pool in self.dynamics.pools:
            self._announce_scaling(pool)
        super().run()
        if self.asked:
            raise UserError(
                f"{len(self.asked)} requests wait for a replica that never comes up again; "
                "give crashes a restart_after, or leave a replica to serve"
            )

    # -- what is to come ----------------------------------------------------------------------------------------

    def _at(self, at: float, action: Action) -> None:
        self.actions[self.told] = action
        heappush(self.heap, (at, CHANGE, self.told, 0))
        self.told += 1

    def _change(self, now: float, number: int) -> None:
        action = self.actions.pop(number)
        if self.asked or any(event[1] == ARRIVE for event in self.heap):  # else all has been served
            action(now)

    def _announce(self, k: int, change: Crash | Slow | Narrow) -> None:
        if isinstance(change, Crash):
            self.dies[change.replica] = min(self.dies[change.replica], change.at)
            self._at(change.at, lambda now: self._crash(change, now))
        elif isinstance(change, Slow):
            self._at(change.at, lambda now: self._slow(change.replica, k, change.factor, now))
            if change.until < inf:
                self._at(change.until, lambda now: self._slow(change.replica, k, 1.0, now))
        else:
            self._at(change.at, lambda now: self._narrow(change, True, now))
            if change.until < inf:
                self._at(change.until, lambda now: self._narrow(change, False, now))

    def _announce_scaling(self, pool: Pool) -> None:
        scaling = pool.scaling
        if scaling is None:
            return
        if scaling.rule is not None:
            self._at(scaling.every, lambda now: self._look(pool, scaling, now))
        for at, wanted in scaling.schedule:
            self._at(at, lambda now, wanted=wanted: self._scale(pool, scaling, wanted, now))  # type: ignore[misc]

    # -- who is where -------------------------------------------------------------------------------------------

    def _send(self, r: Request, now: float) -> None:
        i, desk = r.index, self.desk
        desk.arrival[i] = r.arrival
        if not self.open[False, self.asked[i].model]:
            self._wait_for_replica(r)
            return
        replica = self.router.choose(self.asked[i])
        desk.replica[i] = replica
        if self.handover is not None:
            r = self.handover.first_part(r)
        taken, seen = self.frontends[replica].take(now, r.prompt)
        if isnan(desk.taken[i]):
            desk.taken[i] = taken
        self._hand(r, replica, seen)

    def _hand(self, r: Request, replica: int, seen: float) -> None:
        known = self.seen.get(r.index, 0)
        if known and self.handover is not None:
            told = int(self.handover.transfers.first_token_from_prefill)
            known = max(known - told, 0) if replica in self.answering else min(known, told)
        r.seen = known
        self.where[r.index] = replica, r
        self.there[replica] += 1
        super()._hand(r, replica, seen)

    def _wait_for_replica(self, r: Request) -> None:
        self.nowhere[r.index] = r
        patience = self.desk.abort_at(r)
        if patience < inf:
            self._at(patience, lambda now: self._give_up(r, now))

    def _give_up(self, r: Request, now: float) -> None:
        """A client will not wait any longer for any replica; the log of the last one it had, or the first, tells."""
        i = r.index
        if self.nowhere.get(i) is not r:
            return
        del self.nowhere[i]
        r.status = ABORTED
        log = self.engines[max(int(self.desk.replica[i]), 0)].log
        log.given_up[i] = (now, "the client gave up")
        log.done(r)
        del self.asked[i]
        self.ended(1)
        self._take_over(i, -1, now)
        self._follow(now, i)

    def _hand_over(self, now: float, i: int, replica: int) -> None:
        if self.open[True, self.asked[i].model]:
            super()._hand_over(now, i, replica)
        else:
            self.unplaced[i] = replica

    def _collect(self, replica: int) -> None:
        """Who ends in a step that the next crash cuts short has not ended."""
        engine, dies = self.engines[replica], self.dies[replica]
        undone: list[Request] = []
        if engine.finished and engine.log.ends and engine.log.ends[-1] > dies:
            undone = [r for r in engine.finished if r.status == FINISHED and engine.end_of(r) > dies]
            engine.finished[:] = [r for r in engine.finished if r not in undone]
        super()._collect(replica)
        engine.finished.extend(undone)

    def _end(self, now: float, i: int, replica: int) -> None:
        r = self.where.pop(i)[1]
        rule = self.rules[self.pool_of[replica]]
        if isinstance(rule, BySlo) and r.status == FINISHED and r.output > 1 and r.first >= 0:
            ends = self.engines[replica].log.ends
            rule.note("tpot", now, (ends[r.last] - ends[r.first]) / (r.output - 1))
        self.seen.pop(i, None)
        super()._end(now, i, replica)
        self._leave(replica, now)

    def _first_token(self, now: float, i: int, replica: int) -> None:
        rule = self.rules[self.pool_of[replica]]
        if isinstance(rule, BySlo) and i not in self.seen:
            rule.note("ttft", now, now - float(self.desk.arrival[i]))
        super()._first_token(now, i, replica)

    def _let_go(self, source: Waiting | None, now: float) -> None:
        super()._let_go(source, now)
        if source is not None:
            self._leave(source.replica, now)

    def _leave(self, replica: int, now: float) -> None:
        """A replica has one request less; one that drains and has none left stops."""
        self.there[replica] -= 1
        if self.uptime.states[replica] is State.DRAINING:
            self._stop_if_empty(replica, now)

    def _of_kind(self, replica: int) -> tuple[bool, str]:
        return replica in self.answering, self.dynamics.pools[self.pool_of[replica]].model

    def _tell_router(self, replica: int, up: bool) -> None:
        self.open[self._of_kind(replica)] += 1 if up else -1
        if replica in self.taking:
            self.router.available(replica, up)
        else:
            assert self.handover is not None
            self.handover.router.available(replica - self.handover.prefills, up)

    # -- crashes ------------------------------------------------------------------------------------------------

    def _crash(self, crash: Crash, now: float) -> None:
        replica = crash.replica
        self._run_to(replica, now)
        later = (each.at for each in self.dynamics.changes if isinstance(each, Crash) and each.replica == replica)
        self.dies[replica] = min((at for at in later if at > now), default=inf)
        state = self.uptime.states[replica]
        if state not in SERVES:
            return
        self.dynamics.crashed += 1
        lost = self._lose_all(replica, now)
        if state is State.UP:
            self._tell_router(replica, up=False)
        back = state is State.UP and crash.back_after < inf
        self.uptime.set(replica, State.DOWN if back else State.OFF, now)
        if back:
            self._expect(replica, now + crash.back_after)
        self._sleep(replica)
        for i in sorted(lost, key=lambda i: (self.desk.arrival[i], i)):
            self._retry(i, now)

    def _lose_all(self, replica: int, now: float) -> list[int]:
        """Empty a replica; the requests that have to start over."""
        lost = [r.index for r in (*self.engines[replica].crash(now), *self.taken[replica])]
        self.taken[replica].clear()
        self.unanswered[replica].clear()
        self._drop_events(lambda kind, i, where: where == replica and kind in (SEE, FIRST, HAND_OVER, FETCH))
        if self.handover is not None and replica in self.taking:
            lost += self._prompts_on(replica, now)
        half_done: dict[int, list[int]] = {}  # prompts that were computed for nothing, by replica
        for i in lost:
            asked, (where, r) = self.asked[i], self.where.pop(i)
            self.fetches.pop(i, None)
            self.there[where] -= 1
            known = self.seen.get(i, 0)
            if self.handover is None:
                self.router.ended(asked, where)
                self.seen[i] = max(known, r.deliveries)
                continue
            told = int(self.handover.transfers.first_token_from_prefill)
            if where in self.answering:
                self.handover.router.ended(asked, where - self.handover.prefills)
                self.seen[i] = max(known, told + r.deliveries)
            else:
                self.router.ended(asked, where)
                self.seen[i] = max(known, told * r.deliveries)
            if where in self.answering or self.handed.pop(i, None) is not None:
                half_done.setdefault(int(self.desk.replica[i]), []).append(i)
            source = self.handover.forget(i, now)
            if source is not None and source.replica != replica:
                self._let_go(source, now)
            elif source is not None:
                self.there[replica] -= 1
        for where, indices in half_done.items():
            self.engines[where].log.lose(indices)
        if self.handover is not None:
            self._await_transfer()
        return lost

    def _prompts_on(self, replica: int, now: float) -> list[int]:
        """Requests whose prompt was computed here and is not elsewhere yet."""
        assert self.handover is not None
        lost = [i for i in self.handed if self.desk.replica[i] == replica]
        for i in lost:
            self.unplaced.pop(i, None)
        for i, waiting in list(self.handover.waiting.items()):
            if waiting.replica == replica:
                if i in self.where and self._withdraw(i, now):  # else its client has gone, and only the fetch goes on
                    lost.append(i)
                else:
                    self.handover.forget(i, now)
                    self.there[replica] -= 1
        return lost

    def _withdraw(self, i: int, now: float) -> bool:
        """Take a request away from where it waits for its prompt; False if it does not need that any more."""
        where, r = self.where[i]
        engine = self._run_to(where, now)
        if r.status >= FINISHED or (i in self.fetches and not self.fetches[i][1]):
            return False
        if r in self.taken[where]:
            self.taken[where].remove(r)
        else:
            engine.withdraw(r, now)
        self._drop_events(lambda kind, index, _: index == i and kind in (SEE, FETCH))
        self._sleep(where)
        return True

    def _drop_events(self, outdated: Callable[[int, int, int], bool]) -> None:
        self.heap[:] = [event for event in self.heap if not outdated(*event[1:])]
        heapify(self.heap)

    def _retry(self, i: int, now: float) -> None:
        self.dynamics.retries[i] = self.dynamics.retries.get(i, 0) + 1
        self.asked[i] = replace(self.asked[i], at=now)
        self._send(self.desk.request(i, float(self.desk.arrival[i])), now)

    # -- slow GPUs and narrow links -----------------------------------------------------------------------------

    def _slow(self, replica: int, change: int, factor: float, now: float) -> None:
        engine = self._run_to(replica, now)
        factors = self.slowed[replica]
        factors[change] = factor
        total = float(np.prod([factors[k] for k in sorted(factors)]))
        engine.cost = self.costs[replica] if total == 1.0 else Slowed(self.costs[replica], total)
        self._sleep(replica)

    def _narrow(self, change: Narrow, begins: bool, now: float) -> None:
        assert self.handover is not None
        factors = self.narrowed.setdefault(id(change.link), [])
        (factors.append if begins else factors.remove)(change.factor)
        self.handover.network.change(change.link, float(np.prod(sorted(factors))), now)
        self._await_transfer()

    # -- coming and going ---------------------------------------------------------------------------------------

    def _expect(self, replica: int, at: float) -> None:
        """A replica will be up then, unless it is given up before."""
        self.starts[replica] += 1
        number = self.starts[replica]
        self._at(at, lambda now: self._come_up(replica, now) if number == self.starts[replica] else None)

    def _come_up(self, replica: int, now: float) -> None:
        self.uptime.set(replica, State.UP, now)
        self.frontends[replica] = Frontend(self.desk.host)
        self._tell_router(replica, up=True)
        if replica in self.taking:
            waiting, self.nowhere = self.nowhere, {}
            for r in waiting.values():
                self._send(r, now)
        else:
            unplaced, self.unplaced = self.unplaced, {}
            for i, source in unplaced.items():
                self._hand_over(now, i, source)

    def _look(self, pool: Pool, scaling: Scaling, now: float) -> None:
        """Every so often: does a pool have the right size?"""
        waiting = self.nowhere if pool.replicas[0] in self.taking else self.unplaced
        unfinished = sum(self.there[replica] for replica in pool.replicas)
        unfinished += sum(self.asked[i].model == pool.model for i in waiting)
        here = len(self.uptime.among(pool.replicas, COMES_OR_IS))
        self._scale(pool, scaling, scaling.wanted(now, here, unfinished), now)
        self._at(now + scaling.every, lambda then: self._look(pool, scaling, then))

    def _scale(self, pool: Pool, scaling: Scaling, wanted: int, now: float) -> None:
        """Start what lacks; of what is too much go first those that do not serve yet, then the highest numbers."""
        here = self.uptime.among(pool.replicas, COMES_OR_IS)
        for replica in self.uptime.among(pool.replicas, (State.OFF,))[: max(0, wanted - len(here))]:
            self.uptime.set(replica, State.STARTING, now)
            self._expect(replica, now + scaling.startup)
        order = (State.UP, State.DOWN, State.STARTING)
        here.sort(key=lambda replica: (order.index(self.uptime.states[replica]), replica))
        for replica in reversed(here[wanted:]):
            self._dismiss(replica, now)

    def _dismiss(self, replica: int, now: float) -> None:
        self.starts[replica] += 1
        if self.uptime.states[replica] is State.UP:
            self._tell_router(replica, up=False)
            self.uptime.set(replica, State.DRAINING, now)
            self._stop_if_empty(replica, now)
        else:
            self.uptime.set(replica, State.OFF, now)

    def _stop_if_empty(self, replica: int, now: float) -> None:
        if not self.there[replica]:
            self._run_to(replica, now).crash(now)  # nothing is left but the cache
            self.uptime.set(replica, State.OFF, now)
            self._sleep(replica)
