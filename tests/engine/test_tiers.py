"""Memory below the GPU's: timelines worked out by hand, and whole random worlds and fleets with tiers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.balance.route.serving import serving_router
from steelyard.cost.step import StepTime
from steelyard.engine import BlockNames, Chain, Engine, Limits, Request, StepCost
from steelyard.engine.content import Names
from steelyard.engine.kv import KVCache
from steelyard.engine.scheduler import Scheduler
from steelyard.engine.tiers import Tier, TierLink, Tiers
from steelyard.errors import UserError
from steelyard.fleet import Desk, run_fleet
from steelyard.fleet.driver import FleetDriver
from steelyard.scenario import load_scenario, scenario_from_dict
from steelyard.sim import simulate
from support.engine_worlds import (
    ANY_COSTS,
    RISING_COSTS,
    Ask,
    Run,
    TwoKinds,
    World,
    assert_same_records,
    serve,
    settled,
    vectorised_from,
    worlds,
)
from support.known import known
from support.paths import EXAMPLES

EXAMPLE = EXAMPLES / "tiered-kv.yaml"
HAND = TwoKinds(decode=StepTime(1.0, 0.0, 0.0, 0.0), other=StepTime(4.0, 0.0, 0.0, 0.0))
BLOCK = 100.0  # bytes


def tier(
    kind: str = "host",
    size: int = 8,
    read: float = 400.0,
    write: float = 100.0,
    latency: float = 0.0,
    through: bool = False,
) -> Tier:
    return Tier(kind, size, BLOCK, TierLink(read, latency), TierLink(write, latency), through, shared=kind == "remote")


def limits(blocks: int) -> Limits:
    return Limits(blocks, max_model_len=1000, block_size=4, max_num_seqs=8, async_scheduling=False)


def ask(at: float, stream: int, prompt: int = 9, output: int = 1) -> Ask:
    """A prompt shared by all requests with the same stream."""
    return Ask(prompt, output, at=at, content=((stream, prompt),))


def one_after_the_other(*asks: Ask, blocks: int = 3, tiers: Sequence[Tier] = ()) -> Run:
    return serve(World(limits(blocks), HAND, asks), plain=False, tiers=Tiers(tiers, 4))


def names_of(run: Run) -> BlockNames:
    assert isinstance(run.engine.scheduler, Scheduler)
    return run.engine.scheduler.names


# -- by hand ----------------------------------------------------------------------------------------------------------

ASKS = (ask(0.0, stream=0), ask(10.0, stream=1, prompt=12), ask(20.0, stream=0))  # the second takes all blocks


def test_without_tiers_what_was_evicted_is_computed_again() -> None:
    run = one_after_the_other(*ASKS)
    assert run.end == {0: 4.0, 1: 14.0, 2: 24.0}
    assert run.row(2)["hit"] == 0


def test_a_hit_in_host_memory_is_fetched_and_the_rest_computed() -> None:
    """Two blocks of 100 bytes at 400 bytes a second, and half a second until the first; then one token in 1 s."""
    host = tier(latency=0.5)
    run = one_after_the_other(*ASKS, tiers=[host])
    assert run.row(2)["hit"] == 8 and run.row(2)["scheduled"] == 20.0
    assert run.end == {0: 4.0, 1: 14.0, 2: 20.0 + 0.5 + 0.5 + 1.0}
    assert run.engine.tiers is not None and run.engine.tiers.hits == {"host": 8}
    assert (host.read.carried, host.write.carried) == (200.0, 500.0)  # two blocks up; two and then three down


def test_a_slow_tier_is_slower_than_computing_again_and_used_all_the_same() -> None:
    assert one_after_the_other(*ASKS, tiers=[tier(read=50.0, latency=0.5)]).end[2] == 20.0 + 4.0 + 0.5 + 1.0


def test_blocks_are_written_one_after_the_other_and_tails_first() -> None:
    host = tier(latency=0.5)
    run = one_after_the_other(*ASKS[:2], tiers=[host])
    head, tail = names_of(run).names(((0, 9),), 8)
    assert list(host.blocks.items()) == [(tail, 11.5), (head, 12.5)]


def test_a_fetch_waits_until_the_blocks_are_there() -> None:
    """They are given up at 10 and have been written at 30; the request comes at 20."""
    run = one_after_the_other(*ASKS, tiers=[tier(write=10.0)])
    assert run.end[2] == 30.0 + 0.5 + 1.0


def test_what_is_fetched_for_one_is_not_fetched_for_another() -> None:
    """Both ask at once; the second waits for the first one's blocks and hits them on the GPU."""
    host = tier()
    asks = (ASKS[0], ask(10.0, 1, prompt=24), ASKS[2], ASKS[2])
    run = one_after_the_other(*asks, blocks=6, tiers=[host])
    assert (run.end[2], run.end[3]) == (21.5, 21.5)
    assert host.read.carried == 200.0 and (run.row(2)["hit"], run.row(3)["hit"]) == (8, 8)
    assert run.engine.tiers is not None and run.engine.tiers.hits == {"host": 8}


