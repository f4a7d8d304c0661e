"""Requests of several rounds: hidden planning, tools, branches that join, and their blocks while a tool runs."""

from __future__ import annotations

from collections import defaultdict
from math import inf, isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.balance.route.serving import serving_router
from steelyard.engine import Engine, Limits
from steelyard.errors import UserError
from steelyard.fleet import Desk, run_fleet
from steelyard.fleet.driver import FleetDriver
from steelyard.fleet.fleet import _Meter, _run_apart
from steelyard.report.verdict import metrics
from steelyard.scenario import load_scenario, scenario_from_dict
from steelyard.sim import simulate
from steelyard.sim.request_table import request_table
from steelyard.validate.parity import LinearCost
from steelyard.workload import Workload, build_workload, merge
from steelyard.workload.rounds import HIDDEN, RETENTIONS
from support.engine_worlds import assert_same_records, settled
from support.known import known
from support.paths import EXAMPLES

EXAMPLE = EXAMPLES / "reasoning-agents.yaml"
EACH_SECOND = LinearCost(1.0, 0.0, 0.0)
BURST = {"kind": "burst"}
PLAN = [
    {"rounds": 2, "output": 10, "result": 5, "tool": 1},
    {"branches": 3, "rounds": 2, "output": 7, "result": 3, "tool": 2},
]


def build(seed: int = 1, **spec: Any) -> Workload:
    base = {"arrivals": BURST, "requests": 1, "prompt": 100, "output": 20}
    scenario = scenario_from_dict({"model": "m", "fleet": {"gpu": "g"}, "workload": {**base, **spec}})
    work = build_workload(scenario.workload, seed, Path())
    work.validate()
    return work


class Fleet:
    """A workload served by plain engines, one second a step unless told otherwise."""

    def __init__(self, work: Workload, limits: Limits, replicas: int = 1, cost: LinearCost = EACH_SECOND) -> None:
        self.work = work
        self.desk = Desk(work, [limits])
        self.engines = [Engine(limits, cost, self.desk.names, reactive=True) for _ in range(replicas)]

    def run(self, router: str = "sticky") -> dict[str, Any]:
        """The request table; all blocks must have come back."""
        run_fleet(self.engines, self.desk, serving_router(router, len(self.engines), seed=1))
        for engine in self.engines:
            assert not engine.outstanding and engine.scheduler.kv.free == engine.limits.blocks
        return request_table(self.work, self.desk, [engine.log for engine in self.engines])


def roomy(**changes: Any) -> Limits:
    return Limits(**{"blocks": 10_000, "max_model_len": 100_000, "async_scheduling": False, **changes})


def waits(work: Workload) -> dict[int, list[tuple[int, float]]]:
    """Whom each row waits for, and how much longer."""
    found = defaultdict(list)
    for row in np.flatnonzero(work.after >= 0).tolist():
        found[row].append((int(work.after[row]), float(work.think[row])))
    if work.rounds is not None:
        rounds = work.rounds
        for row, parent, pause in zip(
            rounds.join_row.tolist(), rounds.join_after.tolist(), rounds.join_think.tolist(), strict=True
        ):
            found[row].append((parent, pause))
    return found


def written_out(work: Workload, row: int) -> list[tuple[int, int]]:
    """A row's tokens, prompt then output, as (stream, position)."""
    assert work.content is not None
    content = work.content[row]
    stream = int(work.stream[row])
    tokens = [(each, i) for each, length in content for i in range(length)]
    start = content[-1][1] if content[-1][0] == stream else 0
    own = stream if stream >= 0 else -1000 - row
    return tokens + [(own, start + i) for i in range(int(work.prompt[row] + work.output[row]) - len(tokens))]


# -- what is built ----------------------------------------------------------------------------------------------------


