"""Many engines behind a router, against a driver that looks at every engine before every arrival."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import inf, nextafter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.balance.route import RoutedRequest
from steelyard.balance.route.draws import SeededPairs, UniformDraws
from steelyard.balance.route.serving import CountedLoads, serving_router
from steelyard.cost.host import NO_HOST, HostTerms
from steelyard.engine import FINISHED, BlockNames, Engine, Limits, Request
from steelyard.fleet import Desk, run_fleet
from steelyard.fleet.driver import FleetDriver
from steelyard.fleet.fleet import _Meter, _run_apart
from steelyard.validate.parity import LinearCost
from support.engine_worlds import RISING_COSTS, Ask, Seer, World, assert_same_records, settled, worlds
from support.fleet_worlds import BLIND, ROUTERS, Fleet, busy_world, patient

REPLICAS = st.integers(1, 4)


def ask(names: Sequence[int] = ()) -> RoutedRequest:
    return RoutedRequest(0, 0, names, 0)


FLEET_WORLDS = st.one_of(
    worlds(most=14, costs=RISING_COSTS),
    worlds(most=14, costs=RISING_COSTS, followers=False),
    worlds(most=14, costs=RISING_COSTS, everyone_fits=False),
    worlds(most=8, costs=RISING_COSTS, speculation=True),
).map(patient)


SLOW_HOST = replace(
    NO_HOST, submit=0.3, ingest=0.2, ingest_token=0.07, wake=0.15, output=0.3, output_request=0.01
)  # requests queue at the door, and a long prompt holds up a short one behind it
HOSTS = st.sampled_from([NO_HOST, SLOW_HOST])


# -- the fleet as it is run -------------------------------------------------------------------------------------------


# -- the slow reference -----------------------------------------------------------------------------------------------

Choose = Callable[[int, Sequence[int], list[int]], int]


class SlowFleet:
    """Plain engines on one clock: the one that is furthest behind takes its next decision, whatever it may be.

    So at an arrival every engine has taken all its decisions before that second, and those requests are outstanding
    that were sent to an engine and whose clients have not seen their end by then. ``choose`` is told their number per
    replica. A replica's front end takes up one request after the other, and none overtakes another.
    """

    def __init__(self, world: World, replicas: int, choose: Choose, host: HostTerms) -> None:
        self.world = world
        self.choose = choose
        self.host = host
        self.names = BlockNames(world.limits.block_size)
        self.seers = [Seer() for _ in range(replicas)]
        self.engines = [
            Engine(
                world.limits,
                world.cost,
                self.names,
                wake=host.wake,
                reactive=world.reactive,
                plain=True,
                observer=seer,
            )
            for seer in self.seers
        ]
        self.doors = [(0.0, 0.0)] * replicas  # when each is free again, and when the last request got through
        self.through: list[tuple[float, int, Request]] = []  # on the way to its engine
        self.arrival = {i: ask.at for i, ask in enumerate(world.asks) if ask.after < 0}
        self.taken: dict[int, float] = {}
        self.replica: dict[int, int] = {}
        self.end: dict[int, float] = {}
        self.shown: dict[int, float] = {}
        self.pending = [(at, i) for i, at in self.arrival.items()]
        heapify(self.pending)

    def run(self) -> SlowFleet:
        while True:
            busy = [engine for engine in self.engines if not engine.idle]
            behind = min(busy, key=lambda engine: engine.clock, default=None)
            decides = inf if behind is None else behind.clock
            arrives = self.pending[0][0] if self.pending else inf
            reaches = min((seen for seen, _, _ in self.through), default=inf)
            if min(decides, arrives, reaches) == inf:
                return self
            if reaches <= min(arrives, decides):
                self._reach()
            elif arrives <= decides:
                self._arrive(*heappop(self.pending))
            elif behind is not None:
                behind.advance(nextafter(behind.clock, inf))
                self._collect(behind)

    def _arrive(self, now: float, i: int) -> None:
        self.arrival[i] = now
        if self.world.refusal(i) is not None:
            self._follow(i, now)
            return
        load = [0] * len(self.engines)
        for j, replica in self.replica.items():
            load[replica] += self.shown.get(j, inf) > now
        r = self.world.request(i, now, self.names)
        chosen = self.replica[i] = self.choose(i, r.keys, load)
        free, last = self.doors[chosen]
        taken = self.taken[i] = max(now, free)
        free = taken + self.host.submit
        last = max(last, free + self.host.ingest + r.prompt * self.host.ingest_token)
        self.doors[chosen] = free, last
        self.through.append((last, chosen, r))

    def _reach(self) -> None:
        """The first to get through does; of several at once the first to arrive."""
        seen, chosen, r = first = min(self.through, key=lambda each: each[0])
        self.through.remove(first)
        self.engines[chosen].submit(r, seen, r.arrival + self.world.asks[r.index].abort)

    def _collect(self, engine: Engine) -> None:
        seer = self.seers[self.engines.index(engine)]
        for r in engine.finished:
            end = self.end[r.index] = self.shown[r.index] = engine.end_of(r)
            if r.status == FINISHED:
                requests = len(seer.steps[r.last][1])
                self.shown[r.index] = end + (self.host.output + requests * self.host.output_request)
            self._follow(r.index, self.shown[r.index])
        engine.finished.clear()

    def _follow(self, i: int, end: float) -> None:
        for child, ask in enumerate(self.world.asks):
            if ask.after == i:
                heappush(self.pending, (end + ask.think, child))


def session_of(world: World, i: int) -> int:
    while world.asks[i].after >= 0:
        i = world.asks[i].after
    return i


def promised(router: str, world: World, replicas: int, seed: int) -> Choose:
    """What each router's docstring says, in the plainest way."""
    draws = UniformDraws(replicas, seed)
    pairs = SeededPairs(replicas, seed)
    homes: dict[int, int] = {}
    sent_to: dict[int, int] = {}
    counter = iter(range(10**6))

    def least(load: list[int]) -> int:
        return load.index(min(load))

    def sticky(i: int, _: Sequence[int], __: list[int]) -> int:
        session = session_of(world, i)
        if session not in homes:
            homes[session] = len(homes) % replicas
        return homes[session]

    def two(i: int, names: Sequence[int], load: list[int]) -> int:
        first, second = pairs.pair(ask(names))  # the draws are the router's own
        return second if load[second] < load[first] else first

    def prefix(_: int, names: Sequence[int], load: list[int]) -> int:
        known = 0
        while known < len(names) and names[known] in sent_to:
            known += 1
        holders = [sent_to[name] for name in reversed(names[:known])]
        calm = [holder for holder in holders if load[holder] <= 1.5 * min(load) + 4]
        chosen = calm[0] if calm else least(load)
        sent_to.update(dict.fromkeys(names, chosen))
        return chosen

    choices: dict[str, Choose] = {
        "round-robin": lambda i, names, load: next(counter) % replicas,
        "random": lambda i, names, load: draws.next(),
        "sticky": sticky,
        "least-outstanding": lambda i, names, load: least(load),
        "power-of-two": two,
        "prefix-aware": prefix,
    }
    return choices[router]


