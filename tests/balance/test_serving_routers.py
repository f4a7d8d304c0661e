"""Routers alone: where each request goes, by hand and against the plainest reading of what a router promises."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.balance.route import RoutedRequest, Router
from steelyard.balance.route.serving import (
    SERVING_ROUTERS,
    ByLoad,
    ByModel,
    ByWeight,
    CountedLoads,
    KvAware,
    RoutedPool,
    RouterSettings,
    SloAware,
    serving_router,
)
from steelyard.balance.route.serving.slo_aware import LoadFit
from steelyard.errors import UserError
from support.engine_worlds import settled


class Asks:
    """Numbers requests as they come."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(
        self, names: Sequence[int] = (), prompt: int = 10, session: int = 0, at: float = 0.0, model: str = ""
    ) -> RoutedRequest:
        self.count += 1
        return RoutedRequest(self.count - 1, session, names, prompt, 0, at, model)


# -- every router -----------------------------------------------------------------------------------------------------

# What happens next: someone asks (session, blocks, further tokens), or someone's first token or end comes.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 3), st.integers(0, 5), st.integers(0, 40)),
        st.tuples(st.just("first"), st.integers(0, 99), st.just(0), st.just(0)),
        st.tuples(st.just("end"), st.integers(0, 99), st.just(0), st.just(0)),
    ),
    max_size=60,
)
Step = tuple[str, int, int, int]


def play(router: Router, steps: Sequence[Step], model: str = "") -> list[int]:
    """Let it all happen, and in the end let everyone end; the choices made."""
    asks, chosen = Asks(), []
    waiting: list[tuple[RoutedRequest, int]] = []
    going: list[tuple[RoutedRequest, int]] = []
    for clock, (what, number, blocks, more) in enumerate(steps):
        if what == "ask":
            names = range(10 * number, 10 * number + blocks)
            asked = asks(names, 4 * blocks + more + 1, number, float(clock), model)
            chosen.append(router.choose(asked))
            waiting.append((asked, chosen[-1]))
        elif what == "first" and waiting:
            asked, replica = waiting.pop(number % len(waiting))
            router.first_token(asked, replica, float(clock))
            going.append((asked, replica))
        elif what == "end" and waiting + going:  # some end without a first token: given up
            some = going if going and number % 3 else waiting or going
            router.ended(*some.pop(number % len(some)))
    for asked, replica in waiting + going:
        router.ended(asked, replica)
    return chosen


def loads(router: Router) -> list[float]:
    """Everything a router counts up and down again."""
    match router:
        case KvAware():
            return [
                *router._waiting,
                *router._active,
                *router._to_compute.values(),
                *(rank[0] for rank in router._ranking.ranks),
            ]
        case SloAware():
            return [*router._load.ravel().tolist(), *(sum(each) for each in router._joined.values())]
        case CountedLoads():
            return list(router.counts)
        case ByLoad():
            return [*router._load, *(load for pool in router._pools for load in loads(pool.router))]
    return []


@settled(150)
@given(st.sampled_from(list(SERVING_ROUTERS)), st.integers(1, 5), STEPS, st.sampled_from([0.0, 0.5]))
def test_choices_are_replicas_and_loads_come_back_to_nothing(
    name: str, replicas: int, steps: list[Step], temperature: float
) -> None:
    settings = RouterSettings(block_size=4, cache_blocks=6, temperature=temperature, ttft=5.0)
    router = serving_router(name, replicas, 3, settings)
    chosen = play(router, steps)
    assert all(0 <= replica < replicas for replica in chosen)
    assert not any(loads(router))
    assert play(serving_router(name, replicas, 3, settings), steps) == chosen


@settled(60)
@given(
    st.sampled_from(list(SERVING_ROUTERS)),
    st.sampled_from(list(SERVING_ROUTERS)),
    st.integers(1, 3),
    st.integers(1, 3),
    STEPS,
)
def test_pools_count_their_own(name: str, other: str, few: int, more: int, steps: list[Step]) -> None:
    parts = [
        RoutedPool(range(few, few + more), serving_router(other, more, 1)),
        RoutedPool(range(few), serving_router(name, few, 0)),
    ]
    router = ByLoad(parts, [more, few])
    assert all(0 <= replica < few + more for replica in play(router, steps))
    assert not any(loads(router))