def test_a_hit_on_the_gpu_goes_on_below() -> None:
    """The head of the prefix is still on the GPU, since its tail was given up first."""
    host = tier()
    run = one_after_the_other(ask(0.0, 0), ask(10.0, 1, prompt=7), ask(20.0, 0), tiers=[host])
    assert run.row(2)["hit"] == 8 and host.read.carried == 100.0
    assert run.end[2] == 20.0 + 0.25 + 1.0


def test_a_full_tier_gives_up_what_was_used_least_recently_and_the_next_one_takes_it() -> None:
    host, disk = tier(size=2, write=inf), tier("disk", size=8, write=inf)
    run = one_after_the_other(*ASKS[:2], ask(20.0, 2, prompt=12), tiers=[host, disk])
    names = names_of(run)
    head, tail = names.names(((0, 9),), 8)
    other = names.names(((1, 12),), 12)
    assert list(host.blocks) == [other[1], other[0]]
    assert list(disk.blocks) == [tail, head, other[2]]
    assert (host.stored, host.given_up) == (5, 3)


def test_what_is_read_counts_as_used() -> None:
    """Six places: the two blocks that were read when the last three came outlive two of the three older ones."""
    host = tier(size=6, write=inf)
    asks = (ask(0.0, 0), ask(10.0, 1, prompt=12), ask(20.0, 0), ask(30.0, 2, prompt=12), ask(40.0, 0))
    names = names_of(one_after_the_other(*asks, tiers=[host]))
    head, tail = names.names(((0, 9),), 8)
    older, newer = names.names(((1, 12),), 12), names.names(((2, 12),), 12)
    assert list(host.blocks) == [older[0], tail, head, *reversed(newer)]


def test_no_room_is_made_by_what_is_being_read_or_written() -> None:
    host = tier(size=2)
    assert host.store(1, 0.0) is None and host.store(2, 0.0) is None
    assert host.store(3, 0.5) is None and host.turned_away == 1  # the first has been written at 1
    host.hold([1, 2])
    assert host.store(3, 9.0) is None and host.turned_away == 2
    host.let_go([1, 2])
    assert host.store(3, 9.0) == 2 and list(host.blocks.items()) == [(1, 1.0), (3, 10.0)]


def test_a_block_goes_down_with_its_last_copy() -> None:
    cache = KVCache(2, block_size=4, caching=True)
    cache.gone = []
    twins = [Request(i, 0.0, 4, 1, keys=Names([range(7, 8)])) for i in range(2)]
    for r in twins:
        assert cache.admit(r, 0, 4, 0, watermark=False)
    for r in twins:
        cache.complete(r, 4)
        cache.release(r)
    cache.take(1)
    assert cache.gone == []
    cache.take(1)
    assert cache.gone == [7]


def test_what_lies_further_down_comes_by_way_of_host_memory_and_stays_there() -> None:
    """Two blocks: 1 s from the disk and half a second from host memory."""
    host, disk = tier(size=5, write=inf), tier("disk", size=8, read=200.0, write=inf)
    others = [ask(10.0 * i, i, prompt=12) for i in (1, 2, 3)]
    run = one_after_the_other(ASKS[0], *others, ask(40.0, 0), tiers=[host, disk])
    assert run.end[4] == 40.0 + 1.0 + 0.5 + 1.0
    assert run.engine.tiers is not None and run.engine.tiers.hits == {"disk": 8}
    head, tail = names_of(run).names(((0, 9),), 8)
    assert head in host.blocks and tail in host.blocks and head in disk.blocks


def test_without_host_memory_a_disk_is_read_at_once() -> None:
    run = one_after_the_other(*ASKS, tiers=[tier(size=0), tier("disk", read=200.0)])
    assert run.end[2] == 20.0 + 1.0 + 1.0