def test_a_plan_by_hand() -> None:
    """Two rounds, three branches of two, the answer; then the session's second request goes on from there."""
    work = build(requests=2, plan=PLAN, session={"turns": 2, "think": 9, "system": 30})
    assert work.prompt.tolist() == [130, 145, 160, 170, 160, 170, 160, 170, 169] + [
        289 + more for more in (0, 15, 30, 40, 30, 40, 30, 40, 39)
    ]
    assert work.output.tolist() == [10, 10, 7, 7, 7, 7, 7, 7, 20] * 2
    first = [-1, 0, 1, 2, 1, 4, 1, 6, 3]
    assert work.after.tolist() == [*first, 8, *(9 + each for each in first[1:])]
    assert work.think.tolist() == [0, 1, 1, 2, 1, 2, 1, 2, 2, 9, 1, 1, 2, 1, 2, 1, 2, 2]
    rounds = work.rounds
    assert rounds is not None
    assert rounds.first.tolist() == [0] * 9 + [9] * 9
    assert rounds.phase.tolist() == ([1] * 8 + [0]) * 2
    assert rounds.opening.tolist() == [30] * 18
    assert list(zip(rounds.join_row, rounds.join_after, rounds.join_think, strict=True)) == [
        (8, 5, 2.0),
        (8, 7, 2.0),
        (17, 14, 2.0),
        (17, 16, 2.0),
    ]


def test_rounds_share_what_they_go_on_from() -> None:
    work = build(requests=2, plan=PLAN, session={"turns": 2, "think": 9, "system": 30})
    tokens = [written_out(work, row) for row in range(len(work))]
    for row, length in {1: 140, 2: 155, 3: 167, 5: 167, 7: 167, 9: 189}.items():
        parent = int(work.after[row])
        assert tokens[row][:length] == tokens[parent][:length]
        assert length == work.prompt[parent] + work.output[parent]
    assert tokens[2][:160] == tokens[4][:160] == tokens[8][:160]  # branches begin alike, and the answer goes on there
    assert not {*tokens[2][160:]} & {*tokens[4][160:]}
    assert not {*tokens[8][160:]} & {*tokens[3][160:], *tokens[5][160:], *tokens[7][160:]}


def test_an_opening_is_part_of_the_prompt() -> None:
    work = build(plan=PLAN[0], prefix={"tokens": 64, "groups": 2})
    assert work.prompt.tolist() == [100, 115, 130]
    assert work.content is not None
    assert work.content[0][0][1] == 64 and work.content[0][0] == work.content[2][0]


def test_users_of_a_closed_loop_wait_for_their_answer() -> None:
    work = build(requests=4, plan=PLAN[0], arrivals={"kind": "closed", "users": 2, "think": 5})
    assert np.flatnonzero(work.after < 0).tolist() == [0, 3]
    assert work.after[6] == 2 and work.after[9] == 5
    assert work.think[6] == 5


def test_a_user_has_one_rank_and_one_patience_for_all_rounds() -> None:
    rank = {"kind": "choice", "values": [0, 1, 2, 3]}
    work = build(requests=50, plan=PLAN, priority=rank, abort_after={"kind": "exponential", "mean": 5})
    assert work.rounds is not None
    for column in (work.priority, work.abort):
        assert np.array_equal(column, column[work.rounds.first])
        assert len(set(column.tolist())) > 3


def test_a_plan_leaves_other_draws_alone() -> None:
    spread = {"kind": "uniform", "min": 5, "max": 500}
    poisson = {"kind": "poisson", "rate": 3}
    bare = build(requests=40, prompt=spread, output=spread, arrivals=poisson)
    work = build(requests=40, prompt=spread, output=spread, arrivals=poisson, plan={**PLAN[0], "output": spread})
    assert work.rounds is not None
    answers = work.rounds.phase != HIDDEN
    assert np.array_equal(work.output[answers], bare.output)
    roots = work.after < 0
    assert np.array_equal(work.at[roots], bare.at) and np.array_equal(work.prompt[roots], bare.prompt)
    assert len(set(work.output[~answers].tolist())) > 30


def test_mixing_keeps_plans_whole() -> None:
    poisson = {"kind": "poisson", "rate": 3}
    agents = build(requests=20, plan=PLAN, arrivals=poisson)
    plain = build(seed=2, requests=30, arrivals=poisson)
    both = merge([plain, agents])
    both.validate()
    assert both.rounds is not None and agents.rounds is not None
    rows = np.flatnonzero(both.label == 1)
    assert np.array_equal(both.rounds.first[rows], rows[agents.rounds.first])
    assert np.array_equal(both.rounds.join_row, rows[agents.rounds.join_row])
    assert np.array_equal(both.rounds.join_after, rows[agents.rounds.join_after])
    others = np.flatnonzero(both.label == 0)
    assert np.array_equal(both.rounds.first[others], others) and not both.rounds.phase[others].any()


