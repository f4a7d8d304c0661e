"""Prompts computed here and answered there: timelines worked out by hand, shared links, and whole random fleets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.balance.route.serving import serving_router
from steelyard.cost.step import StepTime
from steelyard.engine import FINISHED, Engine, Limits
from steelyard.fleet import Desk, run_fleet
from steelyard.fleet.handover import Handover, Transfers
from steelyard.fleet.links import Link, Network, Port, Ports
from steelyard.sim.attempts import EnginePart
from steelyard.sim.request_table import request_table
from support.engine_worlds import RISING_COSTS, Ask, TwoKinds, World, settled, worlds

TOKEN_BYTES = 100.0
HAND = TwoKinds(decode=StepTime(1.0, 0.0, 0.0, 0.0), other=StepTime(4.0, 0.0, 0.0, 0.0))
PLAIN = Limits(blocks=100, max_model_len=1000, block_size=4, max_num_seqs=8, async_scheduling=False)


@dataclass
class Fleet:
    """Some prefill engines, some decode engines, and what became of a world's requests on them."""

    world: World
    prefills: int = 1
    decodes: int = 1
    bandwidth: float = inf
    latency: float = 0.0
    layerwise: bool = False
    first_from_prefill: bool = False
    decode_limits: Limits | None = None
    plain: bool = False

    def run(self) -> Fleet:
        world = self.world
        there = self.decode_limits or world.limits
        self.desk = Desk(world.workload(), [world.limits], [there])
        sides = (self.prefills, self.decodes)
        kinds = [(world.limits, True)] * self.prefills + [(there, world.reactive)] * self.decodes
        self.engines = [
            Engine(limits, world.cost, self.desk.names, reactive=reactive, plain=self.plain)
            for limits, reactive in kinds
        ]
        ends = [[Port(Link(self.bandwidth), Link(inf), node) for _ in range(n)] for node, n in enumerate(sides)]
        self.ports = Ports(*ends)
        transfers = Transfers(TOKEN_BYTES, 4, self.ports, self.latency, self.layerwise, self.first_from_prefill)
        handover = Handover(serving_router("least-outstanding", self.decodes, 1), transfers)
        run_fleet(self.engines, self.desk, serving_router("round-robin", self.prefills, 0), None, handover)
        assert not handover.waiting and handover.network.next_end == inf
        return self

    def table(self) -> dict[str, list[Any]]:
        first = self.first_from_prefill
        parts = [EnginePart(first=first, ends=False)] * self.prefills + [
            EnginePart(begins=False, first=not first)
        ] * self.decodes
        table = request_table(self.desk.workload, self.desk, [each.log for each in self.engines], parts)
        return {name: column.tolist() for name, column in table.items()}

    def digest(self) -> list[bytes]:
        return [each for engine in self.engines for each in (engine.log.ends.tobytes(), engine.log.requests.tobytes())]


def asks(*prompts: int, output: int = 3) -> World:
    return World(PLAIN, HAND, tuple(Ask(prompt, output) for prompt in prompts))


def test_free_links_and_one_engine_on_each_side_by_hand() -> None:
    """A prompt takes 4 s; its last token is computed again on the other side, where a token takes 1 s."""
    table = Fleet(asks(10)).run().table()
    assert (table["first_token"], table["finish"]) == ([5.0], [7.0])


def test_the_first_token_may_come_along_from_the_prefill_engine() -> None:
    table = Fleet(asks(10), first_from_prefill=True).run().table()
    assert (table["first_token"], table["finish"]) == ([4.0], [6.0])
    assert Fleet(asks(10, output=1), first_from_prefill=True).run().table()["finish"] == [4.0]


def test_a_transfer_takes_its_bytes_over_the_link_and_the_latency() -> None:
    """1,000 bytes at 500 bytes a second: the other side begins at 6.25 instead of 4."""
    table = Fleet(asks(10), bandwidth=500.0, latency=0.25).run().table()
    assert (table["first_token"], table["finish"]) == ([7.25], [9.25])