def test_a_tier_that_is_written_through_has_blocks_before_the_gpu_gives_them_up() -> None:
    """The prompt is computed by 4, and what others can share of it written by 5 and 6."""
    host = tier(through=True)
    run = one_after_the_other(ASKS[0], tiers=[host])
    head, tail = names_of(run).names(((0, 9),), 8)
    assert dict(host.blocks) == {head: 5.0, tail: 6.0}
    assert run.engine.scheduler.kv.free == 3
    again = one_after_the_other(*ASKS, tiers=[tier(through=True)])
    assert again.end[2] == 20.0 + 0.5 + 1.0


def test_blocks_that_nobody_will_ask_for_take_room_below_as_well() -> None:
    """An engine cannot know that. Each prompt has three blocks, of which the host holds four."""
    own = [Ask(12, 1, at=10.0 * i) for i in range(1, 4)]
    run = one_after_the_other(ASKS[0], *own, ask(50.0, 0), tiers=[tier(size=4)])
    assert run.row(4)["hit"] == 0
    assert one_after_the_other(ASKS[0], *own, ask(50.0, 0), tiers=[tier(size=8)]).row(4)["hit"] == 8


def test_a_preempted_request_fetches_what_it_had() -> None:
    """Two answers outgrow six blocks; the later request is put off, and finds below what was taken from it."""
    asks = (Ask(8, 14), Ask(8, 14))
    alone = serve(World(limits(6), HAND, asks), plain=False)
    host = tier(read=inf, write=inf)
    run = serve(World(limits(6), HAND, asks), plain=False, tiers=Tiers([host], 4))
    assert alone.row(1)["preemptions"] == run.row(1)["preemptions"] == 1
    assert host.read.carried > 0 and run.end[1] < alone.end[1]
    assert run.engine.tiers is not None and not run.engine.tiers.hits  # it was not a prompt's first admission


def test_who_gives_up_while_blocks_are_on_the_way_gives_back_its_own() -> None:
    impatient = Ask(9, 1, at=20.0, abort=1.0, content=((0, 9),))
    run = one_after_the_other(*ASKS[:2], impatient, ask(20.5, 0), tiers=[tier(read=50.0)])
    assert run.end[2] == 21.0
    assert run.end[3] == 24.0 + 4.0 + 1.0  # it waits for the fetch for the other, of which nothing is kept
    assert run.engine.scheduler.kv.free == 3


def test_a_crash_loses_host_memory_and_what_was_on_the_way_but_no_disk() -> None:
    host, disk = tier(size=5, write=inf), tier("disk", write=inf)
    names = BlockNames(4)
    engine = Engine(limits(3), HAND, names, tiers=Tiers([host, disk], 4))
    world = World(limits(3), HAND, (*ASKS[:2], ask(20.0, 2, prompt=12), ask(30.0, 1, prompt=12)))
    for i, each in enumerate(world.asks):
        engine.advance(each.at)
        engine.submit(world.request(i, each.at, names), each.at)
    engine.advance(30.1)
    assert engine.tiers is not None and engine.tiers.loads and host.in_use and host.blocks and disk.blocks
    kept = list(disk.blocks)
    assert [r.index for r in engine.crash(30.1)] == [3]
    assert not engine.tiers.loads and not host.in_use and not host.blocks and list(disk.blocks) == kept
    engine.submit(world.request(0, 40.0, names), 40.0)
    engine.advance(inf)
    assert engine.log.ends[-1] == 40.0 + 0.5 + 0.5 + 1.0  # by way of host memory, from the disk


# -- a store of many engines ------------------------------------------------------------------------------------------


@dataclass
class Fleet:
    """Some engines with a store in common, behind a router that never looks at them."""

    world: World
    engines: int = 2
    store: Tier | None = None
    own: Sequence[int] = ()  # sizes of each engine's tiers
    plain: bool = False
    apart: bool = True  # where they can be

    def run(self) -> Fleet:
        self.desk = Desk(self.world.workload(), [self.world.limits])
        kinds = ("host", "disk")
        shared = [] if self.store is None else [self.store]
        size = self.world.limits.block_size
        self.served = [
            Engine(
                self.world.limits,
                self.world.cost,
                self.desk.names,
                tiers=Tiers([*(tier(kinds[k], each) for k, each in enumerate(self.own)), *shared], size),
                reactive=self.world.reactive,
                plain=self.plain,
            )
            for _ in range(self.engines)
        ]
        router = serving_router("round-robin", self.engines, 0)
        if self.apart:
            run_fleet(self.served, self.desk, router)
        else:
            FleetDriver(self.served, self.desk, router, None, lambda count: None).run()
        return self

    def digest(self) -> list[bytes]:
        return [each for engine in self.served for each in (engine.log.ends.tobytes(), engine.log.requests.tobytes())]