@settled(250)
@given(FLEET_WORLDS, HOSTS, st.sampled_from(ROUTERS), REPLICAS, st.integers(0, 3))
def test_every_request_goes_where_the_router_promises(
    world: World, host: HostTerms, router: str, replicas: int, seed: int
) -> None:
    fleet = Fleet(world, replicas, host).run(serving_router(router, replicas, seed))
    slow = SlowFleet(world, replicas, promised(router, world, replicas, seed), host).run()
    everyone = range(len(world.asks))
    assert fleet.desk.replica.tolist() == [slow.replica.get(i, -1) for i in everyone]
    assert fleet.desk.arrival.tolist() == [slow.arrival[i] for i in everyone]
    for i, taken in slow.taken.items():
        assert fleet.desk.taken[i] == taken
    assert np.isnan(fleet.desk.taken).sum() == len(world.asks) - len(slow.taken)
    assert fleet.ends() == slow.end
    for engine, reference in zip(fleet.engines, slow.engines, strict=True):
        assert_same_records(engine.log, reference.log)


# -- two drivers ------------------------------------------------------------------------------------------------------


@settled(150)
@given(FLEET_WORLDS, HOSTS, st.sampled_from(BLIND), REPLICAS, st.integers(0, 3))
def test_engines_apart_do_what_they_do_on_one_clock(
    world: World, host: HostTerms, router: str, replicas: int, seed: int
) -> None:
    apart, together = Fleet(world, replicas, host), Fleet(world, replicas, host)
    if world.reactive and (router != "sticky" or apart.desk.refused):
        return  # a follower's replica depends on who else arrives meanwhile
    _run_apart(apart.engines, apart.desk, serving_router(router, replicas, seed), _Meter(None, 0))
    FleetDriver(
        together.engines, together.desk, serving_router(router, replicas, seed), None, _Meter(None, 0).ended
    ).run()
    assert apart.desk.replica.tolist() == together.desk.replica.tolist()
    assert apart.desk.arrival.tolist() == together.desk.arrival.tolist()
    assert np.array_equal(apart.desk.taken, together.desk.taken, equal_nan=True)
    for one, other in zip(apart.engines, together.engines, strict=True):
        assert_same_records(one.log, other.log)