def test_layers_sent_as_they_are_computed_leave_the_last_one_to_wait_for() -> None:
    table = Fleet(asks(10), bandwidth=500.0, layerwise=True).run().table()
    assert table["first_token"] == [4.0 + 0.5 + 1.0]  # one of four layers: 250 bytes
    slow = Fleet(asks(10), bandwidth=125.0, layerwise=True).run().table()
    assert slow["first_token"] == [8.0 + 1.0]  # eight seconds for all, of which the prompt hides four


def test_two_that_are_sent_at_once_share_the_link() -> None:
    """Both prompts are done at 4 s and fetched at once: 1,000 and 2,000 bytes at 500 bytes a second."""
    fleet = Fleet(asks(10, 20), bandwidth=500.0).run()
    assert fleet.table()["first_token"] == [9.0, 11.0]  # through at 8 and at 10
    (port,) = fleet.ports.out
    assert (port.nic.carried, port.nic.busy) == (3000.0, 6.0)


def test_a_full_decode_engine_holds_up_the_prefill_engine() -> None:
    """Both sides have room for one prompt: the second is computed when the first has been fetched, and is fetched when
    the first has been answered."""
    tight = replace(PLAIN, blocks=4)
    world = World(tight, HAND, (Ask(12, 3), Ask(12, 3)))
    table = Fleet(world, bandwidth=1200.0).run().table()
    # 4 s prompt, 1 s across, tokens at 6, 7, 8; the other prompt from 5 to 9, across from 9 to 10
    assert table["finish"] == [8.0, 13.0]
    roomy = Fleet(World(tight, HAND, world.asks), bandwidth=1200.0, decode_limits=replace(PLAIN, blocks=4)).run()
    assert roomy.table()["scheduled"] == [0.0, 5.0]


def test_a_decode_engine_that_must_preempt_computes_prompts_itself() -> None:
    """Two answers outgrow the blocks of the decode engine; the later one is put off and recomputed there."""
    there = replace(PLAIN, blocks=7)
    fleet = Fleet(World(PLAIN, HAND, (Ask(8, 12), Ask(8, 12))), decode_limits=there).run()
    table = fleet.table()
    assert table["preemptions"] == [0, 1] and set(table["status"]) == {"finished"}
    assert int(fleet.engines[1].log.stretches()["prefill_tokens"].sum()) > 0


def test_prefixes_are_kept_on_both_sides() -> None:
    """The second turn finds its history on the prefill engine but for the answer, and all of it on the decode one."""
    first = Ask(8, 5, content=((0, 8),), stream=1)
    second = Ask(16, 2, after=0, content=((0, 8), (1, 5), (2, 3)), stream=3)
    fleet = Fleet(World(PLAIN, HAND, (first, second)), bandwidth=100.0).run()
    assert fleet.table()["cached"] == [0, 8]
    assert fleet.ports.out[0].nic.carried == (8 + 4) * TOKEN_BYTES  # of 16 tokens, 12 lay there already


# -- links ------------------------------------------------------------------------------------------------------------

sends = st.lists(
    st.tuples(st.integers(0, 40).map(float), st.integers(1, 60).map(float), st.sets(st.integers(0, 3), min_size=1)),
    min_size=1,
    max_size=12,
)


def slow_network(sends: Sequence[tuple[float, float, set[int]]], bandwidth: Sequence[float]) -> dict[int, float]:
    """All rates worked out anew at every event."""
    left: dict[int, float] = {}
    ends: dict[int, float] = {}
    now, due = 0.0, sorted((at, i) for i, (at, _, _) in enumerate(sends))
    while left or due:
        users = [sum(link in sends[i][2] for i in left) for link in range(4)]
        rates = {i: min(bandwidth[link] / users[link] for link in sends[i][2]) for i in left}
        first = min((now + left[i] / rates[i] for i in left), default=inf)
        until = min(first, due[0][0] if due else inf)
        left = {i: size - rates[i] * (until - now) for i, size in left.items()}
        now = until
        for i in [i for i, size in left.items() if size < 1e-9]:
            ends[i] = now
            del left[i]
        while due and due[0][0] <= now:
            i = due.pop(0)[1]
            left[i] = sends[i][1]
    return ends