def test_one_engine_finds_what_another_has_written() -> None:
    """Asks go to the engines in turn: the last to the other one than the first."""
    asks = (ask(0.0, 0), ask(1.0, 2), ask(10.0, 1, prompt=12), ask(20.0, 0))
    store = tier("remote", size=100)
    fleet = Fleet(World(limits(3), HAND, asks), store=store).run()
    there = fleet.served[1]
    assert there.log.ended["hit"].tolist() == [0, 8]
    assert there.log.ends[-1] == 20.0 + 0.5 + 1.0
    assert there.tiers is not None and there.tiers.hits == {"remote": 8} and store.shared


def test_nobody_sees_what_is_still_being_written() -> None:
    """Given up at 10, written at 30 and asked for at 20."""
    asks = (ask(0.0, 0), ask(1.0, 2), ask(10.0, 1, prompt=12), ask(20.0, 0))
    fleet = Fleet(World(limits(3), HAND, asks), store=tier("remote", size=100, write=10.0)).run()
    assert fleet.served[1].log.ended["hit"].tolist() == [0, 0]
    late = (*asks[:3], ask(30.0, 0))
    fleet = Fleet(World(limits(3), HAND, late), store=tier("remote", size=100, write=10.0)).run()
    assert fleet.served[1].log.ended["hit"].tolist() == [0, 8]


# -- random worlds ----------------------------------------------------------------------------------------------------

_RATES = st.sampled_from([inf, 3000.0, 400.0, 37.0])
_SIZES = st.sampled_from([1, 5, 30, 1000])


@dataclass(frozen=True)
class Below:
    """Tiers yet to be made, as often as needed."""

    kinds: tuple[str, ...]
    sizes: tuple[int, ...]
    rates: tuple[float, ...]
    latency: float
    through: tuple[bool, ...]

    def levels(self) -> list[Tier]:
        columns = zip(self.kinds, self.sizes, self.rates, reversed(self.rates), self.through, strict=True)
        return [tier(kind, size, read, write, self.latency, through) for kind, size, read, write, through in columns]


@st.composite
def belows(draw: st.DrawFn) -> Below:
    kinds = tuple(draw(st.sampled_from([["host"], ["disk"], ["host", "disk"], ["host", "disk", "remote"], ["remote"]])))

    def each(values: st.SearchStrategy[float]) -> tuple[float, ...]:
        return tuple(draw(values) for _ in kinds)

    sizes = tuple(draw(_SIZES) for _ in kinds)
    through = tuple(draw(st.sampled_from([False, False, True])) for _ in kinds)
    return Below(kinds, sizes, each(_RATES), draw(st.sampled_from([0.0, 0.3])), through)


@st.composite
def returning(draw: st.DrawFn, costs: st.SearchStrategy[StepCost] = ANY_COSTS) -> World:
    """Prompts with few openings, far more of them than the GPU holds: much is given up and asked for again."""
    openings: list[Chain] = [((k, 16 + 4 * k),) for k in range(4)] + [((0, 8), (9, 17)), ((0, 8), (8, 6))]
    asks = []
    for at in sorted(draw(st.lists(st.integers(0, 160), min_size=6, max_size=12))):
        content = draw(st.sampled_from(openings))
        prompt = sum(tokens for _, tokens in content) + draw(st.integers(0, 6))
        abort = draw(st.sampled_from([inf, inf, inf, 1.0, 4.0]))
        asks.append(Ask(prompt, draw(st.integers(1, 12)), at=at / 2, content=content, abort=abort))
    size = draw(st.sampled_from([1, 2, 4, 5]))
    longest = max(each.prompt + each.output for each in asks)
    settings = Limits(
        blocks=-(-longest // size) + draw(st.sampled_from([0, 0, 1, 4])),
        max_model_len=longest + 1,
        block_size=size,
        max_num_seqs=draw(st.sampled_from([1, 3, 8])),
        max_num_batched_tokens=draw(st.sampled_from([5, 16, 200])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 3])),
        async_scheduling=draw(st.booleans()),
        reserve_full_prompt=draw(st.booleans()),
        priority=draw(st.booleans()),
    )
    return World(settings, draw(costs), tuple(asks))