# -- nothing is lost --------------------------------------------------------------------------------------------------


@settled(150)
@given(FLEET_WORLDS, st.sampled_from(ROUTERS), REPLICAS)
def test_nobody_is_lost_and_followers_think_first(world: World, router: str, replicas: int) -> None:
    fleet = Fleet(world, replicas).run(serving_router(router, replicas, seed=5))
    ends = fleet.ends()
    desk = fleet.desk
    assert set(ends) | set(desk.refused) == set(range(len(world.asks)))
    assert not set(ends) & set(desk.refused)
    for i, ask in enumerate(world.asks):
        arrival = desk.arrival[i]
        if ask.after < 0:
            assert arrival == ask.at
        else:
            assert arrival == ends.get(ask.after, desk.arrival[ask.after]) + ask.think
        if i in desk.refused:
            assert desk.replica[i] == -1
        else:
            assert i in fleet.engines[desk.replica[i]].log.ended["index"]
            assert ends[i] > arrival
    for engine in fleet.engines:
        assert not engine.outstanding and engine.scheduler.kv.free == world.limits.blocks


@settled(60)
@given(worlds(most=14, costs=RISING_COSTS), REPLICAS)
def test_a_session_stays_where_it_began(world: World, replicas: int) -> None:
    fleet = Fleet(world, replicas).run(serving_router("sticky", replicas, seed=0))
    for i in range(len(world.asks)):
        assert fleet.desk.replica[i] == fleet.desk.replica[session_of(world, i)]
    roots = [i for i, ask in enumerate(world.asks) if ask.after < 0]
    assert fleet.desk.replica[roots].tolist() == [k % replicas for k in range(len(roots))]


@settled(60)
@given(
    users=st.integers(1, 5),
    rounds=st.integers(1, 6),
    lengths=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=5, max_size=5),
    think=st.sampled_from([0.0, 0.7]),
    replicas=REPLICAS,
    router=st.sampled_from(ROUTERS),
)
def test_a_closed_loop_never_has_more_outstanding_than_users(
    users: int, rounds: int, lengths: list[tuple[int, int]], think: float, replicas: int, router: str
) -> None:
    asks = []
    for i in range(users * rounds):
        prompt, output = lengths[i % len(lengths)]
        asks.append(Ask(prompt, output, at=0.1 * i if i < users else 0.0, after=max(i - users, -1), think=think))
    world = World(Limits(8, 64, block_size=8, max_num_seqs=3), LinearCost(0.1, 0.01, 0.0), tuple(asks))
    fleet = Fleet(world, replicas).run(serving_router(router, replicas, seed=1))
    ends = fleet.ends()
    changes = sorted([(fleet.desk.arrival[i], 1) for i in range(len(asks))] + [(end, -1) for end in ends.values()])
    outstanding = np.cumsum([change for _, change in changes])
    assert len(ends) == len(asks)
    assert outstanding.max() <= users and outstanding[-1] == 0


# -- routers alone ----------------------------------------------------------------------------------------------------


@settled(100)
@given(st.integers(1, 5), st.lists(st.integers(-5, 5), max_size=400))
def test_the_least_loaded_is_known_at_any_time(replicas: int, moves: list[int]) -> None:
    router = serving_router("least-outstanding", replicas, 0)
    load = [0] * replicas
    for move in moves:
        if move < 0 and load[-move % replicas]:
            load[-move % replicas] -= 1
            router.ended(ask(), -move % replicas)
        else:
            chosen = router.choose(ask())
            assert chosen == load.index(min(load))
            load[chosen] += 1


def test_random_routers_spread_evenly_and_differ_by_seed() -> None:
    for name in ("random", "power-of-two"):
        router = serving_router(name, 4, seed=3)
        counts = np.bincount([router.choose(ask()) for _ in range(8000)], minlength=4)
        assert counts.min() > 1800, name
    sequences = []
    for seed in (1, 1, 2):
        router = serving_router("random", 4, seed)
        sequences.append([router.choose(ask()) for _ in range(50)])
    assert sequences[0] == sequences[1] != sequences[2]


