"""Routers of trajectories: each one's rule by hand, fast structures against plain scans, and who wins a long tail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import mul
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.balance.commands import Park, Place, RolloutCommand
from steelyard.balance.estimate import UNKNOWN, History, Left, Noisy, Oracle
from steelyard.balance.events import (
    Begun,
    Called,
    Ended,
    Moved,
    ReplicaDown,
    ReplicaUp,
    Returned,
    RolloutEvent,
)
from steelyard.balance.placement import Placement
from steelyard.balance.rollouts import Replica, Rollouts, Running
from steelyard.balance.route import BucketSpeed
from steelyard.balance.route.ranking import Ranking
from steelyard.balance.route.rollout import DEFAULT, ROLLOUT_ROUTERS, rollout_router
from steelyard.balance.route.rollout.bins import BINS, ReplicaBins
from steelyard.balance.route.rollout.cmlfq import CMlfq
from steelyard.balance.route.rollout.demand import LENGTHS, Demand, DemandModel, lengths, unknown
from steelyard.balance.route.rollout.finish import FinishPredictor
from steelyard.errors import UserError
from steelyard.records import Trajectory, Turn
from support.engine_worlds import settled

SPEEDS = {
    tp: BucketSpeed(((1, 0.02 / tp + 0.004), (64, 0.05 / tp + 0.004)), 1e-4 / tp, 1e-5, read=1e-8 / tp, reach=0.01)
    for tp in (1, 2, 4, 8)
}


class Told:
    """An estimator that says what a test has told it to."""

    def __init__(self) -> None:
        self.left: dict[str, Left] = {}

    def observe(self, history: History) -> Left:
        return self.left.get(history.trajectory, UNKNOWN)

    def learn(self, done: Trajectory) -> None:
        pass


class Bench:
    """A core with replicas of given degrees, driven by hand."""

    def __init__(self, router: str, degrees: Sequence[int], seats: int = 8, tokens: int = 10**6) -> None:
        self.told = Told()
        self.epochs: dict[str, int] = {}  # of the last places
        self.core = Placement(rollout_router(router, speeds=SPEEDS), self.told, self.told)
        for number, tp in enumerate(degrees):
            self.core.decide(ReplicaUp(0.0, number, tp, seats, tokens))

    def decide(self, event: RolloutEvent) -> list[RolloutCommand]:
        """Commands without the epochs of places, which are kept for what is reported of them."""
        assert self.core.rollouts.accepts(event) is None
        commands = self.core.decide(event)
        self.epochs |= {command.trajectory: command.epoch for command in commands if isinstance(command, Place)}
        return [replace(command, epoch=0) if isinstance(command, Place) else command for command in commands]

    def begin(self, name: str, prompt: str = "p", tokens: int = 100, left: Left = UNKNOWN) -> Place | None:
        self.told.left[name] = left
        return _only_place(self.decide(Begun(0.0, name, prompt, tokens)))

    def call(self, name: str, generated: int = 10) -> list[RolloutCommand]:
        return self.decide(Called(1.0, name, self.epochs[name], generated))

    def back(self, name: str, left: Left = UNKNOWN, generated: int = 10, returned: int = 5) -> Place | None:
        self.told.left[name] = left
        turn = Turn(generated, "ls", "ok", returned, 1.0)
        return _only_place(self.decide(Returned(2.0, name, self.epochs[name], turn)))

    def end(self, name: str, generated: int = 5) -> list[RolloutCommand]:
        return self.decide(Ended(1.0, name, self.epochs[name], Turn(generated)))

    def turn(self, name: str, left: Left = UNKNOWN, generated: int = 10, returned: int = 5) -> Place | None:
        self.call(name, generated)
        return self.back(name, left, generated, returned)

    def where(self) -> dict[str, int | None]:
        return {name: trajectory.replica for name, trajectory in self.core.rollouts.running.items()}


def _only_place(commands: list[RolloutCommand]) -> Place | None:
    places = [command for command in commands if isinstance(command, Place)]
    assert len(places) == len(commands) <= 1
    return places[0] if places else None


def exactly(tokens: float) -> Left:
    return Left(tokens, tokens)


# -- the plain ones ---------------------------------------------------------------------------------------------------


def test_round_robin_goes_round_who_is_up() -> None:
    bench = Bench("round-robin", [1, 1, 1])
    assert [place and place.replica for place in map(bench.begin, "abcd")] == [0, 1, 2, 0]
    bench.decide(ReplicaDown(1.0, 1))  # b begins again, on the next: 2
    assert bench.where()["b"] == 2
    assert [place and place.replica for place in map(bench.begin, "efg")] == [0, 2, 0]
    place = bench.turn("a")
    assert place == Place("a", 2, source=0, cache="drop")


def test_least_outstanding_counts_turns_under_way() -> None:
    bench = Bench("least-outstanding", [1, 1])
    assert [place and place.replica for place in map(bench.begin, "abc")] == [0, 1, 0]
    bench.call("a")
    bench.call("c")
    place = bench.begin("d")
    assert place and place.replica == 0
    assert bench.back("a") == Place("a", 0, source=0)


def test_sticky_stays_however_busy_and_goes_elsewhere_only_when_lost() -> None:
    bench = Bench("sticky", [1, 1])
    bench.begin("a")
    bench.begin("b")
    bench.call("b")
    for name in "cdef":
        bench.begin(name, left=exactly(1))
    bench.call("a")
    bench.call("c")
    assert bench.back("b") == Place("b", 1, source=1)
    bench.decide(ReplicaDown(3.0, 0))
    assert bench.back("a") == Place("a", 1)


def test_prefix_aware_keeps_groups_together_until_far_busier() -> None:
    bench = Bench("prefix-aware", [1, 1], seats=99)
    groups = [bench.begin(f"a{number}", "group") for number in range(6)]
    assert [place and place.replica for place in groups] == [0] * 5 + [1]  # 4 above none is too many after that
    assert bench.begin("other", "else") == Place("other", 1)
    assert bench.turn("a0") == Place("a0", 0, source=0)


def test_prefix_aware_forgets_groups_that_have_ended() -> None:
    bench = Bench("prefix-aware", [1, 1])
    for name in "ab":
        bench.begin(name, "one")
    bench.begin("c", "two")
    for name in "ab":
        bench.end(name, 1)
    place = bench.begin("d", "one")
    assert place and place.replica == 0
    bench.begin("e", "two")
    assert bench.where()["e"] == 1


def test_prefix_aware_forgets_what_a_lost_replica_held() -> None:
    bench = Bench("prefix-aware", [1, 1, 1])
    bench.begin("a")
    bench.decide(ReplicaDown(1.0, 0))
    bench.decide(ReplicaUp(2.0, 0, 1, 8, 100, epoch=1))
    assert bench.where() == {"a": 1}
    assert bench.begin("b") == Place("b", 1)


def test_power_of_two_takes_the_less_busy_of_a_draw_that_names_decide() -> None:
    def run(names: list[str]) -> list[int]:
        bench = Bench("power-of-two", [1] * 16, seats=99)
        places = [bench.begin(name) for name in names]
        return [place.replica for place in places if place]

    names = [f"t{number}" for number in range(160)]
    chosen = run(names)
    assert chosen == run(names)
    loads = [chosen.count(number) for number in range(16)]
    assert max(loads) - min(loads) <= 6  # drawing one of sixteen alone leaves 10 to 20 between them
    assert {run([name])[0] for name in names} == set(range(15))  # the last one loses every tie


# -- those that rank --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("router", ["shortest-first", "length-predicted"])
def test_the_fewest_left_go_first(router: str) -> None:
    bench = Bench(router, [1], seats=1)
    assert bench.begin("now", left=exactly(50)) == Place("now", 0, priority=50)
    assert bench.begin("long", left=exactly(900)) is None
    assert bench.begin("short", left=exactly(30)) is None
    assert bench.end("now", 50) == [Place("short", 0, priority=30)]
    assert bench.call("short") == [Park("short", "keep"), Place("long", 0, priority=900)]


def test_the_least_served_go_first_and_stay() -> None:
    bench = Bench("least-attained", [1, 1])
    bench.begin("a")
    bench.begin("b")
    bench.call("b")
    assert bench.turn("a", generated=70) == Place("a", 0, priority=70, source=0)
    assert bench.turn("a", generated=10) == Place("a", 0, priority=80, source=0)
    assert bench.back("b", generated=7) == Place("b", 1, priority=7, source=1)


def test_heddle_sorts_the_longest_onto_the_highest_degree_and_serves_them_first() -> None:
    bench = Bench("heddle", [1, 1, 1, 1, 4], seats=30)
    for number in range(40):
        bench.begin(f"s{number}", left=exactly(100))
    bench.begin("long", left=exactly(8_000))
    assert bench.where()["long"] == 4
    assert bench.core.rollouts.replicas[4].busy == 21  # half of the short ones, as it has half of the GPUs
    place = bench.turn("s1", left=exactly(9_000))
    assert place and (place.replica, place.priority) == (4, -9_000)
    place = bench.turn("long", left=exactly(10))
    assert place and place.replica != 4 and place.cache == "keep"


def test_heddle_lets_the_longest_wait_least() -> None:
    bench = Bench("heddle", [2], seats=1)
    bench.begin("now", left=exactly(5))
    assert bench.begin("short", left=exactly(5)) is None
    assert bench.begin("long", left=exactly(500)) is None
    assert bench.end("now") == [Place("long", 0, priority=-500)]


# -- C-MLFQ as published ----------------------------------------------------------------------------------------------


def test_c_mlfq_starts_short_and_moves_when_mean_and_p90_agree() -> None:
    bench = Bench("c-mlfq", [4, 2, 1, 1])
    assert bench.begin("a", left=exactly(20_000)) == Place("a", 2)
    assert bench.call("a") == [Park("a", "offload")]
    assert bench.back("a", Left(3_000, 5_000)) == Place("a", 2, source=2)  # up to 4k and 12k: they do not agree
    assert bench.turn("a", Left(5_000, 13_000)) == Place("a", 2, source=2)
    assert bench.turn("a", Left(5_000, 11_000)) == Place("a", 1, source=2, cache="drop")  # a short context
    assert bench.turn("a", Left(13_000, 90_000), returned=5_000) == Place("a", 0, source=1)
    bench.decide(Moved(3.0, "a", bench.epochs["a"]))
    assert bench.turn("a", Left(10, 10)) == Place("a", 2, source=0)
    assert bench.turn("a", UNKNOWN) == Place("a", 2, source=2)


def test_c_mlfq_takes_the_larger_caps_without_single_gpus() -> None:
    bench = Bench("c-mlfq", [2, 4, 8])
    bench.begin("a")
    assert bench.turn("a", exactly(4_900)) == Place("a", 0, source=0)
    assert bench.turn("a", exactly(14_900)) == Place("a", 1, source=0, cache="drop")
    assert bench.turn("a", exactly(15_100)) == Place("a", 2, source=1, cache="drop")


def test_c_mlfq_falls_back_when_queues_are_full_and_then_waits() -> None:
    """By requests on a replica, whatever seats it has."""
    bench = Bench("c-mlfq", [1, 2], seats=1)
    places = [bench.begin(f"t{number}") for number in range(129)]
    assert [place and place.replica for place in places] == [0] * 64 + [1] * 64 + [None]
    assert bench.call("t70")[1:] == [Place("t128", 1)]


def test_c_mlfq_has_the_queue_cap_that_it_is_given() -> None:
    rollouts = Rollouts(watch=(router := CMlfq(queue_cap=3)).changed)
    rollouts.apply(ReplicaUp(0.0, 0, 1, 256, 10**6))
    for number in range(4):
        running = rollouts.apply(Begun(0.0, str(number), "p", 10))
        assert running is not None
        found = router.choose(running, rollouts, 0.0)
        assert (found is None) == (number == 3)
        if found is not None:
            rollouts.place(running, found.replica)


# -- cost-aware -------------------------------------------------------------------------------------------------------


def test_cost_aware_sends_the_long_to_the_fast_and_the_short_to_where_they_do_no_harm() -> None:
    bench = Bench(DEFAULT, [8, 1])
    assert bench.begin("long", left=exactly(20_000)) == Place("long", 0, priority=-20_000)
    places = [bench.begin(f"s{number}", left=exactly(200)) for number in range(6)]
    assert {place and place.replica for place in places} == {1}


def test_cost_aware_moves_if_that_pays_for_the_cache() -> None:
    def after_return(left: Left, context: int = 100) -> tuple[int, str]:
        bench = Bench(DEFAULT, [1, 8])
        bench.begin("other", left=exactly(30_000))  # takes the fast one
        bench.begin("a", left=exactly(10), tokens=context)
        assert bench.where() == {"other": 1, "a": 0}
        bench.end("other")
        place = bench.turn("a", left)
        assert place
        return place.replica, place.cache

    assert after_return(exactly(10_000)) == (1, "drop")  # so short a context is computed again
    assert after_return(exactly(10_000), 20_000) == (1, "keep")
    assert after_return(exactly(1), 20_000) == (1, "keep")  # it is in the host's memory, wherever it goes on


def test_cost_aware_waits_for_room_the_longest_first() -> None:
    bench = Bench(DEFAULT, [1, 1], seats=1)
    for name in "ab":
        assert bench.begin(name, left=exactly(10))
    assert bench.begin("short", left=exactly(10)) is None
    assert bench.begin("long", left=exactly(500)) is None
    assert bench.call("b")[1:] == [Place("long", 1, priority=-500)]


def test_cost_aware_lets_an_earlier_batch_go_first() -> None:
    bench = Bench(DEFAULT, [1], seats=1)
    assert bench.begin("a", left=exactly(10))
    for name, version, left in (("later", 1, 900), ("short", 0, 20), ("long", 0, 500)):
        bench.told.left[name] = exactly(left)
        assert bench.decide(Begun(0.0, name, "p", 100, version)) == []
    order = []
    for name in ("a", "long", "short"):
        (place,) = (each for each in bench.end(name) if isinstance(each, Place))
        order.append(place.trajectory)
    assert order == ["long", "short", "later"]


def test_cost_aware_heeds_the_cache_but_lets_a_giant_run_alone() -> None:
    bench = Bench(DEFAULT, [1, 1], tokens=1_000)
    assert bench.begin("giant", tokens=5_000) == Place("giant", 0, priority=-4_080)  # by octaves
    assert bench.begin("a", tokens=600) == Place("a", 1, priority=-4_080)
    assert bench.begin("b", tokens=600) is None
    assert bench.call("a")[1:] == [Place("b", 1, priority=-4_080)]


def test_cost_aware_keeps_only_what_is_computed_again_sooner_than_fetched() -> None:
    bench = Bench(DEFAULT, [1], tokens=1_000)
    bench.begin("a", tokens=990)
    assert bench.call("a", 5) == [Park("a", "offload")]
    for room, parked in ((1_000, Park("a", "keep")), (100, Park("a", "drop"))):
        small = Bench(DEFAULT, [1], tokens=room)
        small.begin("a", tokens=90)
        assert small.call("a", 15) == [parked]  # 10.5 ms to compute again, 11.05 to bring back


def test_cost_aware_wants_a_speed_for_every_degree() -> None:
    with pytest.raises(UserError, match="needs speeds"):
        rollout_router(DEFAULT)
    core = Placement(rollout_router(DEFAULT, speeds={1: SPEEDS[1]}), Told())
    with pytest.raises(UserError, match="tp 2 of replica 7; known: 1"):
        core.decide(ReplicaUp(0.0, 7, 2, 1, 1))
    with pytest.raises(UserError, match="did you mean 'sticky'"):
        rollout_router("stiky")


def test_speeds_are_lines_between_points() -> None:
    speed = BucketSpeed(((2, 1.0), (4, 2.0), (8, 6.0)), prefill=0.5, move=0.1, read=0.01, reach=3.0)
    assert [speed.step(n, 0) for n in (1, 2, 3, 4, 5, 8, 9)] == [1.0, 1.0, 1.5, 2.0, 3.0, 6.0, 7.0]
    assert speed.step(4, 100) == 3.0
    assert (speed.bring(5), speed.moves(5)) == (2.5, False)
    assert (speed.bring(10), speed.moves(10)) == (4.0, True)
    assert BucketSpeed(((1, 1.0),), 1.0, 0.0).step(50, 0) == 1.0
    for decode, prefill in [((), 1.0), (((2, 1.0), (1, 1.0)), 1.0), (((1, 0.0),), 1.0), (((1, 1.0),), 0.0)]:
        with pytest.raises(UserError):
            BucketSpeed(decode, prefill, 0.0)


# -- fast structures against plain scans ------------------------------------------------------------------------------


@settled(100)
@given(st.lists(st.tuples(st.integers(0, 6), st.none() | st.tuples(st.booleans(), st.integers(0, 4))), max_size=60))
def test_a_ranking_is_a_sorted_list(steps: list[tuple[int, tuple[bool, int] | None]]) -> None:
    ranking, plain = Ranking(), dict[int, tuple[bool, int]]()
    for number, load in steps:
        if load is None:
            ranking.remove(number)
            plain.pop(number, None)
        else:
            ranking.put(number, load[1], full=load[0])
            plain[number] = load
        assert list(ranking) == sorted(plain, key=lambda each: (plain[each], each))
        assert len(ranking) == len(plain) and all(
            (ranking.is_full(each), ranking.load(each)) == plain[each] for each in plain
        )
        if plain:
            assert ranking.first() == next(iter(ranking))


def plain_rise(
    speed: BucketSpeed, seats: int, room: int, there: list[Demand], trajectory: Demand, wait: float
) -> float:
    """From the definitions, in steps of a quarter token over everybody who is there."""
    fine, longest = 0.25, max([trajectory.likely[-1], *(each.likely[-1] for each in there)])
    ends = [0.0]
    for quarter in range(int(longest / fine) + 1):
        likely = [float((np.array(each.likely) > quarter * fine).mean()) for each in there]
        people, context = sum(likely), sum(map(mul, likely, (each.usual_context for each in there)))
        at_once = max(1.0, min(seats, room * people / context)) if people else 1.0
        load = sum(
            map(mul, likely, (speed.read * each.usual_context + speed.prefill * each.returned for each in there))
        )
        step = speed.step(max(1, round(min(people, at_once))), 0) * max(1.0, people / at_once)
        ends.append(ends[-1] + fine * (step + load))
    crowded = len(there) > max(
        1.0, min(seats, room * len(there) / sum(each.usual_context for each in there or [trajectory]))
    )
    if crowded:
        at_once = max(1.0, min(seats, room * len(there) / sum(each.usual_context for each in there)))
        more = speed.step(round(at_once), 0) / at_once
    else:
        more = speed.step(len(there) + 1, 0) - speed.step(max(1, len(there)), 0)
    load = more + speed.read * trajectory.usual_context + speed.prefill * trajectory.returned
    rise = float(
        np.mean([(ends[int(x / fine)] + (load + trajectory.tools) * x + wait) ** 8 for x in trajectory.likely])
    )
    for each in there:
        for x in each.likely:
            later = wait + load * float(np.minimum(trajectory.likely, x).mean())
            rise += 8 * ends[int(x / fine)] ** 7 * later / LENGTHS
    return rise


def _by_halves(rows: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """Their sum, as far ones first."""
    half = len(rows) // 2
    return rows[0] if not half else _by_halves([rows[at] + rows[at + half] for at in range(half)])


def broadcast_rises(outlook: FinishPredictor, trajectory: Demand, home: int | None) -> list[float]:
    """An outlook's sums at a trajectory's lengths, in as few words as numpy allows; all that is left out is time."""
    asked = np.empty((3, len(outlook._here)))
    for slot, here in enumerate(outlook._here):
        speed, resident = here.speed, here.number == home
        added = speed.read * trajectory.usual_context + speed.prefill * trajectory.returned
        wait = (0.0 if resident else speed.bring(trajectory.cached)) + speed.prefill * trajectory.new
        asked[:, slot] = added + trajectory.tools, wait, added
    asked[::2] += outlook._marginal
    tokens = np.array(trajectory.likely)
    bins = (tokens * outlook._by_token).astype(int)
    harm, begin, pace = outlook._tables.take(bins, 1, mode="clip")
    own = begin + (pace + asked[0]) * tokens[:, None] + asked[1]
    harms, done = (_by_halves(list(rows)) for rows in (harm, np.square(np.square(np.square(own)))))
    found: list[float] = ((asked[2] * harms + done) / LENGTHS + asked[1] * outlook._total).tolist()
    return found


def prospect(tokens: Sequence[float], returned: float = 0.0, cached: int = 0, new: int = 0) -> Demand:
    some = sorted(tokens)
    return Demand(some, 0.0, returned, cached, new)


def row_of(bins: ReplicaBins) -> npt.NDArray[np.float64]:
    row = np.empty(3 * BINS)
    bins.write(row.data)
    return row.reshape(3, BINS)


@settled(60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.none() | st.lists(st.integers(0, 399), min_size=LENGTHS, max_size=LENGTHS).map(sorted),
            st.integers(0, 60),
        ),
        max_size=30,
    ),
    st.integers(0, 400),
)
def test_a_crowd_is_the_sum_of_who_is_in_it(steps: list[tuple[int, list[int] | None, int]], later: int) -> None:
    """Whoever has come and gone, before decoding went on and after."""
    bins, there, decoded, width = ReplicaBins(), dict[str, tuple[list[int], float, float]](), 0, 8.0
    for name, tokens, on in steps:
        if there.pop(str(name), None):
            bins.discount(str(name))
        if tokens is not None:
            bins.count(str(name), list(map(float, tokens)), name / 8, 3.0 * name, decoded, width)
            there[str(name)] = [decoded + each for each in tokens], name / 8, 3.0 * name
        if on > 50:  # filled now and then
            decoded += on
            bins.fill(decoded, width)
    bins.fill(decoded + later, width)
    expected = np.zeros((3, BINS))
    for ends, load, context in there.values():
        likely = [end for end in ends if end > decoded + later] or [decoded + later]
        for end in likely:
            expected[:, int((end - decoded - later) // width)] += np.array([1.0, load, context]) / len(likely)
    assert len(bins.members) == len(there)
    np.testing.assert_allclose(row_of(bins), expected, atol=1e-9)
    for gone in list(there)[1:]:  # one by one as well
        bins.discount(gone)
    left = ReplicaBins()
    left.seen = decoded + later
    for stays in list(there)[:1]:
        ends, load, context = there[stays]
        if ends[0] > decoded + later:
            left.count(stays, list(map(float, ends)), load, context, 0.0, width)
            np.testing.assert_allclose(row_of(bins), row_of(left), atol=1e-9)


prospects = st.builds(
    prospect,
    st.lists(st.integers(0, 61).map(lambda whole: whole + 0.5), min_size=LENGTHS, max_size=LENGTHS),
    st.sampled_from([0.0, 2.0]),
    st.integers(0, 900),
    st.integers(0, 90),
)


@settled(60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), prospects), max_size=25),
    st.lists(st.tuples(st.sampled_from([1, 2, 8]), st.sampled_from([2, 99])), min_size=1, max_size=4),
    prospects,
    st.none() | st.integers(0, 3),
)
def test_the_outlook_chooses_as_a_plain_scan_would(
    steps: list[tuple[int, int, Demand]], fleet: list[tuple[int, int]], trajectory: Demand, home: int | None
) -> None:
    outlook, there = FinishPredictor(DemandModel()), {number: dict[str, Demand]() for number in range(len(fleet))}
    for number, (tp, seats) in enumerate(fleet):
        outlook.up(Replica(number, tp, seats, 9_000), SPEEDS[tp])
    for number, name, each in steps:
        outlook.discount(str(name))
        for some in there.values():
            some.pop(str(name), None)
        if number in there:
            outlook.count(str(name), number, each)
            there[number][str(name)] = each
        elif number == 3 and len(there) > 1:  # the last one goes
            gone = max(there)
            outlook.gone(gone)
            del there[gone]
    for number in there:
        tp, seats = fleet[number]
        outlook.set_load(Replica(number, tp, seats, 9_000))
    home = home if home in there else None
    expected = []
    for number, some in there.items():
        tp, seats = fleet[number]
        wait = (0.0 if number == home else SPEEDS[tp].bring(trajectory.cached)) + SPEEDS[tp].prefill * trajectory.new
        expected.append(plain_rise(SPEEDS[tp], seats, 9_000, list(some.values()), trajectory, wait))
    assert outlook.rises(trajectory, home, 0.0).tolist() == pytest.approx(expected, rel=0.25)  # of an eighth power: 3 %
    assert outlook.rises(trajectory, home, 0.0).tolist() == broadcast_rises(outlook, trajectory, home)
    chosen = outlook.best(trajectory, home, home is not None, 0.0)
    assert expected[list(there).index(chosen)] <= 1.25 * min(expected)


def two_alike() -> FinishPredictor:
    """Two single-GPU replicas with a seat taken on each."""
    outlook = FinishPredictor(DemandModel())
    for number in range(2):
        replica = Replica(number, 1, 9, 10**6, busy=1, active=100)
        outlook.up(replica, SPEEDS[1])
        outlook.set_load(replica)
    return outlook


def test_the_outlook_counts_what_was_decoded_meanwhile() -> None:
    outlook, trajectory = two_alike(), prospect([300.0] * LENGTHS)
    outlook.count("early", 0, prospect([1_000.0] * LENGTHS))
    outlook.count("late", 1, prospect([500.0] * LENGTHS))
    first, second = outlook.rises(trajectory, None, 0.0).tolist()
    assert second < first
    first, second = outlook.rises(
        trajectory, None, 0.024 * 900
    ).tolist()  # step by step; both have decoded some 900 tokens
    assert first == pytest.approx(second, rel=0.5)  # 100 tokens are left here, none there
    outlook.count("later", 1, prospect([500.0] * LENGTHS))
    first, second = outlook.rises(trajectory, None, 0.024 * 900).tolist()
    assert first < second


def test_the_outlook_says_the_same_again_until_somebody_comes() -> None:
    outlook, trajectory = two_alike(), prospect([300.0] * LENGTHS)
    said = outlook.rises(trajectory, None, 0.0)
    before = said.tolist()
    said[:] = 0.0  # whoever asks may do with it what he wants
    assert outlook.rises(trajectory, None, 0.0).tolist() == before
    outlook.count("another", 1, prospect([500.0] * LENGTHS))
    first, second = outlook.rises(trajectory, None, 0.0).tolist()
    assert first == pytest.approx(before[0]) and second > 1.01 * before[1]


def test_the_outlook_knows_the_load_that_was_told_last() -> None:
    outlook, replica = two_alike(), Replica(0, 1, 9, 10_000, busy=9, active=100)
    outlook.set_load(Replica(1, 1, 9, 10_000, busy=9, active=100))
    outlook.set_load(replica)
    assert not outlook.has_room(1)
    replica.busy = 8
    outlook.set_load(replica)
    assert outlook.has_room(9_900) and not outlook.has_room(9_901)
    assert outlook.best(prospect([300.0] * LENGTHS, cached=0, new=9_900), None, False, 0.0) == 0


def test_the_outlook_takes_whoever_outlives_his_likely_ends_for_long() -> None:
    """Half of them had 10 tokens left, half 2,000; who is there after 100 is of the second half."""
    outlook, trajectory = two_alike(), prospect([300.0] * LENGTHS)
    outlook.count("either", 0, prospect([10.0] * (LENGTHS // 2) + [2_000.0] * (LENGTHS // 2)))
    before = outlook.rises(trajectory, None, 0.0)[0]
    after = outlook.rises(trajectory, None, 0.024 * 100)[0]
    outlook.discount("either")
    outlook.count("sure", 0, prospect([1_900.0] * LENGTHS))
    assert after > 1.2 * before
    assert after == pytest.approx(outlook.rises(trajectory, None, 0.024 * 100)[0], rel=0.1)


@given(st.floats(2, 10_000), st.floats(1.0, 2.6))
def test_likely_lengths_have_the_mean_and_the_p90_of_an_estimate(mean: float, wider: float) -> None:
    some = lengths(Left(mean, mean * wider))
    assert (np.diff(some) >= 0).all() and some[0] >= 1
    assert np.mean(some) == pytest.approx(mean, rel=0.2)
    assert some[-2] <= max(mean * wider, 1.0) * (1 + 1e-9)  # an eighth and a bit are longer
    assert some[-1] >= max(mean * wider, 1.0) * (1 - 1e-9)


def test_little_is_believed_while_more_are_under_way_than_have_ended() -> None:
    habits, trajectory = DemandModel(), Running(History("a", "p", 100), 0, 0.0, Left(100.0, 200.0))
    assert habits.demand(replace(trajectory, left=UNKNOWN), 8).likely == unknown(0)
    before = habits.demand(trajectory, 8).expected
    done = History("b", "p", 100)
    done.add(Turn(100, "ls", "ok", 300, 2.0))
    for _ in range(4):
        habits.learn(done)
    half = habits.demand(trajectory, 8).expected
    for _ in range(4):
        habits.learn(done)
    known = habits.demand(trajectory, 8)
    assert before > half > known.expected == pytest.approx(100.0, rel=0.1)
    assert (known.returned, known.tools) == pytest.approx((3.0, 0.02))
    trajectory.history.add(Turn(100, "ls", "ok", 100, 0.0))
    assert habits.demand(trajectory, 8).returned == pytest.approx(2.0)  # its own way counts as much as another's


def test_who_gives_far_more_a_turn_than_usual_is_expected_to_go_on_so() -> None:
    habits = DemandModel()
    usual = History("b", "p", 100)
    for _ in range(4):
        usual.add(Turn(100, "ls", "ok", 0, 0.0))
    habits.learn(usual)
    trajectory = Running(History("a", "p", 100), 0, 0.0, Left(300.0, 400.0))
    trajectory.history.add(Turn(100, "ls", "ok", 0, 0.0))
    assert habits.demand(trajectory, 1).expected == pytest.approx(300.0, rel=0.1)  # three turns are left
    trajectory.history.turns.clear()
    trajectory.history.add(Turn(1_800, "ls", "ok", 0, 0.0))
    assert habits.demand(trajectory, 1).expected == pytest.approx(
        3 * 1_000.0, rel=0.1
    )  # of 1,900 and an average one's 100
    trajectory.left = Left(9_000.0, 9_000.0)
    assert habits.demand(trajectory, 1).expected == 9_000.0  # known for sure


# -- a long tail ------------------------------------------------------------------------------------------------------


def rollout_seconds(router: str, everyone: list[Trajectory], degrees: Sequence[int], error: float) -> float:
    """A step's length where replicas share their speed among all that run, and prompts and moves are free."""
    told = Noisy(Oracle(everyone), error) if error else Oracle(everyone)
    core = Placement(rollout_router(router, speeds=SPEEDS), told, told)
    plan = {each.id: each for each in everyone}
    turn = dict.fromkeys(plan, 0)
    epochs: dict[str, int] = {}
    going: dict[str, tuple[int, float]] = {}  # replica, tokens to go in this turn
    tools: dict[str, float] = {}  # when they return
    clock = 0.0

    def tell(event: RolloutEvent) -> None:
        assert core.rollouts.accepts(event) is None
        for command in core.decide(event):
            if isinstance(command, Place):
                name = command.trajectory
                epochs[name] = command.epoch
                going[name] = command.replica, float(plan[name].turns[turn[name]].generated)

    for number, tp in enumerate(degrees):
        tell(ReplicaUp(0.0, number, tp, 64, 10**7))
    for each in everyone:
        tell(Begun(0.0, each.id, each.prompt, each.prompt_tokens))
    while going or tools:
        counts = [sum(replica == number for replica, _ in going.values()) for number in range(len(degrees))]
        step = [SPEEDS[tp].step(max(1, count), 0) for tp, count in zip(degrees, counts, strict=True)]
        ends = [(clock + left * step[replica], name) for name, (replica, left) in going.items()]
        after, name = min([*ends, *((until, name) for name, until in tools.items())])
        going.update({each: (at, left - (after - clock) / step[at]) for each, (at, left) in going.items()})
        clock = after
        now = plan[name].turns[turn[name]]
        if name in tools:
            del tools[name]
            turn[name] += 1
            tell(Returned(clock, name, epochs[name], now))
        elif turn[name] == len(plan[name].turns) - 1:
            del going[name]
            tell(Ended(clock, name, epochs[name], now))
        else:
            del going[name]
            tools[name] = clock + (now.latency or 0.0)
            tell(Called(clock, name, epochs[name], now.generated))
    return clock


