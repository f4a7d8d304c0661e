"""Sessions and servers: seats are freed once, servers come and go, and the routers choose as in a rollout."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.balance.route.protocol import RoutedRequest, Router
from steelyard.errors import UserError
from steelyard.live.adapters.shared import ADAPTER_ROUTERS, ElasticRouter, NoServerUp, SessionRouter

Step = tuple[str, str, str]
SERVERS, SESSIONS = ("a", "b", "c"), ("s", "t", "u", "v")
STEPS = st.tuples(
    st.sampled_from(
        ["add", "remove", "acquire", "acquire", "acquire", "release", "release", "anyone", "end", "forget"]
    ),
    st.sampled_from(SERVERS),
    st.sampled_from(SESSIONS),
)


@settings(max_examples=60)
@given(st.sampled_from(ADAPTER_ROUTERS), st.lists(STEPS, max_size=60))
def test_loads_are_the_seats_that_are_taken(name: str, steps: list[Step]) -> None:
    router = SessionRouter(name, sessions=3)
    seats: dict[str, Counter[str]] = {}
    for what, server, session in steps:
        if what == "add":
            router.add([server])
            seats.setdefault(server, Counter())
        elif what == "remove":
            router.remove([server])
            seats.pop(server, None)
        elif what == "acquire" and not seats:
            with pytest.raises(NoServerUp):
                router.acquire(session)
        elif what == "acquire":
            seats[router.acquire(session, [1, 2])][session] += 1
        elif what == "release":
            taken = seats.get(server, Counter())[session] > 0
            assert router.release(server, session) == taken
            if taken:
                seats[server][session] -= 1
        elif what == "anyone":
            before = router.loads()
            freed = router.release(server)
            assert freed == (sum(seats.get(server, Counter()).values()) > 0)
            if freed:
                assert router.loads() == {**before, server: before[server] - 1}
                return  # which session it was is not told
        elif what == "end":
            router.end(session)
        else:
            assert 0 <= router.forget_sessions() <= 3
        assert router.loads() == {each: sum(taken.values()) for each, taken in seats.items()}


@settings(max_examples=40)
@given(st.sampled_from(ADAPTER_ROUTERS), st.lists(STEPS, min_size=5, max_size=60))
def test_the_same_calls_give_the_same_choices(name: str, steps: list[Step]) -> None:
    def choices() -> list[str]:
        router, found = SessionRouter(name, seed=4), []
        router.add(SERVERS)
        for what, server, session in steps:
            if what in ("acquire", "add"):
                found.append(router.acquire(session, [len(session)]))
            elif what in ("release", "anyone"):
                router.release(server, session)
        return found

    assert choices() == choices()


def test_a_session_stays_and_moves_when_its_server_goes() -> None:
    for name in ("sticky", "sticky-spill", "prefix-aware"):
        router = SessionRouter(name)
        router.add(SERVERS)
        homes = {session: router.acquire(session, [ord(session)]) for session in SESSIONS}
        assert set(homes.values()) == set(SERVERS), name
        for session, home in homes.items():
            router.release(home, session)
        for session, home in reversed(homes.items()):
            assert router.acquire(session, [ord(session), 5, 6]) == home, name
        router.remove([homes["s"]])
        moved = router.acquire("s", [ord("s"), 5, 6])
        assert moved != homes["s"]
        router.add([homes["s"]])
        assert router.acquire("s") == moved, name  # its cache was lost with its server


def test_samples_of_a_group_share_their_prompt() -> None:
    router = SessionRouter("prefix-aware")
    router.add(SERVERS)
    prompts = {"one": [1] * 50, "two": [2] * 50}
    found = {
        (prompt, sample): router.acquire(f"{prompt}-{sample}", ids)
        for sample in range(4)
        for prompt, ids in prompts.items()
    }
    assert len({server for (prompt, _), server in found.items() if prompt == "one"}) == 1
    assert len(set(found.values())) == 2


def test_least_outstanding_goes_by_unfinished_requests() -> None:
    router = SessionRouter("least-outstanding")
    router.add(["a", "b"])
    assert [router.acquire(str(place)) for place in range(4)] == ["a", "b", "a", "b"]
    router.release("b", "1")
    router.release("b", "1")  # told twice
    router.release("b", "nobody")
    assert router.loads() == {"a": 2, "b": 1}
    assert [router.acquire("x"), router.acquire("y")] == ["b", "a"]


def test_a_late_release_does_not_count_for_the_next_life_of_a_server() -> None:
    router = SessionRouter("least-outstanding")
    router.add(["a"])
    router.acquire("old")
    router.remove(["a"])
    router.add(["a"])
    router.acquire("new")
    assert not router.release("a", "old")
    assert router.loads() == {"a": 1}


def test_some_servers_only() -> None:
    router = SessionRouter("least-outstanding")
    router.add(["a", "b"])
    assert [router.acquire(str(place), among=["b"]) for place in range(3)] == ["b"] * 3
    assert router.acquire("x", among=["a", "b", "unknown"]) == "a"
    with pytest.raises(NoServerUp):
        router.acquire("y", among=["unknown"])
    assert router.acquire("z") == "a"
    assert router.loads() == {"a": 2, "b": 3}


def test_it_forgets_sessions_that_were_not_seen_for_long() -> None:
    router = SessionRouter("prefix-aware", sessions=10)
    router.add(["a", "b"])
    for place in range(1000):
        router.release(router.acquire(str(place), [place]), str(place))
    assert router.forget_sessions() == 10


def test_threads_take_turns() -> None:
    router = SessionRouter("sticky-spill")
    router.add(SERVERS)
    problems: list[Exception] = []

    def work(name: str) -> None:
        try:
            for turn in range(200):
                server = router.acquire(f"{name}-{turn % 5}")
                router.add(["d"]) if turn % 7 == 0 else router.remove(["d"])
                router.release(server, f"{name}-{turn % 5}")
                router.release(server, f"{name}-{turn % 5}")
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(str(place),)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert not any(router.loads().values())


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="did you mean 'prefix-aware'"):
        SessionRouter("prefix-awar")
    with pytest.raises(UserError, match="at least 1"):
        SessionRouter(sessions=0)


def test_it_is_a_router_as_fleets_know_them() -> None:
    router: Router = ElasticRouter("sticky")
    router.available(3, True)
    router.available(8, True)
    requests = [RoutedRequest(place, "s", [1, 2], 32) for place in range(3)]
    assert [router.choose(each) for each in requests] == [3, 3, 3]
    router.ended(requests[0], 3)
    router.available(3, False)
    assert router.choose(RoutedRequest(4, "s", [1], 16)) == 8
    router.session_ended(requests[0])
    router.session_ended(requests[0])
