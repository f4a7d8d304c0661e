"""When an engine is up, down, slow or in quarantine: pure decisions from looks at it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from steelyard.live.engines.api import EngineLoad
from steelyard.live.engines.condition import (
    Condition,
    Down,
    EngineJudge,
    Look,
    Pace,
    Quarantined,
    Slow,
    Up,
    WatchRules,
    pace_between,
    slowness,
)

RULES = WatchRules()
PEERS = [Pace(0.01, 8.0)] * 3


def look(at: float, tokens: float = 0.0, running: float = 8.0, **other: bool | str) -> Look:
    healthy, ended, paused = bool(other.get("healthy", True)), str(other.get("ended", "")), bool(other.get("paused"))
    return Look(at, healthy, EngineLoad(running, 0.0, 0.5, tokens), ended, paused)


def at_pace(seconds: float, looks: int, start: float = 0.0, tokens: float = 0.0) -> list[Look]:
    """Looks a second apart at an engine of 8 requests whose tokens take so long."""
    return [look(start + place, tokens + place * 8 / seconds) for place in range(looks)]


def last(judge: EngineJudge, looks: Sequence[Look], peers: Sequence[Pace] = PEERS) -> Condition:
    return [judge.see(each, peers) for each in looks][-1]


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_down_after_so_many_failures_in_a_row_and_up_at_one_success(healthy: list[bool]) -> None:
    judge = EngineJudge()
    for place, each in enumerate(healthy):
        found = judge.see(Look(float(place), each), [])
        failed = place + 1 - max((before + 1 for before in range(place + 1) if healthy[before]), default=0)
        assert isinstance(found, Down) == (failed >= RULES.failures)
        assert found == Up() or isinstance(found, Down)


def test_down_at_once_when_its_process_has_ended() -> None:
    judge = EngineJudge()
    judge.quarantined = "old weights"
    assert judge.see(Look(0.0, True, ended="ended by signal 9"), []) == Down("ended by signal 9")


@given(st.floats(0.011, 0.2), st.integers(1, 6))
def test_slow_only_above_the_factor_and_after_so_many_looks(seconds: float, looks: int) -> None:
    found = last(EngineJudge(), at_pace(seconds, looks + 1))
    factor = seconds / 0.01
    if abs(factor - RULES.slow_factor) < 1e-9:
        return
    if factor > RULES.slow_factor and looks >= RULES.slow_looks:
        assert isinstance(found, Slow) and math.isclose(found.factor, factor)
    else:
        assert found == Up()


def test_no_longer_slow_after_as_many_looks() -> None:
    judge = EngineJudge()
    assert isinstance(last(judge, at_pace(0.1, 5)), Slow)
    good = at_pace(0.01, 4, start=5.0, tokens=400.0)
    found = [judge.see(each, PEERS) for each in good]
    assert [type(each) for each in found] == [Slow, Slow, Slow, Up]


def test_an_engine_without_tokens_is_infinitely_slow_in_the_end() -> None:
    judge = EngineJudge()
    found = [judge.see(look(float(second), 100.0), PEERS) for second in range(40)]
    assert found.index(Slow(math.inf)) == RULES.stall_seconds
    assert set(found[: int(RULES.stall_seconds)]) == {Up()}


def test_an_engine_without_tokens_and_peers_is_judged_later() -> None:
    judge = EngineJudge(RULES)
    found = [judge.see(look(float(at)), ()) for at in range(200)]
    assert found.index(Slow(math.inf)) == RULES.alone_seconds
    assert set(found[: int(RULES.alone_seconds)]) == {Up()}


def test_one_long_gap_among_tokens_is_not_slow() -> None:
    judge = EngineJudge()
    looks = [*at_pace(0.01, 3), *(look(float(at), 1600.0) for at in range(3, 20)), look(20.0, 17_000.0)]
    assert {type(judge.see(each, PEERS)) for each in looks} == {Up}


def test_a_pause_is_not_slow_and_does_not_count_in_the_pace() -> None:
    judge = EngineJudge()
    paused = [look(float(second), 100.0, paused=True) for second in range(100)]
    assert last(judge, paused) == Up()
    assert last(judge, at_pace(0.01, 4, start=100.0, tokens=100.0)) == Up() and judge.pace is not None
    assert math.isclose(judge.pace.seconds, 0.01)


def test_an_idle_engine_is_not_slow() -> None:
    assert last(EngineJudge(), [look(float(second), 100.0, running=0.0) for second in range(100)]) == Up()


def test_nobody_is_slow_alone_or_beside_idler_peers() -> None:
    looks = at_pace(1.0, 10)
    assert last(EngineJudge(), looks, []) == Up()
    assert last(EngineJudge(), looks, [Pace(0.01, 3.9)] * 5) == Up()
    assert isinstance(last(EngineJudge(), looks, [Pace(0.01, 4.0)]), Slow)
    assert last(EngineJudge(), looks, [Pace(math.inf, 8.0)]) == Up()


def test_quarantine_holds_until_it_is_ended() -> None:
    judge = EngineJudge()
    judge.quarantined = "old weights"
    assert last(judge, at_pace(0.1, 5)) == Quarantined("old weights")
    assert isinstance(last(judge, [Look(float(at), False) for at in range(5, 8)]), Down)
    assert judge.see(look(8.0), PEERS) == Quarantined("old weights")
    judge.quarantined = ""
    assert judge.see(look(9.0), PEERS) == Up()


def test_an_engine_that_comes_back_is_timed_anew() -> None:
    judge = EngineJudge()
    assert isinstance(last(judge, at_pace(0.1, 5)), Slow)
    assert isinstance(last(judge, [Look(float(at), False) for at in range(5, 8)]), Down)
    assert judge.pace is None
    assert last(judge, at_pace(0.01, 2, start=8.0)) == Up()


loads = st.builds(
    EngineLoad,
    running=st.none() | st.floats(0, 512),
    waiting=st.none(),
    kv_use=st.none(),
    generated=st.none() | st.floats(0, 1e9),
)
looks = st.builds(
    Look,
    at=st.floats(0, 1e6),
    healthy=st.booleans(),
    load=st.none() | loads,
    ended=st.sampled_from(["", "", "", "ended"]),
    paused=st.booleans(),
)
paces = st.builds(Pace, seconds=st.floats(0, 100) | st.just(math.inf), running=st.floats(0, 512))


@given(st.lists(looks, max_size=30), st.lists(paces, max_size=4), st.booleans())
def test_any_looks_give_a_condition_that_fits_them(seen: list[Look], peers: list[Pace], quarantined: bool) -> None:
    judge = EngineJudge()
    judge.quarantined = "bad" if quarantined else ""
    for each in sorted(seen, key=lambda one: one.at):
        found = judge.see(each, peers)
        assert isinstance(found, Down) or not each.ended
        if isinstance(found, Slow):
            assert found.factor > RULES.slow_factor and not quarantined
        if each.healthy and not each.ended:
            assert not isinstance(found, Down) and isinstance(found, Quarantined) == quarantined


@given(looks, looks)
def test_paces_are_positive(first: Look, second: Look) -> None:
    found = pace_between(first, second)
    if found is not None:
        assert found.seconds > 0 and found.running > 0 and second.at > first.at


@given(paces, st.lists(paces, max_size=5))
def test_slowness_is_against_comparable_peers_alone(own: Pace, peers: list[Pace]) -> None:
    found = slowness(own, peers)
    fit = [each for each in peers if each.running >= own.running / 2 and 0 < each.seconds < math.inf]
    assert (found is None) == (not fit)
    if found is not None and math.isfinite(own.seconds):
        slowest, fastest = max(each.seconds for each in fit), min(each.seconds for each in fit)
        assert own.seconds / slowest <= found <= own.seconds / fastest