# -- kv-aware ---------------------------------------------------------------------------------------------------------


def test_a_cached_prefix_counts_against_load() -> None:
    """By hand, blocks of 10 tokens, weight 1: cost = to compute here + to compute waiting + in use."""
    ask, router = Asks(), KvAware(3, 0, RouterSettings(block_size=10))
    first = ask([1, 2, 3], 35)
    assert router.choose(first) == 0  # all alike; now 4 wait and 4 are in use at 0
    second = ask([7], 10)
    assert router.choose(second) == 1  # 1 + 0 at 1 and 2; now 1 + 1 at 1
    third = ask([1, 2, 3], 39)
    assert router.choose(third) == 2  # 0: 1 to compute + 8 = 9; 1: 4 + 2 = 6; 2: 4 + 0 = 4
    router.first_token(first, 0, 1.0)  # 4 left at 0
    router.first_token(third, 2, 1.0)  # and 4 at 2
    assert router.choose(ask([1, 2, 3, 4], 40)) == 0  # 0: 1 + 4 = 5, 2: 1 + 4 = 5, 1: 4 + 2 = 6; now 0: 1 + 8
    assert router.choose(ask([1, 2], 20)) == 1  # 0: 0 + 9, 2: 0 + 4 = 4, 1: 2 + 2 = 4: the less loaded of equals
    router.ended(second, 1)
    router.ended(third, 2)
    assert router.choose(ask([7], 10)) == 2  # 1: 0 + 2 + 2, 2: 1 + 0


def test_equals_go_to_the_emptiest_cache() -> None:
    ask, router = Asks(), KvAware(3, 0, RouterSettings(block_size=10))
    chosen = []
    for names in ([1, 2], [3], [4], [5]):
        asked = ask(names, 20)
        chosen.append(router.choose(asked))
        router.ended(asked, chosen[-1])
    assert chosen == [0, 1, 2, 1]  # then 0 holds two blocks, 1 and 2 one each


def test_a_full_cache_forgets_ends_of_old_prompts_first() -> None:
    """Three blocks at a replica: [1, 2] and [8, 9] leave the beginning of the older one."""
    router = KvAware(1, 0, RouterSettings(block_size=10, cache_blocks=3))
    ask = Asks()
    router.choose(ask([1, 2], 20))
    router.choose(ask([8, 9], 20))
    assert router._caches.overlaps([1, 2]) == [(1, 1)]
    assert router._caches.overlaps([8, 9]) == [(2, 1)]
    assert set(router._caches._holders) == {1, 8, 9}