@settled(200)
@given(sends, st.lists(st.sampled_from([1.0, 2.0, 7.0]), min_size=4, max_size=4))
def test_links_are_shared_as_if_all_rates_were_reckoned_at_every_event(
    sends: list[tuple[float, float, set[int]]], bandwidth: list[float]
) -> None:
    links, network = [Link(each) for each in bandwidth], Network()
    ends: dict[int, float] = {}
    numbers: dict[int, int] = {}
    for i in sorted(range(len(sends)), key=lambda i: (sends[i][0], i)):
        at, size, path = sends[i]
        while network.next_end <= at:
            end, number = network.end_next()
            ends[numbers[number]] = end
        numbers[network.start(size, [links[link] for link in sorted(path)], at)] = i
    while network.next_end < inf:
        end, number = network.end_next()
        ends[numbers[number]] = end
    assert ends == pytest.approx(slow_network(sends, bandwidth))
    for j, link in enumerate(links):
        assert link.carried == sum(size for _, size, path in sends if j in path) and not link.active and not link.routes
        assert link.busy <= max(ends.values()) and link.carried <= link.bandwidth * link.busy * (1 + 1e-9)


def test_the_way_leads_through_the_node_the_leaf_or_the_uplinks() -> None:
    up, down = Link(3.0), Link(3.0)
    out = [Port(Link(1.0), Link(9.0), node=0, leaf=0, uplink=up), Port(Link(1.0), Link(9.0), node=1, leaf=0, uplink=up)]
    into = [
        Port(Link(1.0), Link(9.0), node=1, leaf=0, uplink=down),
        Port(Link(1.0), Link(9.0), node=4, leaf=2, uplink=down),
    ]
    ports = Ports(out, into)
    assert ports.path(1, 0) == (out[1].peer, into[0].peer)
    assert ports.path(0, 0) == (out[0].nic, into[0].nic)
    assert ports.path(0, 1) == (out[0].nic, up, down, into[1].nic)


# -- random fleets ----------------------------------------------------------------------------------------------------

shapes = st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from([inf, 20_000.0, 700.0]), st.booleans())


@settled(150)
@given(worlds(), shapes, st.booleans())
def test_nobody_is_lost_and_every_block_comes_back(
    world: World, shape: tuple[int, int, float, bool], layerwise: bool
) -> None:
    prefills, decodes, bandwidth, first = shape
    fleet = Fleet(world, prefills, decodes, bandwidth, 0.01, layerwise, first).run()
    table = fleet.table()
    for i, status in enumerate(table["status"]):
        if status == "finished":
            assert table["arrival"][i] <= table["scheduled"][i] <= table["first_token"][i] <= table["finish"][i]
    assert np.isfinite(table["arrival"]).all()
    ended = [index for engine in fleet.engines[prefills:] for index in engine.log.ended["index"].tolist()]
    assert len(ended) == len(set(ended))
    for engine in fleet.engines:
        assert not engine.outstanding and engine.scheduler.kv.free == engine.limits.blocks
        assert not engine.scheduler.loading and not engine.scheduler.running and not engine.scheduler.waiting
    patient = all(ask.abort == inf for ask in world.asks)
    if patient:
        assert all((status == "finished") == (i not in fleet.desk.refused) for i, status in enumerate(table["status"]))
    answered = sum(int(engine.log.ended["status"].tolist().count(FINISHED)) for engine in fleet.engines[prefills:])
    assert answered <= table["status"].count("finished")


@settled(100)
@given(worlds(costs=RISING_COSTS), shapes)
def test_short_cuts_change_nothing(world: World, shape: tuple[int, int, float, bool]) -> None:
    prefills, decodes, bandwidth, first = shape
    fast, slow = (
        Fleet(world, prefills, decodes, bandwidth, 0.01, first_from_prefill=first, plain=plain).run()
        for plain in (False, True)
    )
    assert fast.digest() == slow.digest()