@pytest.mark.parametrize("replicas", [2, 3])
def test_power_of_two_compares_two_different_replicas(replicas: int) -> None:
    """So a replica busier than all others is never the less loaded of the two."""
    router = serving_router("power-of-two", replicas, seed=0)
    assert isinstance(router, CountedLoads)
    for _ in range(500):
        load = list(router.counts)
        chosen = router.choose(ask())
        assert load[chosen] < max(load) or load.count(max(load)) > 1


def test_a_prefix_is_followed_until_its_replica_is_much_busier() -> None:
    router = serving_router("prefix-aware", 3, seed=0)
    assert router.choose(ask([1, 2, 3])) == 0
    assert router.choose(ask([9])) == 1
    assert [router.choose(ask([1, 2])) for _ in range(4)] == [0, 0, 0, 0]  # up to four more than nobody's
    assert router.choose(ask([1, 2, 3])) == 2
    assert router.choose(ask([1, 2, 3])) == 2  # where it was last sent
    assert router.choose(ask([7])) == 1


# -- the desk ---------------------------------------------------------------------------------------------------------


@settled(100)
@given(worlds(everyone_fits=False))
def test_the_desk_refuses_whom_the_engine_would(world: World) -> None:
    desk = Desk(world.workload(), [world.limits])
    reasons = {i: world.refusal(i) for i in range(len(world.asks))}
    assert desk.refused == {i: reason for i, reason in reasons.items() if reason is not None}


@settled(100)
@given(worlds())
def test_the_desk_makes_the_requests_that_were_asked_for(world: World) -> None:
    desk = Desk(world.workload(), [world.limits])
    made = {r.index: r for r, _ in desk.requests(desk.roots)}
    assert sorted(made) == [i for i, ask in enumerate(world.asks) if ask.after < 0]
    for i, ask in enumerate(world.asks):
        one = desk.request(i, ask.at)
        expected = world.request(i, ask.at, desk.names)
        for r in [one, *([made[i]] if i in made else [])]:
            assert figures(r) == figures(expected)
            assert list(r.keys) == list(expected.keys)
            assert desk.abort_at(r) == ask.at + ask.abort


def figures(r: Request) -> tuple[object, ...]:
    return r.index, r.arrival, r.prompt, r.output, r.priority, r.accept, r.chain


# -- the same again ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("router", ROUTERS)
def test_the_same_seed_gives_the_same_bits(router: str) -> None:
    digests = {Fleet(busy_world(), 3).run(serving_router(router, 3, seed=4)).digest() for _ in range(2)}
    assert len(digests) == 1


def test_no_order_of_hashes_shows() -> None:
    script = (
        "from steelyard.balance.route.serving import serving_router\n"
        "from support.fleet_worlds import Fleet, busy_world\n"
        f"for name in {ROUTERS!r}: print(Fleet(busy_world(), 3).run(serving_router(name, 3, 4)).digest())"
    )
    printed = set()
    for hashes in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hashes, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        printed.add(done.stdout)
    assert len(printed) == 1
    assert len(set(printed.pop().split())) > 3  # routers do differ here


def test_progress_counts_every_request_once() -> None:
    told: list[int] = []
    asks = tuple(Ask(8, 4, at=0.1 * i) for i in range(300))
    for router in ROUTERS:
        fleet = Fleet(World(Limits(64, 64, block_size=8), LinearCost(0.01, 0.0, 0.0), asks), 2)
        told.clear()
        run_fleet(fleet.engines, fleet.desk, serving_router(router, 2, 0), told.append)
        assert told == sorted(set(told)) and len(told) >= 2
        assert 200 < told[-1] <= 300


def test_load_follows_the_faster_end() -> None:
    """By hand: the short request on replica 1 ends at 4, so requests from then on find that replica free."""
    asks = (Ask(4, 40), Ask(4, 4), Ask(4, 4, at=4.0), Ask(4, 4, at=4.5))
    for asynchronous in (False, True):
        limits = Limits(64, 64, block_size=8, async_scheduling=asynchronous)
        world = World(limits, LinearCost(1.0, 0.0, 0.0), asks)
        fleet = Fleet(world, 2).run(serving_router("least-outstanding", 2, 0))
        assert fleet.ends()[1] == 4.0
        assert fleet.desk.replica.tolist() == [0, 1, 1, 0]