def test_promises_of_rounds_are_checked() -> None:
    def broken(column: str, row: int, value: float) -> None:
        work = build(plan=PLAN)
        vars(work.rounds)[column][row] = value
        with pytest.raises(ValueError, match="workload: "):
            work.validate()

    broken("first", 3, 5)
    broken("first", 3, 1)
    broken("join_row", 0, 0)
    broken("join_row", 1, 3)
    broken("join_after", 0, 8)
    broken("join_think", 0, inf)


# -- when things happen -----------------------------------------------------------------------------------------------


def test_two_rounds_with_a_tool_between_by_hand() -> None:
    """A step a second: planning ends at 3, the tool at 5.5, and the answer's two tokens come at 6.5 and 7.5."""
    work = build(prompt=4, output=2, plan={"output": 3, "tool": 2.5, "result": 6})
    table = Fleet(work, roomy()).run()
    assert table["prompt"].tolist() == [4, 13]
    assert table["arrival"].tolist() == [0.0, 5.5]
    assert table["first_token"].tolist() == [1.0, 6.5]
    assert table["finish"].tolist() == [3.0, 7.5]
    assert table["ttft"].tolist() == [1.0, 1.0]
    assert isnan(table["attft"][0]) and table["attft"][1] == 6.5
    assert table["phase"].tolist() == ["hidden", "visible"]


@pytest.mark.parametrize("router", ["sticky", "round-robin", "least-outstanding"])
def test_a_join_waits_for_the_slowest_branch(router: str) -> None:
    """Branches from 3 on write 2, 9 and 4 tokens, and their tools take 1, 1 and 20 seconds: the third comes last."""
    work = build(output=2, plan=[{"output": 2, "tool": 1}, {"branches": 3, "output": 9, "tool": 1}])
    assert work.rounds is not None
    work.output[[1, 3]] = 2, 4
    work.rounds.join_think[1] = 20.0
    table = Fleet(work, roomy(), replicas=2).run(router)
    assert table["arrival"].tolist() == [0, 3, 3, 3, 7 + 20]
    assert table["finish"].tolist() == [2, 5, 12, 7, 29]
    assert table["attft"][4] == 28


def test_patience_is_counted_from_what_the_user_submitted() -> None:
    """The user leaves at 6, while the tool runs: planning has ended by then, and the answer is never begun."""
    work = build(prompt=4, output=2, abort_after=6, plan={"output": 3, "tool": 4})
    table = Fleet(work, roomy()).run()
    assert table["status"].tolist() == ["finished", "aborted"]
    assert isnan(table["first_token"][1]) and isnan(table["attft"][1])


def test_who_is_refused_is_followed_at_once() -> None:
    work = build(prompt=4, output=2, plan=[{"output": 3, "kv": "held"}, {"output": 3, "result": 60, "tool": 2}])
    table = Fleet(work, roomy(max_model_len=70)).run()
    assert table["status"].tolist() == ["finished", "finished", "rejected"]
    assert table["arrival"].tolist() == [0, 3, 8]


# -- blocks while a tool runs -----------------------------------------------------------------------------------------

SMALL = {"blocks": 20, "block_size": 8}


@pytest.mark.parametrize(("kv", "found"), [("kept", 72), ("held", 72), ("dropped", 0)])
def test_the_next_round_finds_what_was_left(kv: str, found: int) -> None:
    work = build(prompt=64, output=2, plan={"output": 9, "tool": 30, "result": 8, "kv": kv})
    table = Fleet(work, roomy(**SMALL)).run()
    assert table["prompt"].tolist() == [64, 81]
    assert table["cached"].tolist() == [0, found]


