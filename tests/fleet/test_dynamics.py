"""Fleets that change while they serve: timelines worked out by hand, and random worlds with random crashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, isnan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.balance.autoscale import ByQueue, BySlo, PoolView, Scaling
from steelyard.balance.route import RoutedRequest
from steelyard.balance.route.serving import CountedLoads, serving_router
from steelyard.cost.step import StepTime
from steelyard.engine import FINISHED, LOST, Engine, Limits, Request
from steelyard.errors import UserError
from steelyard.fleet import Desk, run_fleet
from steelyard.fleet.dynamics import Crash, DynamicFleet, Dynamics, ReplicaPool, SlowGpu, SlowLink
from steelyard.fleet.handover import Handover, Transfers
from steelyard.fleet.links import Link, Port, Ports
from steelyard.fleet.uptime import HELD, PRESENT_OR_COMING, SERVES, ReplicaState
from steelyard.scenario import Scenario, load_scenario, scenario_from_dict
from steelyard.sim import simulate
from steelyard.sim.attempts import EnginePart, gaps_between
from steelyard.sim.gaps import TokenGaps
from steelyard.sim.request_table import request_table
from support.engine_worlds import RISING_COSTS, Ask, TwoKinds, World, settled, worlds
from support.fleet_worlds import patient
from support.known import known
from support.paths import EXAMPLES

HAND = TwoKinds(decode=StepTime(1.0, 0.0, 0.0, 0.0), other=StepTime(4.0, 0.0, 0.0, 0.0))
PLAIN = Limits(blocks=100, max_model_len=1000, block_size=4, max_num_seqs=8, async_scheduling=False)
ROUTERS = ["round-robin", "random", "sticky", "least-outstanding", "power-of-two", "prefix-aware", "sticky-spill"]
ROUTERS += ["kv-aware", "slo-aware"]


@dataclass
class Fleet:
    """Replicas that serve, or some that compute prompts and some that answer, under what happens to them."""

    world: World
    replicas: int = 1
    changes: Sequence[Crash | SlowGpu] = ()
    narrow: tuple[float, float, float] | None = None  # of the first port out: from, until, factor
    decodes: int = 0
    begins: int | None = None
    scaling: Scaling | None = None
    router: str = "least-outstanding"
    bandwidth: float = inf
    first_from_prefill: bool = False
    plain: bool = False
    engines: list[Engine] = field(default_factory=list)

    def run(self) -> Fleet:
        world, n = self.world, self.replicas + self.decodes
        stages = [[world.limits]] * (2 if self.decodes else 1)
        self.desk = Desk(world.workload(), *stages)
        self.engines = [
            Engine(
                world.limits,
                world.cost,
                self.desk.names,
                reactive=world.reactive or (k < self.replicas and self.decodes > 0),
                plain=self.plain,
            )
            for k in range(n)
        ]
        handover = None
        changes: list[Crash | SlowGpu | SlowLink] = list(self.changes)
        if self.decodes:
            ends = [
                [Port(Link(self.bandwidth), Link(inf), node) for _ in range(count)]
                for node, count in enumerate((self.replicas, self.decodes))
            ]
            transfers = Transfers(100.0, 4, Ports(*ends), 0.0, False, self.first_from_prefill)
            handover = Handover(serving_router("least-outstanding", self.decodes, 1), transfers)
            if self.narrow is not None:
                begin, until, factor = self.narrow
                changes.append(SlowLink(begin, until, ends[0][0].nic, factor))
        pools = [ReplicaPool(range(self.replicas), self.replicas if self.begins is None else self.begins, self.scaling)]
        if self.decodes:
            pools.append(ReplicaPool(range(self.replicas, n), self.decodes))
        self.dynamics = Dynamics(pools, changes)
        router = serving_router(self.router, self.replicas, 0)
        fleet = DynamicFleet(self.engines, self.desk, router, handover, lambda done: None, self.dynamics)
        fleet.run()
        assert not any(fleet.placements.count) and not fleet.placements.where
        assert not fleet.presence.waiting and not fleet.presence.unplaced
        for each in (router, handover.router if handover else None):
            if isinstance(each, CountedLoads):
                assert not any(each.counts), "routers know of every end"
        if handover is not None:
            assert not handover.waiting and handover.network.next_end == inf
        return self

    @property
    def parts(self) -> list[EnginePart]:
        if not self.decodes:
            return [EnginePart()] * self.replicas
        first = self.first_from_prefill
        return [EnginePart(first=first, ends=False)] * self.replicas + [
            EnginePart(begins=False, first=not first)
        ] * self.decodes

    def table(self) -> dict[str, list[Any]]:
        logs = [engine.log for engine in self.engines]
        retries = self.dynamics.retries_of(len(self.world.asks))
        table = request_table(self.desk.workload, self.desk, logs, self.parts, retries)
        return {name: column.tolist() for name, column in table.items()}

    def digest(self) -> list[bytes]:
        return [each for engine in self.engines for each in (engine.log.ends.tobytes(), engine.log.requests.tobytes())]

    def gaps(self) -> list[float]:
        return list(gaps_between([engine.log for engine in self.engines], self.parts))


def asks(*prompts: int, output: int = 3, limits: Limits = PLAIN) -> World:
    return World(limits, HAND, tuple(Ask(prompt, output) for prompt in prompts))


# -- crashes by hand --------------------------------------------------------------------------------------------------


def test_a_lone_engine_crashes_and_serves_after_its_restart() -> None:
    """Tokens at 4 and 5, a crash at 5.5 under way to the third; back at 10: 14 and 15 are old news, 16 is not."""
    fleet = Fleet(asks(10), changes=[Crash(5.5, 0, 4.5)]).run()
    table = fleet.table()
    assert (table["first_token"], table["finish"], table["retries"]) == ([4.0], [16.0], [1])
    assert (table["scheduled"], table["tpot"]) == ([0.0], [6.0])
    log = fleet.engines[0].log
    assert log.ends.tolist() == [4.0, 5.0, 5.5, 14.0, 15.0, 16.0]
    assert log.steps()["start"].tolist() == [0.0, 4.0, 5.0, 10.0, 14.0, 15.0]
    seconds, count = log.gaps()
    assert (seconds.tolist(), count.tolist(), fleet.gaps()) == ([1.0], [1], [11.0])


def test_another_replica_takes_over_at_once() -> None:
    """Both begin at 0; the one on replica 0 goes to replica 1 at 6, where the other ends at 6."""
    fleet = Fleet(asks(10, 10), replicas=2, changes=[Crash(6.0, 0, 100.0)]).run()
    table = fleet.table()
    assert (table["finish"], table["retries"], table["replica"]) == ([6.0, 6.0], [0, 0], [0, 1])  # the step had ended
    table = Fleet(asks(10, 10), replicas=2, changes=[Crash(5.9, 0, 100.0)]).run().table()
    assert (table["finish"], table["retries"], table["replica"]) == ([12.0, 6.0], [1, 0], [1, 1])
    assert table["first_token"] == [4.0, 4.0]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_step_that_has_not_ended_brings_nothing(asynchronous: bool) -> None:
    """The last token would come at 6: the crash at 5.9 undoes it, though the engine had decided all there was."""
    limits = replace(PLAIN, async_scheduling=asynchronous)
    fleet = Fleet(asks(10, limits=limits), changes=[Crash(5.9, 0, 0.1)]).run()
    assert (fleet.table()["finish"], fleet.table()["first_token"]) == ([12.0], [4.0])
    assert fleet.engines[0].log.ended["status"].tolist() == [LOST, FINISHED]
    assert fleet.dynamics.crashed == 1


def test_a_prefix_cached_at_the_new_place_is_used() -> None:
    """Replica 1 has computed the same prompt of 8 tokens before, all but the last block's worth is found there."""
    world = World(PLAIN, HAND, tuple(Ask(9, 3, content=((0, 9),)) for _ in range(2)))
    table = Fleet(world, replicas=2, changes=[Crash(5.5, 0, 100.0)]).run().table()
    assert table["cached"] == [8, 0]
    assert table["finish"] == [9.0, 6.0]  # the last token alone is computed again: 7, and then 8 and 9