@settled(120)
@given(worlds(), st.lists(st.sampled_from(["host", "disk", "remote"]), max_size=3, unique=True), st.booleans())
def test_tiers_of_size_0_are_none(world: World, kinds: list[str], plain: bool) -> None:
    none = serve(world, plain=plain)
    empty = serve(world, plain=plain, tiers=Tiers([tier(kind, size=0) for kind in kinds], world.limits.block_size))
    assert_same_records(empty.engine.log, none.engine.log)
    assert empty.steps == none.steps and empty.ended == none.ended


@settled(250)
@given(st.one_of(returning(), worlds(), worlds(speculation=True)), belows(), st.sampled_from([2, 96]))
def test_short_cuts_change_nothing(world: World, below: Below, vector: int) -> None:
    check_short_cuts(world, below, vector)


def test_short_cuts_change_nothing_where_a_head_is_blocked_only_as_long_as_it_finds_something_below() -> None:
    settings = replace(limits(25), block_size=2, max_num_seqs=3, max_num_batched_tokens=4, reserve_full_prompt=False)
    opening: Chain = ((0, 4), (1, 1))
    asks = (
        Ask(1, 5),
        Ask(4, 24, after=0, content=((0, 4),)),
        Ask(14, 36, content=opening),
        Ask(20, 6, content=((1, 20),)),
        Ask(6, 25, at=5.0, content=opening),
        *(Ask(1, 5, at=5.0) for _ in range(2)),
    )
    same = TwoKinds(HAND.decode, HAND.decode)
    check_short_cuts(World(settings, same, asks), Below(("host",), (1,), (inf,), 0.0, (False,)), 2)


def test_short_cuts_change_nothing_where_an_answer_is_written_through_while_others_go_on() -> None:
    world = World(replace(limits(50), async_scheduling=True), HAND, (Ask(8, 9), Ask(8, 40)))
    check_short_cuts(world, Below(("host",), (50,), (100.0,), 0.0, (True,)), 96)


def check_short_cuts(world: World, below: Below, vector: int) -> None:
    size = world.limits.block_size
    slow = serve(world, plain=True, tiers=Tiers(below.levels(), size))
    with vectorised_from(vector):
        fast = serve(world, plain=False, tiers=Tiers(below.levels(), size))
    for mine, theirs in zip(fast.steps, slow.steps, strict=False):
        assert mine == theirs
    assert_same_records(fast.engine.log, slow.engine.log)
    assert fast.ended == slow.ended
    assert fast.engine.tiers is not None and slow.engine.tiers is not None
    assert fast.engine.tiers.hits == slow.engine.tiers.hits
    for one, other in zip(fast.engine.tiers.levels, slow.engine.tiers.levels, strict=True):
        assert list(one.blocks.items()) == list(other.blocks.items())
        assert (one.read, one.write, one.turned_away) == (other.read, other.write, other.turned_away)


@settled(250)
@given(st.one_of(returning(), worlds(), worlds(everyone_fits=False)), belows())
def test_blocks_are_conserved_in_every_tier(world: World, below: Below) -> None:
    levels = below.levels()
    run = serve(world, plain=False, tiers=Tiers(levels, world.limits.block_size))
    engine = run.engine
    assert sorted([*run.ended, *run.refused]) == list(range(len(world.asks)))
    assert engine.scheduler.kv.free == world.limits.blocks and not engine.scheduler.loading
    assert engine.tiers is not None
    engine.tiers.arrived(inf)  # what was on the way to those who had gone
    fetched = 0.0
    for each in levels:
        assert len(each.blocks) == each.stored - each.given_up <= each.size
        assert not each.in_use
        assert each.write.carried <= each.stored * BLOCK
        fetched += each.read.carried
    if world.limits.enable_prefix_caching:
        assert fetched >= sum(engine.tiers.hits.values()) / world.limits.block_size * BLOCK
    else:
        assert not fetched and not any(each.blocks for each in levels)