def test_only_held_blocks_outlast_others() -> None:
    """Planning ends at 9 and leaves 9 of 24 blocks behind; one that runs all the time has 3 at 12, when another comes
    that wants 13. It evicts some of what was left, or waits until the next round has begun, at 39."""
    found = {}
    for kv in RETENTIONS:
        agent = build(prompt=64, output=2, plan={"output": 9, "tool": 30, "result": 8, "kv": kv})
        busy = build(prompt=8, output=60)
        other = build(prompt=97, output=2, arrivals={"kind": "burst", "at": 12})
        table = Fleet(merge([agent, busy, other]), roomy(blocks=24, block_size=8)).run()
        row = {prompt: i for i, prompt in enumerate(table["prompt"].tolist())}
        found[kv] = table["cached"][row[81]], table["scheduled"][row[97]]
        assert table["scheduled"][row[81]] == 39
    assert found["dropped"] == (0, 12)
    assert 0 < found["kept"][0] < 72 and found["kept"][1] == 12
    assert found["held"][0] == 72 and found["held"][1] > 39


def test_an_opening_of_others_is_not_dropped() -> None:
    work = build(
        requests=1, prompt=64, output=2, prefix=32, plan={"output": 9, "tool": 3, "result": 8, "kv": "dropped"}
    )
    table = Fleet(work, roomy(**SMALL)).run()
    assert table["cached"].tolist() == [0, 32]
    dropped = build(prompt=64, output=2, plan={"output": 9, "tool": 3, "result": 8, "kv": "dropped"})
    assert Fleet(dropped, roomy(**SMALL)).run()["cached"].tolist() == [0, 0]


def test_dropping_leaves_what_others_use() -> None:
    """Of three branches that begin alike, the last to end is the one whose end frees what they share."""
    plan = [
        {"output": 9, "kv": "kept"},
        {"branches": 3, "output": 4, "tool": 1, "kv": "dropped"},
    ]
    work = build(prompt=64, output=2, plan=plan)
    table = Fleet(work, roomy(blocks=200, block_size=8)).run()
    assert table["cached"].tolist()[1:] == [72, 72, 72, 0]


def test_holding_gives_way_where_nothing_else_could_go_on() -> None:
    """Two requests hold all there is while their tools run; a third that comes meanwhile is served."""
    agents = build(requests=2, prompt=64, output=2, plan={"output": 9, "tool": 100, "result": 8, "kv": "held"})
    other = build(prompt=120, output=2, arrivals={"kind": "burst", "at": 12})
    table = Fleet(merge([agents, other]), roomy(blocks=18, block_size=8)).run()
    assert set(table["status"]) == {"finished"}
    late = int(np.flatnonzero(table["prompt"] == 120)[0])
    assert table["finish"][late] < 20


def test_held_elsewhere_is_let_go() -> None:
    """Round-robin sends the answer to the other replica: nothing is left held on the first (see `run`)."""
    work = build(requests=3, prompt=64, output=2, plan={"output": 9, "tool": 3, "result": 8, "kv": "held"})
    table = Fleet(work, roomy(**SMALL), replicas=2).run("round-robin")
    rounds = work.rounds
    assert rounds is not None
    assert (table["replica"] != table["replica"][rounds.first]).any()


# -- any plan ---------------------------------------------------------------------------------------------------------

few = st.one_of(st.integers(1, 3), st.just({"kind": "uniform", "min": 1, "max": 3}))
lengths = st.one_of(st.integers(1, 30), st.just({"kind": "uniform", "min": 1, "max": 40}))
seconds = st.one_of(st.sampled_from([0.0, 0.5, 3.0]), st.just({"kind": "exponential", "mean": 2}))


@st.composite
def plans(draw: st.DrawFn) -> list[dict[str, Any]]:
    stages: list[dict[str, Any]] = []
    for k in range(draw(st.integers(1, 3))):
        stage: dict[str, Any] = {name: draw(lengths) for name in ("output", "result")}
        stage |= {"rounds": draw(few), "tool": draw(seconds), "kv": draw(st.sampled_from(RETENTIONS))}
        stages.append(stage | ({"branches": draw(few)} if k else {}))
    return stages


@st.composite
def workloads(draw: st.DrawFn) -> dict[str, Any]:
    closed = {"kind": "closed", "users": 2, "think": draw(seconds)}
    spec: dict[str, Any] = {
        "arrivals": draw(st.sampled_from([BURST, {"kind": "poisson", "rate": 1.0}, closed])),
        "requests": draw(st.integers(1, 6)),
        "prompt": draw(lengths),
        "output": draw(lengths),
        "plan": draw(plans()),
    }
    opening = draw(st.sampled_from([None, 9, {"tokens": 16, "groups": 2}]))
    if draw(st.booleans()):
        spec["session"] = {"turns": draw(few), "think": draw(seconds), **({"system": opening} if opening else {})}
    elif opening:
        spec["prefix"] = opening
    if draw(st.integers(0, 3)) == 0:
        spec["abort_after"] = {"kind": "exponential", "mean": 40}
    return spec