def test_who_has_given_up_is_not_retried_for_ever() -> None:
    world = World(PLAIN, HAND, (Ask(10, 3, abort=7.0), Ask(10, 3, at=6.5, abort=2.0)))
    table = Fleet(world, changes=[Crash(5.5, 0, 100.0)]).run().table()
    assert table["status"] == ["aborted", "aborted"]
    assert (table["finish"], table["retries"]) == ([7.0, 8.5], [1, 0])
    assert table["first_token"][0] == 4.0 and isnan(table["first_token"][1])


def test_nobody_waits_in_silence_for_a_fleet_that_is_gone() -> None:
    with pytest.raises(UserError, match="1 requests wait for a replica that never comes up again"):
        Fleet(asks(10), changes=[Crash(5.5, 0, inf)]).run()


def test_crashes_of_what_is_not_up_do_nothing() -> None:
    changes = [Crash(5.5, 0, 10.0), Crash(7.0, 0, 0.5), Crash(500.0, 0, 1.0)]
    fleet = Fleet(asks(10), changes=changes).run()
    assert fleet.dynamics.crashed == 1 and fleet.table()["finish"] == [15.5 + 6.0]


# -- prompts computed apart -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_from_prefill", [False, True])
def test_a_decode_engine_crashes(first_from_prefill: bool) -> None:
    """Prompt until 4, a token at 5 there, a crash at 5.5: the prompt is computed again until 9.5, then all of it."""
    fleet = Fleet(asks(10), 1, [Crash(5.5, 1, 1.0)], decodes=1, first_from_prefill=first_from_prefill).run()
    table = fleet.table()
    first, last = (4.0, 11.5) if first_from_prefill else (5.0, 12.5)
    assert (table["first_token"], table["finish"], table["retries"]) == ([first], [last], [1])
    assert fleet.engines[0].log.ended["status"].tolist() == [LOST, FINISHED]
    assert fleet.gaps()[-1] == 6.5  # from 5 to 11.5: what comes before that is known


