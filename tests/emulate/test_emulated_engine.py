"""An emulated engine delivers every token when a simulation of the same requests does, though it never looks ahead."""

from __future__ import annotations

from array import array
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.emulate.content import ContentNames
from steelyard.emulate.engine import Delivery, EmulatedEngine
from steelyard.scenario import scenario_from_dict
from steelyard.sim import set_up, simulate
from steelyard.sim.engines import make_engines
from steelyard.sim.setup import FleetSetup


def setup_of(engine: dict[str, Any] | None = None, requests: int = 60, rate: float = 25.0, seed: int = 1) -> FleetSetup:
    workload = {
        "arrivals": {"kind": "poisson", "rate": rate},
        "requests": requests,
        "prompt": {"kind": "lognormal", "median": 400, "p95": 2000},
        "output": {"kind": "lognormal", "median": 60, "p95": 200},
    }
    scenario = {"name": "e", "model": "llama-3.1-8b", "fleet": {"gpu": "h200"}, "engine": engine or {}}
    return set_up(scenario_from_dict({**scenario, "workload": workload, "seed": seed}))


def emulated(setup: FleetSetup, most_steps: int = 1 << 18) -> EmulatedEngine:
    names = ContentNames(setup.pools[0].limits.block_size, 1 << 16)
    (engine,) = make_engines(setup, names)
    return EmulatedEngine(engine, names, setup.host, most_steps)


def tokens(number: int, count: int) -> array[int]:
    return array("I", np.random.default_rng(number).integers(0, 1 << 30, count).tolist())


def run_until(engine: EmulatedEngine, until: float = inf) -> list[Delivery]:
    """Run an engine as a driver does, up to a second or until it rests."""
    found: list[Delivery] = []
    while (now := engine.next_second()) <= until and now < inf:
        engine.run(now)
        found += engine.due(now)
    return found


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"async_scheduling": False},
        {"max_num_seqs": 8},
        {"num_gpu_blocks": 400},
        {"enable_prefix_caching": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("most_steps", [1 << 18, 50])
def test_tokens_come_when_the_simulation_says(engine: dict[str, Any], most_steps: int) -> None:
    setup = setup_of(engine)
    expected = simulate(setup).requests
    here = emulated(setup, most_steps)
    found: dict[int, list[Delivery]] = {number: [] for number in range(len(expected["id"]))}
    for number in np.argsort(expected["arrival"], kind="stable").tolist():
        at, output = float(expected["arrival"][number]), int(expected["output"][number])
        for delivery in run_until(here, at):
            found[delivery.request].append(delivery)
        here.run(at)
        here.submit(number, tokens(number, int(expected["prompt"][number]) + output), output, at)
    for delivery in run_until(here):
        found[delivery.request].append(delivery)
    for number, deliveries in found.items():
        assert deliveries[0].at == expected["arrival"][number] + expected["ttft"][number]
        assert deliveries[-1].at == expected["finish"][number]
        counts = [delivery.tokens for delivery in deliveries]
        assert counts == list(range(1, int(expected["output"][number]) + 1))
        assert [delivery.finish for delivery in deliveries] == [""] * (len(counts) - 1) + ["length"]
    assert not here.unfinished and here.running == here.waiting == 0


def test_a_client_that_does_not_stream_gets_its_answer_at_the_same_second() -> None:
    ends = []
    for each_token in (True, False):
        here = emulated(setup_of())
        here.submit(0, tokens(0, 500), 50, 0.0, each_token=each_token)
        found = run_until(here)
        ends.append(found[-1])
        assert len(found) == (50 if each_token else 1)
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("engine", "missing"),
    [({}, 0), ({"async_scheduling": False}, 0), ({"num_gpu_blocks": 60}, 1)],  # preempted with a step in flight
    ids=str,
)
def test_generated_tokens_are_those_whose_steps_have_ended(engine: dict[str, Any], missing: int) -> None:
    here = emulated(setup_of(engine))
    streamed = {number: here.submit(number, tokens(number, 300), 100, 0.0) for number in range(5)}
    whole = {number: here.submit(number, tokens(number, 300), 100, 0.0, each_token=False) for number in range(5, 8)}
    known: dict[int, list[float]] = {number: [] for number in streamed}
    counts: list[tuple[float, dict[int, int]]] = []
    while (now := here.next_second()) < inf:
        here.run(now)
        for delivery in here.due(now):
            if delivery.request in streamed:
                known[delivery.request] += [delivery.known] * (delivery.tokens - len(known[delivery.request]))
            else:
                first = here.first_token(whole[delivery.request])
                assert delivery.tokens == 100 and 0 < first < delivery.at - 99 * 0.003  # seconds of a step, at least
        counts.append((now, {number: here.generated(r, now) for number, r in (streamed | whole).items()}))
    for now, found in counts:
        for number, times in known.items():
            assert 0 <= sum(each <= now for each in times) - found[number] <= missing
    assert set(counts[-1][1].values()) == {100}
    assert any(0 < found[7] < 100 for _, found in counts)