LIMITS = st.builds(
    lambda blocks, asynchronous, seats, caching: Limits(
        blocks,
        1500,
        block_size=8,
        max_num_seqs=seats,
        async_scheduling=asynchronous,
        enable_prefix_caching=caching,
    ),
    st.sampled_from([100, 200, 2000]),
    st.booleans(),
    st.sampled_from([1, 4, 64]),
    st.sampled_from([True, True, False]),
)
COSTS = st.sampled_from([EACH_SECOND, LinearCost(0.05, 0.01, 1e-4)])


@settled(120)
@given(workloads(), st.integers(0, 99), LIMITS, COSTS, st.sampled_from(["sticky", "round-robin", "least-outstanding"]))
def test_every_row_ends_and_none_starts_too_early(
    spec: dict[str, Any], seed: int, limits: Limits, cost: LinearCost, router: str
) -> None:
    work = build(seed, **spec)
    fleet = Fleet(work, limits, replicas=2, cost=cost)
    table = fleet.run(router)
    assert (table["status"] != "").all() and np.isfinite(table["arrival"]).all()
    ends = np.where(np.isfinite(table["finish"]), table["finish"], table["arrival"])  # who is refused ends at once
    for row, before in waits(work).items():
        assert table["arrival"][row] == max(ends[parent] + pause for parent, pause in before)
    assert work.rounds is not None
    answers = np.flatnonzero(work.rounds.phase != HIDDEN)
    assert len(answers) == spec["requests"]
    asked = table["arrival"][work.rounds.first[answers]]
    assert np.array_equal(table["attft"][answers], table["first_token"][answers] - asked, equal_nan=True)
    if router == "sticky" and not fleet.desk.refused:
        assert np.array_equal(table["replica"], table["replica"][fleet.desk.session])


@settled(150)
@given(workloads(), st.integers(0, 99))
def test_tokens_of_a_session_add_up(spec: dict[str, Any], seed: int) -> None:
    """A round's prompt is all that those it waits for had, but for what branches keep to themselves, and more."""
    work = build(seed, **spec)
    again = build(seed, **spec)
    assert np.array_equal(work.prompt, again.prompt) and work.content == again.content
    rounds = work.rounds
    assert rounds is not None
    tokens = [written_out(work, row) for row in range(len(work))]
    for row, before in waits(work).items():
        if spec["arrivals"]["kind"] == "closed" and row in np.flatnonzero(rounds.first == np.arange(len(work))):
            continue  # the same user, but perhaps a new conversation
        known = [tokens[parent] for parent, _ in before]
        if len(known) == 1:
            size = len(known[0])
            assert tokens[row][:size] == known[0] and work.prompt[row] > size
        else:  # the branches' common beginning, and a result of each
            size = min(sum(a == b for a, b in zip(known[0], each, strict=False)) for each in known[1:])
            assert tokens[row][:size] == known[0][:size]
            assert work.prompt[row] >= size + len(known)


@settled(60)
@given(workloads(), st.integers(0, 99), LIMITS)
def test_engines_apart_do_what_they_do_on_one_clock(spec: dict[str, Any], seed: int, limits: Limits) -> None:
    work = build(seed, **spec)
    apart, together = (Fleet(work, limits, 2, LinearCost(0.05, 0.01, 1e-4)) for _ in range(2))
    if apart.desk.refused:
        return
    _run_apart(apart.engines, apart.desk, serving_router("sticky", 2, seed), _Meter(None, 0))
    FleetDriver(together.engines, together.desk, serving_router("sticky", 2, seed), None, _Meter(None, 0).ended).run()
    assert apart.desk.arrival.tolist() == together.desk.arrival.tolist()
    for one, other in zip(apart.engines, together.engines, strict=True):
        assert_same_records(one.log, other.log)


# -- from a scenario --------------------------------------------------------------------------------------------------