def test_a_prefill_engine_crashes_while_its_prompt_is_being_fetched() -> None:
    """1,000 bytes from 4 to 14; the crash at 9 leaves half of them; again from 10: prompt until 14, sent until 24."""
    fleet = Fleet(asks(10), 1, [Crash(9.0, 0, 1.0)], decodes=1, bandwidth=100.0).run()
    table = fleet.table()
    assert (table["first_token"], table["finish"], table["retries"]) == ([25.0], [27.0], [1])


def test_a_prompt_waits_for_a_decode_engine_to_come_up() -> None:
    fleet = Fleet(asks(10), 1, [Crash(2.0, 1, 8.0)], decodes=1).run()
    assert (fleet.table()["first_token"], fleet.table()["retries"]) == ([11.0], [0])


def test_what_has_been_fetched_outlives_its_prefill_engine() -> None:
    fleet = Fleet(asks(10), 1, [Crash(5.5, 0, 1.0)], decodes=1).run()
    assert (fleet.table()["finish"], fleet.table()["retries"]) == ([7.0], [0])


# -- slow GPUs and narrow links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True])
def test_steps_decided_meanwhile_take_longer(plain: bool) -> None:
    """Prompt until 4, tokens at 5 and 6; those decided from 6 to 10 take 2 s: 8, 10; then 11, 12."""
    fleet = Fleet(asks(10, output=7), changes=[SlowGpu(5.5, 10.0, 0, 2.0)], plain=plain).run()
    assert fleet.engines[0].log.ends.tolist() == [4.0, 5.0, 6.0, 8.0, 10.0, 11.0, 12.0]


def test_factors_on_one_gpu_multiply() -> None:
    changes = [SlowGpu(4.0, 100.0, 0, 2.0), SlowGpu(4.0, 10.0, 0, 1.5)]
    fleet = Fleet(asks(10, output=5), changes=changes).run()
    assert fleet.engines[0].log.ends.tolist() == [4.0, 7.0, 10.0, 12.0, 14.0]


def test_an_end_is_known_in_time_when_a_gpu_is_fast_again() -> None:
    """The second would end at 16 if it stayed slow; tokens at 8, 10, 11, 12, 13 free its replica for the third."""
    world = World(PLAIN, HAND, (Ask(10, 40), Ask(10, 5), Ask(10, 3, at=14.0)))
    table = Fleet(world, 2, [SlowGpu(0.0, 8.5, 1, 2.0)]).run().table()
    assert (table["finish"][1], table["replica"]) == (13.0, [0, 1, 1])


def test_a_transfer_goes_slower_while_its_link_is_narrow() -> None:
    """1,000 bytes at 500 a second from 4: a second's worth, then a fifth of it for 2 s, then the other 300 bytes."""
    fleet = Fleet(asks(10), 1, decodes=1, bandwidth=500.0, narrow=(5.0, 7.0, 0.2)).run()
    assert fleet.table()["first_token"] == [pytest.approx(7.6 + 1.0)]