def long_tail(seed: int, count: int) -> list[Trajectory]:
    random = Random(seed)
    made = []
    for number in range(count):
        rounds = 1 + int(random.lognormvariate(1.0, 1.0))
        some = [Turn(random.randint(50, 400), "t", "ok", 50, random.uniform(0.1, 2.0)) for _ in range(rounds)]
        made.append(Trajectory(str(number), "p", "p", tuple(some), 100))
    return made


@pytest.mark.parametrize(
    ("degrees", "error"), [((8, 4, 2, 2, 1, 1, 1, 1), 0.0), ((8, 4, 2, 2, 1, 1, 1, 1), 0.7), ((2, 2, 2, 2), 0.0)]
)
def test_told_the_same_cost_aware_ends_a_step_first(degrees: tuple[int, ...], error: float) -> None:
    """With every router told the same, truth or half of it, and averaged over draws: fewer seconds than all others.

    Half of it where replicas are alike is left out: there the longest decides, wherever it runs, and luck.
    """
    seconds = dict.fromkeys(ROLLOUT_ROUTERS, 0.0)
    for seed in range(3):
        everyone = long_tail(seed, 60)
        for router in ROLLOUT_ROUTERS:
            seconds[router] += rollout_seconds(router, everyone, degrees, error)
    best_other = min(value for router, value in seconds.items() if router != DEFAULT)
    assert seconds[DEFAULT] < best_other, seconds