def test_a_delivery_may_leave_early_but_not_before_its_step_has_ended() -> None:
    here = emulated(setup_of())
    here.submit(0, tokens(0, 300), 20, 0.0)
    found = []
    while (now := here.next_second(1e-3)) < inf:
        here.run(now)
        found += [(now, delivery) for delivery in here.due(now, 1e-3)]
    assert len(found) == 20
    assert all(now == delivery.at - 1e-3 > delivery.known for now, delivery in found)
    here.submit(1, tokens(1, 300), 20, found[-1][0])
    while (now := here.next_second(10.0)) < inf:
        here.run(now)
        assert all(delivery.known <= now < delivery.at for delivery in here.due(now, 10.0))


def test_a_conversation_hits_its_own_output_until_the_cache_is_reset() -> None:
    here = emulated(setup_of())
    first = tokens(0, 1000)
    here.submit(0, first, 200, 0.0)
    end = run_until(here)[-1].at
    again = here.submit(1, first + tokens(1, 100), 20, end)
    end = run_until(here)[-1].at
    assert again.hit == 992  # all full blocks but that of the last token, which was sampled and never computed
    here.names.forget()
    later = here.submit(2, first + tokens(2, 100), 20, end)
    run_until(here)
    assert later.hit == 0


def test_aborted_requests_keep_what_was_delivered_and_free_their_place() -> None:
    here = emulated(setup_of({"max_num_seqs": 1}))
    here.submit(0, tokens(0, 500), 400, 0.0)
    here.submit(1, tokens(1, 100), 10, 0.0)
    here.submit(2, tokens(2, 100), 10, 0.0, each_token=False)
    before = run_until(here, 1.0)
    here.abort([0, 1, 2, 99], 1.0)
    after = run_until(here, 1.5)
    stopped = {delivery.request: delivery for delivery in after if delivery.finish == "abort"}
    assert stopped[0].tokens == max(delivery.tokens for delivery in before)
    assert stopped[1].tokens == stopped[2].tokens == 0
    assert len(after) == 3  # nothing comes after that
    assert here.running == here.waiting == 0 and not here.unfinished


def test_an_aborted_request_that_does_not_stream_has_the_tokens_so_far() -> None:
    here = emulated(setup_of())
    request = here.submit(0, tokens(0, 500), 400, 0.0, each_token=False)
    assert not run_until(here, 1.0)
    here.run(1.0)
    generated = here.generated(request, 1.0)
    here.abort([0], 1.0)
    (stopped,) = run_until(here)
    assert stopped.finish == "abort" and 100 < stopped.tokens == generated < 400


def test_a_held_engine_goes_on_where_it_was() -> None:
    here = emulated(setup_of())
    here.submit(0, tokens(0, 500), 100, 0.0)
    before = run_until(here, 0.2)
    here.hold(0.2)
    during = run_until(here, 5.0)
    here.release(5.0)
    after = run_until(here)
    assert len(during) <= 2  # steps in flight
    assert after[0].at > 5.0
    assert [each.tokens for each in (*before, *during, *after)] == list(range(1, 101))


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), min_size=1, max_size=8))
@settings(max_examples=60)
def test_blocks_have_equal_names_exactly_if_all_before_them_is_equal(prompts: list[list[int]]) -> None:
    names = ContentNames(4, most=1000)
    found: dict[int, tuple[int, ...]] = {}
    for number, prompt in enumerate(prompts):
        chain = names.add(number, array("I", prompt))
        for place, name in enumerate(names.names(chain, len(prompt))):
            prefix = tuple(prompt[: 4 * (place + 1)])
            assert found.setdefault(name, prefix) == prefix
    assert len(set(found.values())) == len(found)


def test_names_of_old_blocks_are_forgotten_and_those_in_use_are_not() -> None:
    names = ContentNames(4, most=10)
    kept = array("I", range(8))
    first = list(names.names(names.add(0, kept), 8))
    for number in range(1, 50):
        names.add(number, array("I", [number + 1000] * 8))
        assert list(names.names(names.add(number + 1000, kept), 8)) == first
    assert len(names._known) + len(names._older) < 40