# -- autoscaling ------------------------------------------------------------------------------------------------------


def states(fleet: Fleet) -> list[tuple[float, int, str]]:
    return [(at, replica, state.value) for at, replica, state in fleet.dynamics.uptime.changes]


def test_a_queue_brings_replicas_and_its_end_takes_them_away() -> None:
    """Six at once on one replica that should have two: two more from the look at 1, up at 3, for whoever comes then."""
    world = World(PLAIN, HAND, (*(Ask(10, 3) for _ in range(6)), Ask(10, 3, at=3.0), Ask(10, 30, at=8.0)))
    scaling = Scaling(1, 3, startup=2.0, rule=ByQueue(2.0), every=1.0)
    fleet = Fleet(world, 3, begins=1, scaling=scaling).run()
    assert states(fleet)[:5] == [
        (0.0, 0, "up"),
        (1.0, 1, "starting"),
        (1.0, 2, "starting"),
        (3.0, 1, "up"),
        (3.0, 2, "up"),
    ]
    assert fleet.table()["replica"] == [0, 0, 0, 0, 0, 0, 1, 0]
    # Six end at 6, the seventh at 9: nobody is on replica 2, which goes at once, and replica 1 drains until 9.
    assert states(fleet)[5:] == [(6.0, 2, "draining"), (6.0, 2, "off"), (6.0, 1, "draining"), (9.0, 1, "off")]
    assert fleet.dynamics.uptime.seconds(range(3), HELD, 0.0, 10.0) == 10.0 + 8.0 + 5.0
    assert fleet.dynamics.uptime.seconds(range(3), SERVES, 0.0, 10.0) == 10.0 + 6.0 + 3.0
    assert fleet.dynamics.uptime.counts(range(3), SERVES) == [(0.0, 1), (3.0, 3), (6.0, 2), (9.0, 1)]


def test_a_schedule_is_kept() -> None:
    world = World(PLAIN, HAND, tuple(Ask(10, 3, at=float(at)) for at in range(0, 40, 5)))
    scaling = Scaling(1, 2, startup=3.0, schedule=((10.0, 2), (20.0, 1)))
    fleet = Fleet(world, 2, begins=1, scaling=scaling).run()
    assert [each for each in states(fleet) if each[1] == 1][:3] == [
        (10.0, 1, "starting"),
        (13.0, 1, "up"),
        (20.0, 1, "draining"),
    ]


def test_misses_of_a_limit_bring_a_replica_and_cool_down() -> None:
    """A rule alone: above the limit one more, then nothing for the cool-down, then fewer once all is far below."""
    rule = BySlo({"ttft": 1.0}, window=10.0, percentile=90, slack=0.5, step=1)
    scaling = Scaling(1, 3, startup=0.0, rule=rule, cooldown=5.0)
    rule.note("ttft", 1.0, 3.0)
    assert [
        scaling.wanted(PoolView(2.0, 1, 4)),
        scaling.wanted(PoolView(3.0, 2, 4)),
        scaling.wanted(PoolView(7.0, 2, 4)),
    ] == [2, 2, 3]
    assert scaling.bounded(4) == 3 and scaling.bounded(0) == 1
    rule.note("ttft", 11.5, 0.7)
    assert scaling.wanted(PoolView(13.0, 3, 4)) == 3  # neither over the limit nor far below it
    rule.note("ttft", 25.0, 0.1)
    assert scaling.wanted(PoolView(26.0, 3, 4)) == 2
    assert scaling.wanted(PoolView(40.0, 2, 4)) == 3  # nobody got anything for a whole window, and some wait
    assert [
        scaling.wanted(PoolView(50.0, 3, 0)),
        scaling.wanted(PoolView(60.0, 2, 0)),
        scaling.wanted(PoolView(70.0, 1, 0)),
    ] == [2, 1, 1]


@pytest.mark.parametrize(("metric", "limit"), [("ttft", 3.0), ("tpot", 0.5)])
def test_what_requests_saw_reaches_the_rule(metric: str, limit: float) -> None:
    """A prompt takes 4 s and a token 1 s, both too long: replicas come up to the most there may be."""
    world = World(PLAIN, HAND, tuple(Ask(10, 3, at=2.0 * k) for k in range(20)))
    rule = BySlo({metric: limit}, window=10.0, percentile=50, slack=0.5, step=1)
    fleet = Fleet(world, 3, begins=1, scaling=Scaling(1, 3, startup=1.0, rule=rule, every=4.0)).run()
    starts = [at for at, _, state in states(fleet) if state == "starting"]
    assert starts == [4.0, 8.0]
    assert set(fleet.table()["replica"]) == {0, 1, 2}