@settled(100)
@given(worlds(aborts=False, followers=False))
def test_a_tier_without_limits_forgets_nothing(world: World) -> None:
    """A request to an idle engine finds every block of its prompt that was completed before."""
    host = tier(size=100_000, read=inf, write=inf)
    run = serve(world, plain=False, tiers=Tiers([host], world.limits.block_size))
    engine, names = run.engine, names_of(run)
    if not world.limits.enable_prefix_caching:
        return
    for i in run.ended:
        again = world.request(i, 0.0, names)
        assert engine.tiers is not None
        hits = engine.tiers.above.match(again)
        found = engine.tiers.find(again, hits, inf)
        assert found is not None
        assert hits + len(found) == min(len(again.keys), (again.prompt - 1) // world.limits.block_size)


@settled(120)
@given(st.one_of(returning(RISING_COSTS), worlds(costs=RISING_COSTS, aborts=False)), st.integers(1, 3), belows())
def test_engines_with_a_store_in_common_keep_to_one_clock(world: World, engines: int, below: Below) -> None:
    """Decisions that look into the store or write to it come in the order of time, fast or slow."""
    results = []
    for plain in (False, True):
        store = below.levels()[-1]
        store.shared, store.kind = True, "remote"
        times: list[float] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Tiers, "write_back", noting(Tiers.write_back, times))
            fleet = Fleet(world, engines, store, below.sizes[:-1], plain).run()
        assert times == sorted(times) or engines == 1
        assert len(store.blocks) == store.stored - store.given_up <= store.size
        results.append(fleet.digest())
    assert results[0] == results[1]


@settled(100)
@given(
    st.one_of(returning(RISING_COSTS), worlds(costs=RISING_COSTS, followers=False)), st.sampled_from([(3,), (9, 40)])
)
def test_engines_with_tiers_of_their_own_may_run_apart(world: World, own: tuple[int, ...]) -> None:
    apart, together = Fleet(world, own=own).run(), Fleet(world, own=own, apart=False).run()
    assert apart.digest() == together.digest()


def noting(write_back: Callable[[Tiers, float], None], times: list[float]) -> Callable[[Tiers, float], None]:
    def noted(self: Tiers, now: float) -> None:
        if self.gone:
            times.append(now)
        write_back(self, now)

    return noted


def test_chains_are_known_to_all_engines_alike() -> None:
    """A store only makes sense where equal prefixes have equal names everywhere."""
    opening: Chain = ((3, 16),)
    world = World(limits(50), HAND, (Ask(16, 1, content=opening), Ask(16, 1, at=0.0, content=opening)))
    fleet = Fleet(world, store=tier("remote", size=100, through=True)).run()
    assert fleet.store is not None and fleet.store.stored == 4


# -- scenarios --------------------------------------------------------------------------------------------------------

HOST = {"kind": "host", "size": "1GB", "bandwidth": "50GB"}
DISK = {"kind": "disk", "size": "2TB", "bandwidth": "7GB"}
STORE = {"kind": "remote", "size": "2TB", "bandwidth": "100Gb"}


def scenario(*tiers: dict[str, Any], **engine: Any) -> dict[str, Any]:
    chats = {"turns": 4, "think": 5.0, "system": {"tokens": 400, "groups": 2}}
    return {
        "model": "llama-3.1-8b",
        "fleet": {"gpu": "h100", "replicas": 2},
        "engine": {"num_gpu_blocks": 600, "max_model_len": 8192, "tiers": list(tiers), **engine},
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 4},
            "requests": 60,
            "prompt": {"kind": "uniform", "min": 200, "max": 900},
            "output": 60,
            "session": chats,
        },
    }


def test_results_tell_what_was_found_where() -> None:
    result = simulate(scenario_from_dict(scenario(HOST, DISK, STORE)))
    found = result.summary.prefix_cache
    tiers = found.by_tier
    assert list(tiers) == ["gpu", "host", "disk", "remote"]
    assert sum(each.hit_tokens for each in tiers.values()) == found.hit_tokens
    assert tiers["host"].hit_tokens > 0 and 0 < known(tiers["host"].read_use) < 1
    assert tiers["host"].blocks == 10**9 // (16 * 2 * 8 * 128 * 2 * 32)  # keys and values, heads, bytes, layers
    none = simulate(scenario_from_dict(scenario())).summary.prefix_cache
    assert not none.by_tier and none.hit_tokens < found.hit_tokens


