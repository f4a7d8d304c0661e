"""A router that is pickled and restored in the middle of a stream decides as the original does."""

from __future__ import annotations

import pickle
from copy import deepcopy
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.balance.estimate import Left
from steelyard.balance.events import Begun, Called, Ended, ReplicaDown, ReplicaUp, Returned
from steelyard.balance.line import Line
from steelyard.balance.rollouts import Rollouts, Running
from steelyard.balance.route import BucketSpeed, RoutedRequest, Router
from steelyard.balance.route.rollout import ROLLOUT_ROUTERS, TurnChoice, rollout_router
from steelyard.balance.route.serving import (
    SERVING_ROUTERS,
    ByLoad,
    ByModel,
    ByWeight,
    RoutedPool,
    RouterSettings,
    serving_router,
)
from steelyard.records import Turn
from support.engine_worlds import settled

SPEEDS = {
    tp: BucketSpeed(((1, 0.02 / tp + 0.004), (64, 0.05 / tp + 0.004)), 1e-4 / tp, 1e-5, read=1e-8 / tp, reach=0.01)
    for tp in (1, 2, 4)
}
REPLICAS = 4
STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), min_size=10, max_size=80)
Step = tuple[int, int]


class Serving:
    """Sends requests through a router and lets them end; ``decided`` has the replicas."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.decided: list[int] = []
        self.unfinished: list[tuple[RoutedRequest, int]] = []
        self.up = list(range(REPLICAS))

    def take(self, step: Step) -> None:
        what, number = step
        clock = float(len(self.decided))
        if what < 6:
            names = [number % 7, 100 + number % 7, 1000 + number]
            model = "ab"[number % 2]
            request = RoutedRequest(len(self.decided), number % 9, names, 16 * (number % 20) + 1, 0, clock, model)
            self.decided.append(self.router.choose(request))
            self.unfinished.append((request, self.decided[-1]))
        elif what == 6 and self.unfinished:
            self.router.first_token(*self.unfinished[number % len(self.unfinished)], clock)
        elif what in (7, 8) and self.unfinished:
            self.router.ended(*self.unfinished.pop(number % len(self.unfinished)))
        elif what == 9 and len(self.up) == REPLICAS:
            self.router.available(self.up.pop(number % REPLICAS), False)
        elif what == 9:
            (lost,) = set(range(REPLICAS)) - set(self.up)
            self.router.available(lost, True)
            self.up = list(range(REPLICAS))


def pooled(kind: str) -> Router:
    def pool(*numbers: int) -> RoutedPool:
        return RoutedPool(numbers, serving_router("kv-aware", len(numbers), 3))

    if kind == "by-model":
        return ByModel({"a": pool(0, 1), "b": pool(2, 3)})
    pools = [pool(0, 2), pool(1, 3)]
    return ByLoad(pools, [1.0, 2.5]) if kind == "by-load" else ByWeight(pools, [1.0, 2.5])


def serving(name: str) -> Serving:
    if name.startswith("by-"):
        return Serving(pooled(name))
    temperature = 0.5 if name == "kv-aware-drawn" else 0.0
    settings = RouterSettings(cache_blocks=30, temperature=temperature, ttft=3.0)
    return Serving(serving_router(name.removesuffix("-drawn"), REPLICAS, 3, settings))


class Rollout:
    """Places turns by a router; ``decided`` has its choices and what becomes of caches."""

    def __init__(self, name: str) -> None:
        self.router = rollout_router(name, speeds=SPEEDS, seed=3)
        self.rollouts = Rollouts(Line(self.router.rank), self.router.changed, self.router.gone)
        self.decided: list[tuple[str, TurnChoice | str]] = []
        self.begun = 0
        for number in range(REPLICAS):
            self.rollouts.apply(ReplicaUp(0.0, number, (1, 1, 2, 4)[number], 40, 150_000))

    def take(self, step: Step) -> None:
        what, number = step
        at = 0.5 * len(self.decided)
        if what < 4:
            self.begun += 1
            self._estimate(self.rollouts.apply(Begun(at, f"t{self.begun}", f"p{number % 5}", 40 * number)))
        elif what < 6:
            self._call(number, at)
        elif what < 8:
            self._return(number, at)
        elif what == 8:
            self._end(number, at)
        elif number % REPLICAS in self.rollouts.replicas:
            self.rollouts.apply(ReplicaDown(at, number % REPLICAS))
        else:
            self.rollouts.apply(ReplicaUp(at, number % REPLICAS, 2, 40, 150_000))
        self._place(at)

    def _pick(self, doing: str, number: int) -> Running | None:
        some = [trajectory for trajectory in self.rollouts.running.values() if trajectory.doing == doing]
        return some[number % len(some)] if some else None

    def _call(self, number: int, at: float) -> None:
        trajectory = self._pick("generating", number)
        if trajectory is not None:
            self.rollouts.apply(Called(at, trajectory.name, trajectory.epoch, 3 * number + 1))
            cache = self.router.park(trajectory, self.rollouts)
            self.rollouts.park(trajectory, cache)
            self.decided.append((trajectory.name, cache))

    def _return(self, number: int, at: float) -> None:
        trajectory = self._pick("tool", number)
        if trajectory is not None:
            turn = Turn(trajectory.fresh, "ls", "ok", 11 * number, 1.5)
            self._estimate(self.rollouts.apply(Returned(at, trajectory.name, trajectory.epoch, turn)))

    def _end(self, number: int, at: float) -> None:
        trajectory = self._pick("generating", number)
        if trajectory is not None:
            self.rollouts.apply(Ended(at, trajectory.name, trajectory.epoch, Turn(5 * number + 1)))
            self.router.ended(trajectory)

    def _estimate(self, trajectory: Running | None) -> None:
        assert trajectory is not None
        mean = 37.0 * (len(trajectory.name) + len(trajectory.history.turns)) + trajectory.history.context
        trajectory.left = Left(mean, 1.7 * mean)

    def _place(self, at: float) -> None:
        while (trajectory := self.rollouts.waiting.first()) is not None:
            choice = self.router.choose(trajectory, self.rollouts, at)
            if choice is None:
                return
            self.decided.append((trajectory.name, choice))
            stays = trajectory.replica in (None, choice.replica)
            self.rollouts.place(trajectory, choice.replica, "keep" if stays else choice.cache)


def goes_on_as_restored(stream: Serving | Rollout, steps: list[Step], cut: int) -> None:
    """Take some steps, then the rest in the original, in one restored once and in one restored again and again."""
    for step in steps[:cut]:
        stream.take(step)
    restored, again = pickle.loads(pickle.dumps(stream)), deepcopy(stream)
    for step in steps[cut:]:
        stream.take(step)
        restored.take(step)
        again.take(step)
        again = pickle.loads(pickle.dumps(again)) if len(again.decided) % 8 == 0 else again
    assert stream.decided == restored.decided == again.decided


@pytest.mark.parametrize("name", [*SERVING_ROUTERS, "kv-aware-drawn", "by-model", "by-load", "by-weight"])
@settled(25)
@given(STEPS, st.integers(0, 60))
def test_a_restored_serving_router_goes_on(name: str, steps: list[Step], cut: int) -> None:
    if name == "by-model":
        steps = [step for step in steps if step[0] != 9]  # each model keeps its replicas
    goes_on_as_restored(serving(name), steps, cut)


@pytest.mark.parametrize("name", ROLLOUT_ROUTERS)
@settled(5)
@given(st.integers(0, 1000), st.integers(0, 300))
def test_a_restored_rollout_router_goes_on(name: str, seed: int, cut: int) -> None:
    """Long enough for replicas to fill: the default sums up a replica again when an eighth of it has changed."""
    random = Random(seed)
    kinds = random.choices(range(10), weights=[8, 8, 8, 8, 6, 6, 6, 6, 2, 1], k=400)
    goes_on_as_restored(Rollout(name), [(kind, random.randrange(100)) for kind in kinds], cut)