def test_a_replica_that_is_being_stopped_is_not_restarted_after_a_crash() -> None:
    world = World(PLAIN, HAND, (Ask(10, 30), Ask(10, 30)))
    scaling = Scaling(1, 2, startup=1.0, schedule=((6.0, 1),))
    fleet = Fleet(world, 2, [Crash(8.0, 1, 1.0)], scaling=scaling).run()
    assert states(fleet)[2:] == [(6.0, 1, "draining"), (8.0, 1, "off")]
    assert fleet.table()["retries"] == [0, 1] and set(fleet.table()["status"]) == {"finished"}


# -- routers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROUTERS)
def test_no_router_chooses_a_replica_that_is_not_there(name: str) -> None:
    router = serving_router(name, 4, 3)
    for replica in (0, 2):
        router.available(replica, False)
    chosen = [router.choose(RoutedRequest(i, i % 5, (1, 2), 20)) for i in range(40)]
    assert set(chosen) == {1, 3} or (set(chosen) <= {1, 3} and name in ("prefix-aware", "kv-aware"))
    router.available(1, False)
    chosen += [router.choose(RoutedRequest(i, i % 5, (1, 2), 20)) for i in range(40, 60)]
    assert set(chosen[40:]) == {3}
    for replica in (0, 1, 2):
        router.available(replica, True)
    for i in range(60):
        router.ended(RoutedRequest(i, i % 5, (1, 2), 20), chosen[i])
    spread = {router.choose(RoutedRequest(i, i, (1000 + i,), 20)) for i in range(60, 120)}
    assert spread == {0, 1, 2, 3}


# -- random worlds ----------------------------------------------------------------------------------------------------

CRASHES = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 20).map(float), st.floats(0, 20, allow_nan=False)),
        st.integers(0, 3),
        st.sampled_from([0.0, 0.25, 1.0, 7.5]),
    ),
    max_size=4,
)
SLOW = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9), st.integers(0, 3)), max_size=2)
ORDINARY = worlds(most=10, costs=RISING_COSTS).map(patient)
WORLDS = st.one_of(ORDINARY, worlds(most=8, costs=RISING_COSTS, speculation=True).map(patient))


def random_fleet(
    world: World,
    shape: tuple[int, int, float, bool],
    crashes: list[tuple[float, int, float]],
    slow: list[tuple[int, int, int]],
    router: str,
    plain: bool = False,
) -> Fleet:
    replicas, decodes, bandwidth, first = shape
    n = replicas + decodes
    changes: list[Crash | SlowGpu] = [Crash(at, replica % n, back) for at, replica, back in crashes]
    changes += [SlowGpu(float(at), float(at + takes), replica % n, 1.7) for at, takes, replica in slow]
    return Fleet(world, replicas, changes, None, decodes, None, None, router, bandwidth, first, plain).run()


SHAPES = st.one_of(
    st.tuples(st.integers(1, 3), st.just(0), st.just(inf), st.just(False)),
    st.tuples(st.integers(1, 2), st.integers(1, 2), st.sampled_from([inf, 20_000.0, 700.0]), st.booleans()),
)


def check(fleet: Fleet) -> None:
    """Nobody is lost or answered twice, time goes on, and every block comes back."""
    table = fleet.table()
    patient = all(ask.abort == inf for ask in fleet.world.asks)
    answering = fleet.engines[fleet.replicas :] if fleet.decodes else fleet.engines
    ends = [
        (int(i), int(status))
        for engine in answering
        for i, status in zip(engine.log.ended["index"], engine.log.ended["status"], strict=True)
        if status != LOST
    ]
    assert len({i for i, _ in ends}) == len(ends)
    answered = {i for i, status in ends if status == FINISHED}
    for i, status in enumerate(table["status"]):
        assert np.isfinite(table["arrival"][i])
        if status == "finished":
            times = [table[name][i] for name in ("arrival", "scheduled", "first_token", "finish")]
            assert times == sorted(times)
            assert fleet.decodes or i in answered
        if patient:
            assert (status == "finished") == (i not in fleet.desk.refused)
    for engine in fleet.engines:
        log, scheduler = engine.log, engine.scheduler
        assert not engine.outstanding and not engine.finished and not scheduler.running and not scheduler.waiting
        assert scheduler.kv.free == engine.limits.blocks
        starts, ends_at = log.steps()["start"], log.steps()["end"]
        assert (np.diff(ends_at) >= 0).all() and (ends_at >= starts).all() and (np.diff(starts) >= 0).all()
        first, last = log.ended["first"], log.ended["last"]
        assert ((first < 0) == (last < 0)).all() and (first <= last).all()
    assert all(seconds >= 0 for seconds in fleet.gaps())
    if not fleet.decodes and not fleet.world.limits.speculative_tokens and patient:
        pairs = TokenGaps.of([engine.log for engine in fleet.engines]).total + len(fleet.gaps())
        done = [i for i, status in enumerate(table["status"]) if status == "finished"]
        assert pairs == sum(table["output"][i] - 1 for i in done), "each token is shown once"