def test_in_a_scenario_too_tiers_of_size_0_are_none_and_short_cuts_change_nothing() -> None:
    nothing = [{**each, "size": 0} for each in (HOST, DISK, STORE)]
    none, empty = (simulate(scenario_from_dict(scenario(*tiers))) for tiers in ((), nothing))
    fast, slow = (simulate(scenario_from_dict(scenario(HOST, STORE)), plain=plain) for plain in (False, True))
    assert none.summary == empty.summary
    assert fast.summary.prefix_cache == slow.summary.prefix_cache
    for one, other in ((none, empty), (fast, slow)):
        for name, column in one.requests.items():
            assert column.astype(str).tolist() == other.requests[name].astype(str).tolist(), name


def test_prefill_engines_fetch_what_they_gave_up_and_decode_engines_do_not_count() -> None:
    written = scenario(HOST)
    written["fleet"] = {"pools": [{"role": "prefill", "gpu": "h100"}, {"role": "decode", "gpu": "h100"}]}
    found = simulate(scenario_from_dict(written)).summary.prefix_cache
    assert found.by_tier["host"].hit_tokens > 0
    assert sum(each.hit_tokens for each in found.by_tier.values()) == found.hit_tokens


@pytest.mark.parametrize("router", ["round-robin", "sticky", "kv-aware"])
def test_the_example_finds_far_more_than_without_tiers(router: str) -> None:
    cut = ["workload.requests=150", "engine.num_gpu_blocks=2000", f"fleet.router={router}"]
    tiered = simulate(load_scenario(EXAMPLE, cut)).summary
    alone = simulate(load_scenario(EXAMPLE, [*cut, "engine.tiers=[]"])).summary
    assert tiered.prefix_cache.hit_rate > 1.5 * alone.prefix_cache.hit_rate
    assert known(tiered.ttft.mean) < known(alone.ttft.mean)


@pytest.mark.parametrize(
    ("tiers", "engine", "said"),
    [
        ([STORE, DISK], {}, "engine.tiers[1].kind: disk cannot lie below remote; give each kind once, in the order"),
        ([HOST, HOST], {}, "engine.tiers[1].kind: host cannot lie below host"),
        ([{**HOST, "blocks": 5}], {}, "engine.tiers[0].size: give either size (bytes) or blocks"),
        ([{"kind": "host", "bandwidth": 1e9}], {}, "engine.tiers[0].size: give either size (bytes) or blocks"),
        ([{"kind": "host", "size": 1e9}], {}, "engine.tiers[0].bandwidth: missing; give bandwidth, or read_bandwidth"),
        ([{**HOST, "bandwidth": 0}], {}, "engine.tiers[0].bandwidth: not a bandwidth"),
        ([{**HOST, "size": "64 gigs"}], {}, "engine.tiers[0].size: not a size; give bytes"),
        ([{**HOST, "size": -1}], {}, "engine.tiers[0].size: not a size"),
        ([{**HOST, "latency": -1}], {}, "engine.tiers[0].latency: must be at least 0"),
        ([{**HOST, "kind": "tape"}], {}, "engine.tiers[0].kind"),
        ([HOST], {"enable_prefix_caching": False}, "engine.tiers: nothing would ever be found there"),
        ([{**HOST, "size": 1000}], {}, "engine.tiers[0].size: 1000 bytes hold no block; one of 16 tokens has 2097152"),
        ([HOST], {"scheduler": "sglang"}, "engine.tiers: only vLLM's scheduler knows tiers"),
    ],
)
def test_tiers_that_make_no_sense_are_refused(tiers: list[dict[str, Any]], engine: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        simulate(scenario_from_dict(scenario(*tiers, **engine)))
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_all_pools_share_one_store() -> None:
    written = scenario(STORE)
    pools = [{"name": "a", "gpu": "h100"}, {"name": "b", "gpu": "h100"}]
    other = {**written["engine"], "tiers": [{**STORE, "size": "1TB"}]}
    written["fleet"] = {"pools": [pools[0], {**pools[1], "engine": other}]}
    with pytest.raises(UserError, match="engines give different remote tiers, but all share one store"):
        simulate(scenario_from_dict(written))


@pytest.mark.parametrize(("text", "size"), [("64GB", 64e9), ("1.5 GiB", 1.5 * 2**30), ("2TB", 2e12), (7, 7.0)])
def test_sizes_have_units(text: str | int, size: float) -> None:
    (spec,) = scenario_from_dict(scenario({**HOST, "size": text})).engine.tiers
    assert spec.size == size and spec.rates == (50e9, 50e9)