class PlainKvAware:
    """The costs of all replicas, one by one, from sets of blocks."""

    def __init__(self, replicas: int, weight: float) -> None:
        self.weight = weight
        self.held: list[set[int | str]] = [set() for _ in range(replicas)]
        self.waiting: list[dict[int | str, int]] = [{} for _ in range(replicas)]
        self.active: list[dict[int | str, int]] = [{} for _ in range(replicas)]

    def overlap(self, asked: RoutedRequest, replica: int) -> int:
        held = self.held[replica]
        return next((depth for depth, name in enumerate(asked.names) if name not in held), len(asked.names))

    def base(self, replica: int) -> float:
        return self.weight * sum(self.waiting[replica].values()) + sum(self.active[replica].values())

    def choose(self, asked: RoutedRequest) -> int:
        blocks = -(-asked.prompt // 4)

        def rank(i: int) -> tuple[float, float, int, int]:
            return (
                self.base(i) + self.weight * (blocks - self.overlap(asked, i)),
                self.base(i),
                len(self.held[i]),
                i,
            )

        replica = min(range(len(self.held)), key=rank)
        self.waiting[replica][asked.id] = blocks - self.overlap(asked, replica)
        self.active[replica][asked.id] = blocks
        self.held[replica].update(asked.names)
        return replica


@settled(150)
@given(st.integers(1, 9), st.sampled_from([0.0, 0.5, 1.0, 2.0]), STEPS)
def test_the_best_is_found_without_looking_at_all(replicas: int, weight: float, steps: list[Step]) -> None:
    router = KvAware(replicas, 0, RouterSettings(block_size=4, overlap_weight=weight))
    plain = PlainKvAware(replicas, weight)
    asks, going = Asks(), list[tuple[RoutedRequest, int]]()
    for what, number, blocks, more in steps:
        if what == "ask":
            asked = asks([k if k < number else 10 * number + k for k in range(blocks)], 4 * blocks + more % 8 + 1)
            expected = plain.choose(asked)
            assert router.choose(asked) == expected
            assert router._waiting[expected] == sum(plain.waiting[expected].values())
            going.append((asked, expected))
        elif going:
            asked, replica = going[number % len(going)]
            plain.waiting[replica].pop(asked.id, None)
            if what == "first":
                router.first_token(asked, replica, 0.0)
            else:
                router.ended(asked, replica)
                plain.active[replica].pop(asked.id)
                going.remove((asked, replica))


def test_a_temperature_draws_by_the_softmax_of_the_cost() -> None:
    """Costs 1, 2 and 3 are 0, 1/2 and 1 on the scale from best to worst."""
    ask, router = Asks(), KvAware(3, 1, RouterSettings(block_size=10, temperature=0.5))
    router._add(1, 0, 1)
    router._add(2, 0, 2)
    counts = np.zeros(3)
    for _ in range(6000):
        asked = ask((), 10)
        replica = router.choose(asked)
        counts[replica] += 1
        router.ended(asked, replica)
    weights = np.array([1.0, exp(-1), exp(-2)])
    assert counts / 6000 == pytest.approx(weights / weights.sum(), abs=0.025)


def test_a_thousand_replicas_with_a_common_opening_stay_cheap() -> None:
    """Everyone holds the opening, so an honest look at each holder would be a million looks: count them."""
    router = KvAware(1024, 0, RouterSettings(block_size=16))
    ask = Asks()
    for k in range(2000):
        asked = ask([0, 1, 2, 10 * k + 3], 64)
        replica = router.choose(asked)
        if k % 2:
            router.first_token(asked, replica, 0.0)
    assert [mask.bit_count() for _, mask in router._caches.overlaps([0, 1, 2])] == [1024]
    looked = 0

    class Counting(list[tuple[float, int, int]]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            nonlocal looked
            for each in super().__iter__():
                looked += 1
                yield each

    router._ranking.order = Counting(router._ranking.order)
    for k in range(100):
        router.choose(ask([0, 1, 2, 50_000 + k], 64))
    assert looked < 1000


# -- slo-aware --------------------------------------------------------------------------------------------------------


def test_the_busiest_that_is_still_in_time() -> None:
    """By hand: 100 tokens were seen to take 1 s, so with 3 s a replica may hold 300 tokens, the new ones among them."""
    ask, router = Asks(), SloAware(3, RouterSettings(ttft=3.0))
    first = ask(prompt=100)
    assert router.choose(first) == 0
    assert router.choose(ask(prompt=80)) == 1  # nothing is known yet: the least busy
    router.first_token(first, 0, 1.0)  # seconds by tokens alone, since one sight cannot tell two loads apart
    assert router._predicted.seconds == (0.01, 0.0)
    assert router.choose(ask(prompt=200)) == 1  # 280 are in time at 1
    assert router.choose(ask(prompt=50)) == 0  # 330 are not; of 0 and 2 the lower number
    assert router.choose(ask(prompt=250)) == 0  # 300 just are
    assert router.choose(ask(prompt=290)) == 2
    assert router.choose(ask(prompt=30)) == 1  # too late everywhere (310, 330, 320): the least late


def test_the_predicted_tells_two_loads_apart_and_follows_a_change() -> None:
    router = SloAware(1, RouterSettings())
    rng = np.random.default_rng(0)
    for by_token, by_request in ((0.001, 0.02), (0.003, 0.0), (0.0, 0.05)):
        for tokens, requests in rng.integers(1, 100, (600, 2)).tolist():
            router._predicted.learn(tokens, requests, by_token * tokens + by_request * requests)
        assert router._predicted.seconds == pytest.approx((by_token, by_request), abs=1e-6)
        assert min(router._predicted.seconds) >= 0
    router._predicted = LoadFit()
    router._predicted.learn(10, 1, 1.0)
    router._predicted.learn(10, 5, 0.5)  # faster with more requests: chance, so tokens alone count
    assert router._predicted.seconds == pytest.approx(((0.98 * 10 + 5) / (0.98 * 100 + 100), 0.0))
    router._predicted = LoadFit()
    router._predicted.learn(1, 10, 1.0)
    router._predicted.learn(5, 10, 0.5)
    assert router._predicted.seconds == pytest.approx((0.0, (0.98 * 10 + 5) / (0.98 * 100 + 100)))


# -- sticky-spill -----------------------------------------------------------------------------------------------------


def test_a_session_moves_once_its_home_is_much_busier_than_the_mean() -> None:
    """Two replicas, slack 4, factor 1.5: with 16 requests at home and 0 elsewhere the mean is 8, and 16 = 12 + 4."""
    ask, router = Asks(), serving_router("sticky-spill", 2, 0)
    at_home = [ask(session=1) for _ in range(17)]
    assert [router.choose(asked) for asked in at_home] == [0] * 17
    assert router.choose(ask(session=1)) == 1  # 17 > 1.5 * 8.5 + 4
    assert router.choose(ask(session=1)) == 1  # where it lives now
    assert router.choose(ask(session=2)) == 1  # new ones go to the least loaded
    for asked in at_home:
        router.ended(asked, 0)
    assert router.choose(ask(session=1)) == 1


# -- routers of routers -----------------------------------------------------------------------------------------------


def test_models_and_pools_have_routers_of_their_own() -> None:
    """Replicas of a model need not lie side by side: 0 and 3 are of the small one, the big one has two pools."""
    ask = Asks()
    pools = [
        RoutedPool([0, 1], serving_router("round-robin", 2, 0)),
        RoutedPool([2], serving_router("round-robin", 1, 0)),
    ]
    small = RoutedPool([0, 3], serving_router("least-outstanding", 2, 0))
    router = ByModel({"big": RoutedPool([1, 2, 4], ByLoad(pools, [2, 1])), "small": small})
    assert router.looks_at_load and not router.awaits_first_tokens
    asked = [ask(model="big") for _ in range(4)]
    assert [router.choose(each) for each in asked] == [1, 2, 4, 1]
    assert [router.choose(ask(model="small")) for _ in range(3)] == [0, 3, 0]
    router.ended(asked[2], 4)
    assert router.choose(ask(model="big")) == 4
    router.available(4, up=False)
    assert router.choose(ask(model="big")) == 2
    with pytest.raises(UserError, match="no pool serves model 'huge'; there are big, small"):
        router.choose(ask(model="huge"))


def test_a_pool_bears_as_much_as_it_has_replicas_left() -> None:
    ask = Asks()
    pools = [
        RoutedPool(range(4), serving_router("round-robin", 4, 0)),
        RoutedPool([4], serving_router("round-robin", 1, 0)),
    ]
    router = ByLoad(pools, [4, 2])  # the one replica of the second is as strong as two of the others
    chosen = [router.choose(ask()) for _ in range(60)]
    assert sum(replica < 4 for replica in chosen) == 40
    for replica in (1, 2, 3):
        router.available(replica, up=False)
    assert [router.choose(ask()) for _ in range(40)] == [4] * 40  # 41 on one replica are as many as 82 on the other
    router.available(4, up=False)
    assert router.choose(ask()) == 0


def test_weights_are_kept_to_and_a_pool_that_was_gone_has_nothing_to_catch_up_on() -> None:
    ask = Asks()
    router = ByWeight([RoutedPool([k], serving_router("round-robin", 1, 0)) for k in range(3)], [5.0, 1.0, 1.0])
    assert not router.looks_at_load
    assert [router.choose(ask()) for _ in range(7)] == [0, 0, 1, 0, 2, 0, 0]  # spread out, and the credits at 0 again
    router.available(0, up=False)
    assert [router.choose(ask()) for _ in range(6)] == [1, 2] * 3
    router.available(0, up=True)
    assert [router.choose(ask()) for _ in range(7)] == [0, 0, 1, 0, 2, 0, 0]


@settled(60)
@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=5), st.integers(1, 300))
def test_no_pool_is_ever_a_request_per_pool_away_from_its_weight(weights: list[float], count: int) -> None:
    ask = Asks()
    parts = [RoutedPool([k], serving_router("round-robin", 1, 0)) for k in range(len(weights))]
    router = ByWeight(parts, weights)
    got = [0] * len(weights)
    for n in range(1, count + 1):
        got[router.choose(ask())] += 1
        assert all(
            abs(has - n * weight / sum(weights)) < len(weights) for has, weight in zip(got, weights, strict=True)
        )