@settled(120)
@given(WORLDS, SHAPES, CRASHES, SLOW, st.sampled_from(ROUTERS))
def test_nobody_is_lost_or_answered_twice(
    world: World,
    shape: tuple[int, int, float, bool],
    crashes: list[tuple[float, int, float]],
    slow: list[tuple[int, int, int]],
    router: str,
) -> None:
    check(random_fleet(world, shape, crashes, slow, router))


@settled(80)
@given(ORDINARY, SHAPES, CRASHES, SLOW)
def test_short_cuts_change_nothing(
    world: World,
    shape: tuple[int, int, float, bool],
    crashes: list[tuple[float, int, float]],
    slow: list[tuple[int, int, int]],
) -> None:
    fast, plain = (random_fleet(world, shape, crashes, slow, "round-robin", plain) for plain in (False, True))
    assert fast.digest() == plain.digest()
    assert repr(fast.table()) == repr(plain.table())


@settled(40)
@given(ORDINARY, st.integers(1, 3), st.sampled_from(ROUTERS))
def test_without_changes_all_is_as_ever(world: World, replicas: int, router: str) -> None:
    fleet = Fleet(world, replicas, router=router).run()
    desk = Desk(world.workload(), [world.limits])
    engines = [Engine(world.limits, world.cost, desk.names, reactive=world.reactive) for _ in range(replicas)]
    run_fleet(engines, desk, serving_router(router, replicas, 0))
    still = [each for engine in engines for each in (engine.log.ends.tobytes(), engine.log.requests.tobytes())]
    assert fleet.digest() == still and fleet.desk.replica.tolist() == desk.replica.tolist()


@settled(60)
@given(
    ORDINARY,
    st.integers(1, 2),
    st.integers(0, 2),
    st.sampled_from([0.0, 0.7, 3.0]),
    st.sampled_from([ByQueue(1.0), ByQueue(2.5), "ttft", "tpot"]),
    st.sampled_from([0.0, 2.0]),
    CRASHES,
    st.sampled_from(ROUTERS),
)
def test_a_pool_keeps_its_bounds_and_drains_before_it_stops(
    world: World,
    least: int,
    more: int,
    startup: float,
    rule: ByQueue | str,
    cooldown: float,
    crashes: list[tuple[float, int, float]],
    router: str,
) -> None:
    most = least + more
    chosen = BySlo({rule: 0.5}, 3.0, 90, 0.5, 1) if isinstance(rule, str) else rule
    scaling = Scaling(least, most, startup, chosen, 0.9, cooldown)
    changes = [Crash(at, replica % most, back) for at, replica, back in crashes]
    fleet = Fleet(world, most, changes, begins=least, scaling=scaling, router=router).run()
    check(fleet)
    now = [ReplicaState.OFF] * most
    crashed = {change.at for change in changes}
    changes_at = fleet.dynamics.uptime.changes
    for k, (at, replica, state) in enumerate(changes_at):
        if state is ReplicaState.OFF and at not in crashed:
            assert now[replica] is not ReplicaState.UP, "stopped without draining"
        now[replica] = state
        if k + 1 == len(changes_at) or changes_at[k + 1][0] > at:
            assert least <= sum(each in PRESENT_OR_COMING for each in now) <= most
    for replica, engine in enumerate(fleet.engines):
        serving = _serving(fleet, replica)
        steps = engine.log.steps()
        for start, end in zip(steps["start"], steps["end"], strict=True):
            assert any(begin <= start and end <= stop + 1e-9 for begin, stop in serving)


