"""Planners: the makespan model against the simulator, the search against all there is, and when plans change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.planner_model import CASES, OVERLOADED, Case
from steelyard.balance.plan import (
    Bucket,
    Classes,
    LengthsChanged,
    Measured,
    Mode,
    OneAtATime,
    Payback,
    Plan,
    PlannerState,
    ProportionalPlanner,
    ReplicaModel,
    Search,
    Searching,
    Simulated,
    Static,
    TrainOption,
    Triggers,
    World,
    libra,
    makespans,
    oracle,
    predicted,
)
from steelyard.balance.plan import buckets as planned_buckets
from steelyard.balance.plan.buckets import ByLength, Frontiers, classes_of, replica_counts
from steelyard.errors import UserError
from steelyard.records import Floats, Ints, Trajectory, Turn
from support.plan_world import batch, options, replica, train, world


def squared(option: TrainOption, lengths: Ints) -> float:
    """Training that needs more GPUs than rollout does as lengths grow."""
    return float((lengths.astype(float) ** 2).sum()) * 3e-8 / option.gpus


def one(model: ReplicaModel, classes: Classes, load: float, **more: bool) -> float:
    return float(makespans(model, classes, np.array([load]), np.array([0]), np.array([len(classes)]), **more)[0])


# -- the makespan model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_model_is_near_the_simulator(case: Case) -> None:
    assert case.predicted() == pytest.approx(case.simulated(), rel=0.10)


@pytest.mark.parametrize("case", OVERLOADED[:2], ids=str)
def test_it_is_not_far_where_turns_queue(case: Case) -> None:
    assert case.predicted() == pytest.approx(case.simulated(), rel=0.15)


def test_columns_of_trajectories() -> None:
    turns = (Turn(10, "a", "ok", 5, 2.0), Turn(20, "a", "ok", 7, None), Turn(30))
    found = Measured.of([Trajectory("x", "p", "t", turns, 100)], 4)
    assert (found.generated[0], found.turns[0], found.prompt[0]) == (60, 3, 100)
    assert found.tools[0] == 2.0
    assert found.context[0] == 100 + 60 + 12
    assert found.read[0] == 100 + 115 + 142
    with pytest.raises(UserError, match="trajectories are needed"):
        Measured.of([])


def test_alone_a_trajectory_takes_its_own_steps_and_tools() -> None:
    model = replica(2)
    turns = (Turn(500, "a", "ok", 0, 30.0), Turn(500))
    classes = Classes.of(Measured.of([Trajectory("x", "p", "t", turns, 1)]), 0.01)
    assert one(model, classes, 1.0) == pytest.approx(30.0 + 1000 * model.speed.step(1, 500), rel=0.01)


def test_the_longest_trajectory_and_tools_bound_it() -> None:
    """One trajectory of 20,000 tokens among short ones: neither mean lengths nor more replicas hide it."""
    few = batch(size=200, median=100, spread=0.1)
    long = replace(few, generated=np.append(few.generated[1:], 20_000), context=np.append(few.context[1:], 20_300))
    model = replica(1)
    classes = Classes.of(long, 0.018)
    assert one(model, classes, 1.0) > 20_000 * model.speed.step(1, 0)
    slow = replace(long, tools=long.tools + 500.0)
    assert one(model, Classes.of(slow, 0.018), 1.0) == pytest.approx(one(model, classes, 1.0) + 500.0, rel=0.02)


def test_seats_and_cache_make_turns_wait() -> None:
    classes, roomy = Classes.of(batch(spread=0.3), 0.018), replica(1)
    free = one(roomy, classes, 200.0)
    assert one(replace(roomy, seats=20), classes, 200.0) > 1.5 * free
    assert one(replace(roomy, capacity=30_000), classes, 200.0) > 1.5 * free
    assert one(replace(roomy, launch=0.2), classes, 200.0) > free
    assert one(roomy, classes, 20.0, sticky=False) > one(roomy, classes, 20.0)


@settings(max_examples=25)
@given(st.integers(0, 1000), st.integers(2, 300), st.floats(0.1, 1.5), st.sampled_from([1, 2, 4, 8]))
def test_more_load_is_never_faster(seed: int, size: int, spread: float, tp: int) -> None:
    classes = Classes.of(batch(seed, size, spread=spread), 0.018)
    loads = size / np.arange(1, size + 1)
    zeros = np.zeros(size, dtype=np.int64)
    found = makespans(replica(tp), classes, loads, zeros, zeros + len(classes))
    assert np.isfinite(found).all()
    assert (found[1:] <= found[:-1] * 1.02).all()
    assert (found >= classes.tools.max()).all()


# -- the search -----------------------------------------------------------------------------------------------------


def every_rollout(here: World, measured: Measured, gpus: int, tables: dict[int, Floats]) -> float:
    """The best of up to four groups of replicas, of any degrees in any order, with cuts between any two classes."""
    number = len(classes_of(here, measured))
    nothing = np.full(number + 1, inf)  # makespans of the classes up to each cut
    nothing[0] = 0.0

    def best(worst: Floats, left: int, groups: int) -> float:
        found = float(worst[number])
        if groups:
            for tp in here.replicas:
                for n in range(1, left // tp + 1):
                    with_these = np.maximum(worst[:, None], tables[tp][n]).min(axis=0)
                    found = min(found, best(with_these, left - n * tp, groups - 1))
        return found

    return best(nothing, gpus, 4)


def all_makespans(here: World, measured: Measured) -> dict[int, Floats]:
    classes = classes_of(here, measured)
    below = np.concatenate([[0.0], np.cumsum(classes.count)])
    tables = {}
    for tp, model in here.replicas.items():
        n, first, last = (
            axis.ravel() for axis in np.mgrid[1 : here.gpus // tp + 1, 0 : len(classes), 1 : len(classes) + 1]
        )
        kept = first < last
        n, first, last = n[kept], first[kept], last[kept]
        table = np.full((here.gpus + 1, len(classes) + 1, len(classes) + 1), inf)
        table[n, first, last] = makespans(model, classes, (below[last] - below[first]) / n, first, last)
        tables[tp] = table
    return tables


def small_instances() -> Iterator[tuple[World, Measured]]:
    for seed in range(200):
        dice = np.random.default_rng([7, seed])
        gpus = int(dice.integers(2, 7))
        measured = batch(seed, int(dice.integers(4, 24)), float(dice.uniform(50, 3000)), float(dice.uniform(0.2, 1.4)))
        tps = [1, *(tp for tp in (2, 4) if tp <= gpus and dice.random() < 0.7)]
        models = {tp: replica(tp, float(dice.uniform(0.004, 0.03)), float(dice.uniform(0.001, 0.008))) for tp in tps}
        share = float(dice.uniform(0.2, 5.0)) * 1e-3
        here = World(
            gpus,
            "overlapped" if dice.random() < 0.5 else "split",
            models,
            options(gpus),
            lambda option, lengths, share=share: share * float(lengths.sum()) / option.gpus,  # type: ignore[misc]
        )
        yield here, measured


def test_rollouts_are_worked_out_once_for_any_training() -> None:
    measured, others = batch(), batch(1)
    here, known = world(), Frontiers()
    slower = {tp: replace(model, seats=4) for tp, model in here.replicas.items()}
    worlds = [
        here,
        world(24),
        world(batches_at_once=3),
        world(by_length=False),
        world(sticky=False),
        world(replicas=slower),
    ]
    for some in (measured, others):
        for each in worlds:
            again = replace(each, options=each.options[:2], train=lambda option, lengths: 1.0)
            assert known.of(again, some) is known.of(each, some)
            assert Search(each, known.of).plans(some) == Search(each).plans(some)
    assert len({id(known.of(each, some)) for each in worlds for some in (measured, others)}) == 12


def test_a_planner_works_rollouts_out_once_however_many_worlds_it_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[World] = []

    class Counted(ByLength):
        def __init__(self, world: World, measured: Measured) -> None:
            made.append(world)
            super().__init__(world, measured)

    monkeypatch.setattr(planned_buckets, "ByLength", Counted)
    here, measured = world(32), batch()
    planner = Simulated(here, lambda plan, state: plan.step)
    for step in (0, 5):
        planner.plan(PlannerState(step, measured))
    assert len(made) == 1 + len(here.replicas)  # buckets by length, and each degree alone
    replace(planner, shortlist=1).plan(PlannerState(10, batch(1)))
    assert len(made) == 2 * (1 + len(here.replicas))


def test_within_two_percent_of_exhaustive_search() -> None:
    """200 small clusters. The search looks at a few cuts only, the exhaustive one at all of them."""
    worse = []
    for here, measured in small_instances():
        tables = all_makespans(here, measured)
        best = min(
            here.together(
                here.train(option, measured.context), every_rollout(here, measured, here.gpus - option.gpus, tables)
            )
            for option in here.options
        )
        worse.append(Search(here).best(measured).step / best - 1)
    assert len(worse) == 200
    assert max(worse) < 0.02


def test_what_is_predicted_is_what_the_model_says_of_the_plan() -> None:
    here, measured = world(48), batch(3, 1024)
    best = Search(here).best(measured)
    again = predicted(here, best, measured)
    assert again.step == pytest.approx(best.step, rel=0.03)
    assert best.rollout_gpus + best.training.gpus <= 48
    assert best.runner_up is not None
    assert best.runner_up.step >= best.step
    assert best.runner_up.layout != best.layout
    slower = "rollout" if best.rollout >= best.train else "training"
    assert best.why.startswith(f"{slower} is the longer stage")


def test_work_does_not_grow_with_the_cluster() -> None:
    for gpus, most in ((48, 5_000), (1024, 15_000)):
        search = Search(world(gpus))
        search.best(batch(0, 2048))
        assert 0 < search.evaluations < most
        assert search.asked <= len(search.world.options)
    assert len(replica_counts(1024)) < 70
    assert replica_counts(1024)[-1] == 1024


def test_a_degree_whose_cache_is_too_small_is_not_used() -> None:
    measured = batch()
    tight = {1: replica(1, capacity=int(measured.context.max()) - 1), 4: replica(4)}
    plan = Search(world(16, replicas=tight, by_length=False)).best(measured)
    assert list(plan.replicas) == [4]
    simulated = Simulated(world(16, replicas=tight, by_length=False), lambda plan, _: plan.step)
    assert {tuple(each.replicas) for each in simulated.candidates([measured])} == {(4,)}
    for small in ({1: tight[1]}, {1: tight[1], 32: replica(32)}):
        with pytest.raises(UserError, match="holds the longest trajectory"):
            Search(world(16, replicas=small)).best(measured)
        with pytest.raises(UserError, match="holds the longest trajectory"):
            Simulated(world(16, replicas=small), lambda plan, _: plan.step).plan(PlannerState(0, measured))
    with pytest.raises(UserError, match="holds the longest trajectory"):
        Search(world(16, options=[TrainOption("short", 4, budget=100)])).best(measured)


def test_long_ones_get_the_higher_degree() -> None:
    measured = batch(1, 512, median=300, spread=1.3)
    quick = {"train": lambda option, lengths: train(option, lengths) / 20}
    plan = Search(world(24, **quick)).best(measured)
    assert len(plan.replicas) > 1
    assert [bucket.upto for bucket in plan.buckets] == sorted(bucket.upto for bucket in plan.buckets)
    assert plan.buckets[-1].upto == measured.generated.max()
    blind = Search(world(24, by_length=False, **quick)).best(measured)
    assert len(blind.replicas) == 1
    assert blind.step >= plan.step


def test_modes() -> None:
    measured = batch()
    same = Search(world(16, mode="colocated", options=[TrainOption("all", 16, budget=1 << 20), *options(16)]))
    plan = same.best(measured)
    assert plan.training.gpus == plan.rollout_gpus == 16
    assert plan.step == pytest.approx(plan.train + plan.rollout)
    apart = Search(world(16, sync=lambda option, buckets: 9.0)).best(measured)
    assert apart.step == pytest.approx(max(apart.train, apart.rollout) + 9.0)
    ahead = Search(world(16, batches_at_once=3)).best(measured)
    assert ahead.step <= apart.step - 9.0


# -- Libra ----------------------------------------------------------------------------------------------------------


def test_dividing_twice_picks_the_highest_degree_everywhere() -> None:
    """As published the plan is TP8 throughout, and predicts steps that no GPU can do; corrected it is not."""
    here, measured = world(48, train=lambda option, lengths: train(option, lengths) / 20), batch(0, 2048)
    published, corrected = libra(here, published=True).best(measured), libra(here).best(measured)
    assert list(published.replicas) == [8]
    assert list(corrected.replicas) != [8]
    assert published.rollout < 0.5 * predicted(here, published, measured).rollout
    assert predicted(here, corrected, measured).step <= predicted(here, published, measured).step


def test_deep_pipelines_are_pruned() -> None:
    deep = TrainOption("pp8", 8, pp=8, dp=1, budget=1 << 20)
    flat = TrainOption("dp8", 8, dp=8, budget=1 << 20)
    here = world(16, options=[deep, flat], train=lambda option, lengths: 1.0 if option.pp == 8 else 2.0)
    measured = batch(0, 20)
    assert libra(here).best(measured).training == flat
    assert Search(here).best(measured).training == deep


def test_layouts_that_mostly_exchange_are_pruned_by_libra_alone() -> None:
    wide = TrainOption("tp8", 8, dp=1, budget=1 << 20)
    flat = TrainOption("dp8", 8, dp=8, budget=1 << 20)
    fast = world(16, options=[wide, flat], train=lambda option, lengths: 1.0 if option is wide else 2.0)
    measured = batch(0, 20)
    assert libra(fast).best(measured).training == wide
    for share, chosen in ((0.5, wide), (0.51, flat)):
        here = replace(fast, exchange={wide: share})
        assert {libra(here, published=published).best(measured).training for published in (True, False)} == {chosen}
        assert Search(here).best(measured).training == wide


# -- when plans change ----------------------------------------------------------------------------------------------


def test_triggers() -> None:
    plan = Search(world()).best(batch())
    calm = PlannerState(3, batch(), plan, train=10.0, rollout=11.0)
    triggers = Triggers(every=5)
    before = replace(calm, step=1)
    assert not triggers.due(calm, before)
    assert triggers.due(calm, None)
    assert triggers.due(replace(calm, step=6), before)
    for change in ({"queued": 0.75}, {"active": 0.85}, {"rejected": 1}, {"rollout": 12.5}, {"train": 13.75}):
        assert triggers.due(replace(calm, **change), before), change


def test_a_change_has_to_pay_for_what_it_was_measured_to_cost() -> None:
    state = PlannerState(0, batch(), None)
    pays = Payback(margin=0.05, horizon=10, switch=15.0).pays
    assert pays(100.0, 90.0, state)
    assert not pays(100.0, 96.0, state)
    assert not pays(10.0, 9.0, state)
    assert pays(10.0, 9.0, replace(state, switches=(2.0,)))
    assert not pays(100.0, 90.0, replace(state, switches=(150.0, 150.0)))


def test_static_never_changes() -> None:
    planner = Static(Searching(Search(world())))
    plan = planner.plan(PlannerState(0, batch()))
    assert plan is not None
    assert planner.plan(PlannerState(50, batch(1, median=8000), plan, 1.0, 900.0, rejected=5)) is None


def test_searching_follows_lengths_and_leaves_small_gains() -> None:
    planner = Searching(Search(world(32, train=squared)))
    plan = planner.plan(PlannerState(0, batch(0, 1024, spread=0.5)))
    assert plan is not None
    assert planner.plan(PlannerState(10, batch(1, 1024, spread=0.5), plan)) is None
    longer = planner.plan(PlannerState(20, batch(2, 1024, 4000, 0.5), plan))
    assert longer is not None
    assert longer.layout != plan.layout
    assert longer.instead is not None and longer.instead > longer.step


def test_searching_learns_that_a_stage_is_slower_than_predicted() -> None:
    """Training takes four times what the model says: more GPUs go to it than at first."""
    planner, measured = Searching(Search(world(32, train=lambda o, x: train(o, x) / 20))), batch(0, 1024)
    first = planner.plan(PlannerState(0, measured))
    assert first is not None
    then = planner.plan(PlannerState(5, measured, first, train=4 * first.train, rollout=first.rollout))
    assert then is not None
    assert then.training.gpus > first.training.gpus


def test_one_unit_at_a_time_towards_the_slower_stage() -> None:
    here, measured = world(32), batch()
    planner = OneAtATime(here)
    plan = planner.plan(PlannerState(0, measured))
    assert plan is not None
    assert plan.training.gpus == 16
    fewer = planner.plan(PlannerState(1, measured, plan, train=10.0, rollout=100.0))
    more = OneAtATime(here).plan(PlannerState(1, measured, fewer, train=100.0, rollout=10.0))
    assert fewer is not None
    assert more is not None
    assert (fewer.training.gpus, more.training.gpus) == (8, 16)
    assert planner.plan(PlannerState(2, measured, fewer, train=100.0, rollout=105.0)) is None


def test_proportional_splits_by_measured_work() -> None:
    here, measured = world(32), batch()
    planner = ProportionalPlanner(here)
    plan = planner.plan(PlannerState(0, measured))
    assert plan is not None
    then = planner.plan(PlannerState(5, measured, plan, train=20.0, rollout=150.0))
    assert then is not None
    assert then.training.gpus == 4
    assert planner.plan(PlannerState(10, measured, plan, train=100.0, rollout=101.0)) is None


def test_simulations_decide_among_the_shortlist() -> None:
    """A router that ruins mixed buckets is seen by simulations alone."""
    here, measured = world(24, train=lambda o, x: train(o, x) / 10), batch(1, 512, median=300, spread=1.3)
    asked: list[Plan] = []

    def simulate(plan: Plan, _: PlannerState) -> float:
        asked.append(plan)
        return plan.step * (3.0 if len(plan.replicas) > 1 else 1.0)

    planner = Simulated(here, simulate)
    plan = planner.plan(PlannerState(0, measured))
    assert plan is not None
    assert len(plan.replicas) == 1
    assert any(len(each.replicas) > 1 for each in asked)
    assert len({each.layout for each in asked}) == len(asked) == planner.simulations <= 15
    assert plan.step == min(simulate(each, PlannerState(0, measured)) for each in list(asked))
    assert planner.plan(PlannerState(9, measured, plan)) is None


@pytest.mark.parametrize(("slower", "side"), [(0.4, 1), (2.5, -1)])
def test_simulations_go_beyond_the_shortlist_while_that_gains(slower: float, side: int) -> None:
    """Rollouts that are quicker than the model says leave more GPUs to training, and slower ones fewer."""
    here, measured = world(24, train=lambda o, x: train(o, x) / 3), batch(1, 512, median=300, spread=1.3)

    def simulate(plan: Plan, _: PlannerState) -> float:
        now = predicted(here, plan, measured)
        return max(now.train, slower * now.rollout)

    believed = Search(here).best(measured)
    plan = Simulated(here, simulate, shortlist=1, least=lambda plan, _: plan.train).plan(PlannerState(0, measured))
    assert plan is not None
    assert side * (plan.training.gpus - believed.training.gpus) > 0
    assert plan.step < simulate(believed, PlannerState(0, measured))


@pytest.mark.parametrize(("gain", "as_good"), [(0.05, True), (0.4, False)])
def test_of_plans_that_are_as_good_that_with_most_engines_is_taken(gain: float, as_good: bool) -> None:
    here, measured = world(24), batch()

    seen: dict[int, float] = {}  # seconds by GPUs that roll out

    def simulate(plan: Plan, _: PlannerState) -> float:
        seen[plan.rollout_gpus] = 100.0 - gain * plan.training.gpus  # the more train the better, but hardly, or by 3 %
        return seen[plan.rollout_gpus]

    plan = Simulated(here, simulate).plan(PlannerState(0, measured))
    assert plan is not None
    assert plan.rollout_gpus == (max if as_good else min)(seen) and len(seen) > 1
    assert (plan.step > min(seen.values())) == as_good
    assert ("most GPUs to roll out" in plan.why) == as_good, "why not the best"


def test_a_plan_that_was_but_lucky_in_a_short_simulation_is_not_chosen() -> None:
    """Longer simulations find plans better the more roll out; short ones the other way round."""
    here = world(24, replicas={1: replica(1)})
    sure: list[Plan] = []

    def confirm(plan: Plan, _: PlannerState) -> float:
        sure.append(plan)
        return 100.0 - plan.rollout_gpus

    def simulate(plan: Plan, _: PlannerState) -> float:
        return 80.0 - plan.training.gpus

    lucky = Simulated(here, simulate).plan(PlannerState(0, batch()))
    plan = Simulated(here, simulate, confirm).plan(PlannerState(0, batch()))
    assert plan is not None and plan.runner_up is not None and lucky is not None
    assert sure[0].layout == lucky.layout, "as it would have been chosen"
    assert plan.layout == sure[-1].layout != lucky.layout and plan.step == 100.0 - plan.rollout_gpus
    assert len({each.layout for each in sure}) == len(sure), "each once"


def test_plans_that_a_lucky_one_kept_from_being_tried_are_tried_after_it() -> None:
    here = world(24, replicas={1: replica(1)})
    seen: list[int] = []

    def simulate(plan: Plan, _: PlannerState) -> float:
        seen.append(plan.training.gpus)
        return 10.0 if plan.training.gpus == max(lucky) else 80.0 - plan.training.gpus

    lucky = [0]
    Simulated(here, simulate, shortlist=1).plan(PlannerState(0, batch()))
    lucky = [seen[0]]  # that with which it begins
    seen.clear()
    hidden = Simulated(here, simulate, shortlist=1, least=lambda plan, _: 60.0 - plan.training.gpus)
    hidden.plan(PlannerState(0, batch()))
    alone = set(seen)
    shown = replace(hidden, confirm=lambda plan, _: 80.0 - plan.training.gpus, simulations=0, _last=None)
    plan = shown.plan(PlannerState(0, batch()))
    assert plan is not None and alone == set(lucky) and plan.training.gpus not in alone


def test_plans_that_come_close_are_compared_by_longer_simulations() -> None:
    """Short ones find all as good, which would leave the choice to the number of engines."""
    here, sure = world(24, replicas={1: replica(1)}), dict[int, float]()

    def confirm(plan: Plan, _: PlannerState) -> float:
        return sure.setdefault(plan.training.gpus, 100.0 - plan.training.gpus)

    def simulate(plan: Plan, _: PlannerState) -> float:
        return 100.0 - 0.1 * plan.training.gpus

    safest = Simulated(here, simulate).plan(PlannerState(0, batch()))
    plan = Simulated(here, simulate, confirm).plan(PlannerState(0, batch()))
    assert plan is not None and safest is not None and len(sure) > 1
    assert plan.training.gpus == max(sure) > safest.training.gpus


def test_only_who_comes_close_is_simulated_for_longer() -> None:
    sure: list[Plan] = []

    def confirm(plan: Plan, _: PlannerState) -> float:
        sure.append(plan)
        return 80.5 - plan.training.gpus

    planner = Simulated(world(24, replicas={1: replica(1)}), lambda plan, _: 80.0 - plan.training.gpus, confirm)
    plan = planner.plan(PlannerState(0, batch()))
    assert plan is not None and [each.layout for each in sure] == [plan.layout]


def let_down_by(
    *seconds: float, again: Measured | None = None, degrees: Sequence[int] = (1,)
) -> tuple[Simulated, list[Plan]]:
    """A planner that finds plans the better the more train; steps of each that it comes to then take so many seconds.
    ``again`` is measured last."""
    here = world(24, replicas={tp: replica(tp) for tp in degrees})
    planner = Simulated(here, lambda plan, _: 100.0 - plan.training.gpus, triggers=LengthsChanged())
    step, now = 0, planner.plan(PlannerState(0, batch()))
    plans = []
    for took in seconds:
        assert now is not None
        plans.append(now)
        for _ in range(8):
            step += 1
            then = planner.plan(PlannerState(step, batch(), now, took=took))
            if then is not None:
                now = then
                break
    assert now is not None
    then = planner.plan(PlannerState(step + 1, again or batch(), now))
    return planner, [*plans, then or now]


def test_a_plan_whose_steps_take_as_predicted_is_kept_and_not_looked_at_again() -> None:
    planner, (first, last) = let_down_by(100.0 - 16)
    once, _ = let_down_by()
    assert first.layout == last.layout
    assert planner.simulations == once.simulations


def test_a_plan_whose_steps_take_longer_than_another_was_to_take_is_left_for_it() -> None:
    _, (first, last) = let_down_by(130.0)
    assert last.step > first.step and last.layout != first.layout
    assert last.instead is not None and first.step < last.instead < 130.0  # by both, what was predicted and what came


def test_a_plan_with_as_few_engines_is_taken_to_be_as_late() -> None:
    _, (first, last) = let_down_by(130.0, degrees=(1, 2, 4, 8))  # on as many GPUs others were predicted the same
    assert last.rollout_gpus > first.rollout_gpus


def test_what_plans_took_is_remembered_until_trajectories_change() -> None:
    _, (first, second, third) = let_down_by(130.0, 160.0)
    assert len({first.layout, second.layout, third.layout}) == 3, "neither is gone back to"
    _, (first, second, third) = let_down_by(130.0, second.step, again=batch(5, median=4000))
    assert first.layout != second.layout and first.layout == third.layout


def test_hopeless_plans_are_not_simulated() -> None:
    """Where a bound says that others cannot be better, and beyond numbers of GPUs that gain nothing."""
    here, measured = world(24), batch()
    bounded = Simulated(here, lambda plan, _: plan.step, least=lambda plan, _: plan.step)
    free = Simulated(here, lambda plan, _: plan.step)
    one, other = (each.plan(PlannerState(0, measured)) for each in (bounded, free))
    assert one is not None and other is not None and one.layout == other.layout
    numbers = {option.gpus for option in here.options}
    assert bounded.simulations < free.simulations < 2 * len(numbers)


@pytest.mark.parametrize(("mode", "looked_at"), [("overlapped", 1), ("split", 4)])
def test_rollouts_that_keep_nobody_waiting_are_good_enough_beside_training(mode: Mode, looked_at: int) -> None:
    """Where stages take turns, a faster rollout always counts."""
    here, measured = replace(world(24), mode=mode), batch()
    glanced: dict[int, set[object]] = {}  # layouts by GPUs that train

    def glance(plan: Plan, _: PlannerState) -> float:
        glanced.setdefault(plan.training.gpus, set()).add(plan.layout)
        return 0.5 * plan.train

    Simulated(here, lambda plan, _: plan.step, glance=glance, least=lambda plan, _: plan.train).plan(
        PlannerState(0, measured)
    )
    assert max(map(len, glanced.values())) == looked_at


def test_the_oracle_plans_for_what_comes() -> None:
    here = world(32, train=squared, replicas={tp: replica(tp) for tp in (2, 4)})
    now, then = batch(0, 1024, spread=0.5), batch(2, 1024, 4000, 0.5)
    knows = oracle(Simulated(here, lambda plan, _: predicted(here, plan, then).step), lambda _: then)
    chosen = knows.plan(PlannerState(0, now))
    guessed = Simulated(here, lambda plan, _: predicted(here, plan, now).step).plan(PlannerState(0, now))
    assert chosen is not None
    assert guessed is not None
    assert predicted(here, chosen, then).step < predicted(here, guessed, then).step


def test_worlds_without_choices_are_refused() -> None:
    with pytest.raises(UserError, match="at least one degree"):
        world(8, options=[])
    with pytest.raises(UserError, match="leaves 1 of 1 GPUs"):
        ProportionalPlanner(world(1, options=[TrainOption("dp1", 1)])).plan(PlannerState(0, batch()))


def test_buckets_and_frontier_agree() -> None:
    here, measured = world(20), batch(5, 700)
    frontier = ByLength(here, measured)
    for gpus in range(1, 21):
        rollout = frontier.rollout(gpus)
        assert sum(bucket.gpus for bucket in rollout.buckets) <= gpus
        assert rollout.seconds <= frontier.seconds(gpus) * 1.001
        assert all(isinstance(bucket, Bucket) and bucket.replicas > 0 for bucket in rollout.buckets)
