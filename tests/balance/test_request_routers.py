"""Routers as a gateway uses them: replicas come and go, their loads are told, and each choice is what the rule says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.balance.route import RoutedRequest, Router
from steelyard.balance.route.draws import HashedPairs
from steelyard.balance.route.plain import LeastOutstanding, PowerOfTwo, PrefixAware, RoundRobin, Sticky, StickySpill
from support.engine_worlds import settled

# A replica comes up or goes, has another load, or a request comes (session, blocks of its prefix).
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("up"), st.integers(0, 6), st.just(0)),
        st.tuples(st.just("down"), st.integers(0, 6), st.just(0)),
        st.tuples(st.just("load"), st.integers(0, 6), st.integers(0, 12)),
        st.tuples(st.just("ask"), st.integers(0, 3), st.integers(0, 5)),
        st.tuples(st.just("ask"), st.integers(0, 3), st.integers(0, 5)),
    ),
    max_size=80,
)
Step = tuple[str, int, int]


class World:
    """What is true of the replicas, and what was chosen last for a session or a prefix."""

    def __init__(self) -> None:
        self.loads: dict[int, int] = {}  # of replicas that are up
        self.all_loads: dict[int, int] = {}
        self.homes: dict[int | str, int] = {}
        self.sent_to: dict[int | str, int] = {}
        self.last = -1

    @property
    def least(self) -> int:
        return min(self.loads, key=lambda number: (self.loads[number], number))

    def next_in_turn(self) -> int:
        return min((number for number in self.loads if number > self.last), default=min(self.loads))

    def prefix_holder(self, request: RoutedRequest, home: int | None) -> int:
        limit = 1.5 * self.loads[self.least] + 4
        known = [home]
        for count in range(len(request.names), 0, -1):
            if all(name in self.sent_to for name in request.names[:count]):
                known.append(self.sent_to[request.names[count - 1]])
        return next((each for each in known if each is not None and self.loads[each] <= limit), self.least)

    def spilled(self, request: RoutedRequest, home: int | None) -> int:
        mean = sum(self.all_loads.values()) / len(self.loads)
        return self.least if home is None or self.loads[home] > 1.5 * mean + 4 else home


def promised(name: str, world: World, request: RoutedRequest, home: int | None) -> int:
    match name:
        case "round-robin":
            return world.next_in_turn()
        case "least-outstanding":
            return world.least
        case "sticky":
            return world.least if home is None else home
        case "sticky-spill":
            return world.spilled(request, home)
    return world.prefix_holder(request, home)


ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-outstanding": LeastOutstanding,
    "sticky": lambda: Sticky(LeastOutstanding()),
    "sticky-spill": StickySpill,
    "prefix-aware": PrefixAware,
}


def change(router: Router, world: World, step: Step) -> None:
    what, number, requests = step
    if what == "load":
        router.set_load(number, requests)
        world.all_loads[number] = requests
        if number in world.loads:
            world.loads[number] = requests
    elif what == "up":
        router.available(number, True)
        world.loads[number] = world.all_loads.setdefault(number, 0)
    else:
        router.available(number, False)
        world.loads.pop(number, None)
        world.homes = {session: home for session, home in world.homes.items() if home != number}
        world.sent_to = {name: holder for name, holder in world.sent_to.items() if holder != number}


@pytest.mark.parametrize("name", ROUTERS)
@settled(120)
@given(STEPS)
def test_choices_are_what_the_rule_says(name: str, steps: list[Step]) -> None:
    router, world = ROUTERS[name](), World()
    for count, step in enumerate(steps):
        what, session, blocks = step
        if what != "ask":
            change(router, world, step)
        elif world.loads:
            names = [10 * session + block for block in range(blocks)]
            home = world.homes.get(session)
            request = RoutedRequest(count, session, names, 16)
            chosen = router.choose(request, home)
            assert chosen == promised(name, world, request, home)
            world.last = world.homes[session] = chosen
            world.sent_to.update(dict.fromkeys(names, chosen))


@settled(120)
@given(STEPS)
def test_power_of_two_never_takes_the_busiest_of_several(steps: list[Step]) -> None:
    router, world = PowerOfTwo(HashedPairs(1)), World()
    for step in steps:
        if step[0] != "ask":
            change(router, world, step)
        elif world.loads:
            request = RoutedRequest(f"t{step[1]}", step[1], (), 16, turn=step[2])
            chosen = router.choose(request)
            assert chosen in world.loads and router.choose(request) == chosen
            others = [load for number, load in world.loads.items() if number != chosen]
            assert not others or world.loads[chosen] <= max(others)