def _serving(fleet: Fleet, replica: int) -> list[tuple[float, float]]:
    """When a replica served; the engine may still run an empty step behind its last answer."""
    found: list[tuple[float, float]] = []
    since: float | None = None
    for at, which, state in fleet.dynamics.uptime.changes:
        if which == replica:
            if state in SERVES and since is None:
                since = at
            elif state not in SERVES and since is not None:
                found.append((since, at))
                since = None
    return found if since is None else [*found, (since, inf)]


# -- scenarios --------------------------------------------------------------------------------------------------------


def scenario(**changes: Any) -> Scenario:
    data = {
        "model": "llama-3.1-8b",
        "fleet": {"gpu": "h100", "replicas": 2, "router": "least-outstanding"},
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 20},
            "requests": 300,
            "prompt": {"kind": "lognormal", "median": 500, "p95": 2000},
            "output": {"kind": "lognormal", "median": 100, "p95": 300},
        },
        "cost": {"source": "analytic"},
    }
    return scenario_from_dict(data | changes)


CRASH = {"at": 5, "crash": {"replica": 1, "restart_after": 4}}


def test_a_crash_in_a_scenario() -> None:
    calm, hit = simulate(scenario()), simulate(scenario(dynamics=[CRASH]))
    retries = hit.requests["retries"]
    found = known(hit.summary.dynamics)
    assert found.crashes == 1 and found.retried_requests == int((retries > 0).sum()) > 0
    assert found.pools[0].replicas == ((0.0, 2), (5.0, 1), (9.0, 2))
    start = float(hit.requests["arrival"].min())
    held = 2 * hit.summary.duration_s
    assert hit.summary.gpu_hours == pytest.approx(held / 3600)  # a crashed engine keeps its GPU
    assert found.gpu_hours_up == pytest.approx((held - 4.0) / 3600) and start < 5
    assert hit.summary.outcomes == calm.summary.outcomes and not calm.requests["retries"].any()
    assert hit.summary.itl.count == calm.summary.itl.count  # no token twice
    for name in ("first_token", "finish"):
        before = calm.requests[name] < 5.0
        assert (hit.requests[name][before] == calm.requests[name][before]).all()
    assert (hit.requests["ttft"][retries > 0] < hit.requests["e2e"][retries > 0]).all()
    plain = simulate(scenario(dynamics=[CRASH]), plain=True)
    for name, column in plain.requests.items():
        assert repr(column.tolist()) == repr(hit.requests[name].tolist()), name
    assert plain.summary.dynamics == found


def test_what_comes_after_the_end_is_said_to_do_nothing() -> None:
    result = simulate(scenario(dynamics=[{"at": 500, "crash": {}}]))
    assert known(result.summary.dynamics).crashes == 0
    assert [note for note in result.notes if note.startswith("dynamics: nothing happens at 500 s")]


def test_gpus_of_a_pool_that_grows_count_from_when_they_are_asked_for() -> None:
    scale = {
        "max": 3,
        "by": "schedule",
        "startup": 3,
        "schedule": [{"at": 4, "replicas": 3}, {"at": 12, "replicas": 1}],
    }
    fleet = {"gpu": "h100", "router": "least-outstanding", "autoscale": scale}
    result = simulate(scenario(fleet=fleet))
    counts = known(result.summary.dynamics).pools[0].replicas
    assert counts[:2] == ((0.0, 1), (7.0, 3)) and counts[-1][1] == 1
    gone = [at for at, _ in counts[2:]]
    start, end = float(result.requests["arrival"].min()), float(result.requests["finish"].max())
    drained = sum(min(at, end) - 4.0 for at in (gone if len(gone) == 2 else gone * 2))
    assert result.summary.gpu_hours == pytest.approx((end - start + drained) / 3600)
    assert result.summary.gpus == 3 and result.summary.cost.usd_per_gpu_hour == pytest.approx(3.0)


def test_prompts_and_answers_apart_under_faults() -> None:
    pools = [{"role": "prefill", "gpu": "h100"}, {"role": "decode", "gpu": "h100", "replicas": 2}]
    dynamics = [
        {"at": 4, "until": 9, "link": {"pool": "prefill", "factor": 0.001}},
        {"at": 6, "crash": {"pool": "decode", "replica": 1, "restart_after": 3}},
        {"at": 10, "crash": {"pool": "prefill", "restart_after": 1}},
    ]
    result = simulate(scenario(fleet={"pools": pools}, dynamics=dynamics))
    assert result.summary.outcomes.finished == 300 and known(result.summary.dynamics).crashes == 2
    assert known(result.summary.ttft.max) > 1.0