def scenario(**changes: Any) -> dict[str, Any]:
    workload = {"arrivals": {"kind": "poisson", "rate": 8}, "requests": 60, "prompt": 700, "output": 30}
    data = {"model": "llama-3.1-8b", "fleet": {"gpu": "h100"}, "workload": workload, "seed": 2}
    return {**data, **changes}


def planning(**changes: Any) -> dict[str, Any]:
    return {**scenario()["workload"], "plan": {"rounds": 2, "output": 40, "tool": 0.5, **changes}}


def test_plain_requests_have_one_time_to_first_token() -> None:
    result = simulate(scenario_from_dict(scenario(slo={"attft_p95": 1.0, "attft": 0.5})))
    assert np.array_equal(result.requests["attft"], result.requests["ttft"])
    assert result.summary.attft == result.summary.ttft
    assert result.summary.slo["attft_p95"].value == result.summary.ttft.p95
    assert result.summary.goodput.share == (result.requests["ttft"] <= 0.5).mean()
    assert "attft" not in metrics(result.summary)


def test_answers_are_waited_for_longer_than_their_own_round() -> None:
    result = simulate(scenario_from_dict(scenario(workload=planning())))
    table, summary = result.requests, result.summary
    assert len(table["id"]) == 180 and summary.attft.count == 60
    assert table["attft"][2] == table["first_token"][2] - table["arrival"][0]
    assert known(summary.attft.p50) > 1.0 + known(summary.ttft.p50)
    assert metrics(summary)["attft"][0] == "aTTFT"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"workload": planning(branches=2)}, r"workload.plan.branches: a request begins with one round"),
        ({"workload": {**planning(), "plan": []}}, "plan"),
        ({"workload": planning(kv="pinned")}, "kv"),
        ({"workload": {"trace": {"file": "t"}, "plan": {"output": 3}}}, "the trace says this"),
        (
            {"workload": planning(kv="held"), "engine": {"enable_prefix_caching": False}},
            r"workload.plan.kv: a round's blocks cannot be held without prefix caching",
        ),
        (
            {
                "workload": planning(kv="held"),
                "fleet": {
                    "pools": [
                        {"name": "p", "role": "prefill", "gpu": "h100"},
                        {"name": "d", "role": "decode", "gpu": "h100"},
                    ]
                },
            },
            "cannot be held between prefill and decode pools",
        ),
        ({"slo": {"attft_p0": 1}}, "attft"),
    ],
)
def test_what_cannot_be_is_said_so(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        scenario_from_dict(scenario(**changes))


@pytest.mark.parametrize("kv", ["kept", "dropped"])
def test_rounds_pass_from_prefill_to_decode_engines(kv: str) -> None:
    pools = [{"name": f"{role}s", "role": role, "gpu": "h100", "replicas": 1} for role in ("prefill", "decode")]
    result = simulate(scenario_from_dict(scenario(fleet={"pools": pools}, workload=planning(kv=kv))))
    assert result.summary.outcomes.finished == 180
    hits = result.requests["cached"][result.requests["phase"] == "visible"]
    assert (hits > 600).all() if kv == "kept" else not hits.any()


def test_who_puts_answers_first_or_holds_blocks_answers_sooner() -> None:
    """The shipped example, shorter and busier: contexts that are evicted while tools run must be computed again."""
    busy = ["fleet.replicas=1", "workload.requests=60", "workload.arrivals.rate=0.6"]
    changes = {
        "kept": [],
        "phase-aware": ["engine.scheduler=phase-aware"],
        "held": ["workload.plan.0.kv=held", "workload.plan.1.kv=held"],
        "dropped": ["workload.plan.0.kv=dropped", "workload.plan.1.kv=dropped"],
    }
    found = {name: simulate(load_scenario(EXAMPLE, busy + each)).summary for name, each in changes.items()}
    tail = {name: known(summary.attft.p95) for name, summary in found.items()}
    assert tail["phase-aware"] < 0.9 * tail["kept"]
    assert tail["held"] < 0.9 * tail["kept"] < tail["kept"] < tail["dropped"]
    hits = {name: summary.prefix_cache.hit_rate for name, summary in found.items()}
    assert hits["dropped"] < hits["kept"] < hits["held"]