PREFILL, DECODE = {"role": "prefill", "gpu": "h100"}, {"role": "decode", "gpu": "h100"}


def scaled(**changes: Any) -> dict[str, Any]:
    return {"fleet": {"gpu": "h100", "autoscale": {"max": 4, "target": 8, **changes}}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dynamics": [{"at": 5}]}, "dynamics[0]: give one of crash, slow and link"),
        ({"dynamics": [{"at": 5, "crash": {}, "slow": {"factor": 2}}]}, "found crash and slow"),
        ({"dynamics": [{"at": 5, "until": 9, "crash": {}}]}, "dynamics[0].until: a crash is over when"),
        ({"dynamics": [{"at": 5, "until": 5, "slow": {"factor": 2}}]}, "dynamics[0].until: not after its begin at 5"),
        ({"dynamics": [{"at": 5, "slow": {"factor": 0.5}}]}, "dynamics[0].slow.factor: must be at least 1"),
        ({"dynamics": [{"at": 5, "crash": {"pool": "serv"}}]}, "dynamics[0].crash.pool: no pool is called that"),
        (
            {"dynamics": [{"at": 5, "crash": {"replica": 2}}]},
            "dynamics[0].crash.replica: pool serve has replicas 0 to 1",
        ),
        ({"dynamics": [{"at": 5, "link": {"pool": "serve", "factor": 0.5}}]}, "this one has role serve"),
        ({"dynamics": [{"at": k, "crash": {"replica": k}} for k in (0, 1)]}, "no replica of role serve would be left"),
        ({"fleet": {"pools": [PREFILL, {**DECODE, "autoscale": {"max": 2, "by": "slo", "ttft": 1}}]}}, "has no ttft"),
        (scaled(min=2), "fleet.replicas: not within autoscale min 2 and max 4"),
        (scaled(target=None), "fleet.autoscale.target: missing"),
        (scaled(by="slo", target=8), "fleet.autoscale.target: belongs to by: queue"),
        (scaled(min=5), "fleet.autoscale.min: more than max 4"),
        ({"fleet": {"gpu": "h100", "autoscale": {"max": 4, "by": "slo"}}}, "set ttft or tpot"),
        ({"fleet": {"gpu": "h100", "autoscale": {"max": 4, "by": "schedule"}}}, "fleet.autoscale.schedule: missing"),
        (
            {"fleet": {"gpu": "h100", "dp": 2, "autoscale": {"max": 4, "target": 8}}},
            "only engines that step on their own",
        ),
    ],
)
def test_what_cannot_happen_is_said_so(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        scenario(**changes)
    assert message in str(error.value)


def test_the_example_of_faults() -> None:
    result = simulate(load_scenario(EXAMPLES / "faults.yaml"))
    found = known(result.summary.dynamics)
    assert result.summary.outcomes.finished == result.summary.requests
    assert found.crashes == 1 and found.retried_requests > 20
    assert [count for _, count in found.pools[0].replicas] == [4, 3, 4]


def test_the_example_of_autoscaling() -> None:
    """The same day, four times as fast and a quarter as long."""
    profile = "workload.arrivals.profile=[[0, 10], [60, 90], [75, 90], [135, 10]]"
    faster = [profile, "workload.requests=7500", "fleet.autoscale.startup=10", "fleet.autoscale.cooldown=5"]
    result = simulate(load_scenario(EXAMPLES / "autoscale.yaml", faster))
    found = known(result.summary.dynamics)
    counts = [count for _, count in found.pools[0].replicas]
    assert result.summary.outcomes.finished == result.summary.requests
    assert counts[0] == 2 and max(counts) == 8 and counts[-1] < 5
    assert found.gpu_hours_up < result.summary.gpu_hours < 8 * result.summary.duration_s / 3600


# -- what a client has seen -------------------------------------------------------------------------------------------


def test_tokens_that_come_again_are_passed_over() -> None:
    r = Request(0, 0.0, 4, 9)
    for step in (5, 6, 7, 12, 13, 14):
        r.emit(step)
    assert r.deliveries == 6
    for seen, first in ((1, 6), (2, 7), (3, 12), (5, 14), (6, -1)):
        r.seen = seen
        assert r.first_news() == first
