"""Workloads as a whole: promises that hold for any of them, shares, seeds, speed."""

from __future__ import annotations

import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import UserError
from steelyard.scenario import load_scenario, scenario_from_dict
from steelyard.workload import Workload, build_workload, merge
from support.paths import EXAMPLES

POISSON = {"kind": "poisson", "rate": 20.0}


def build(workload: Any, seed: int = 1, base_dir: Path = Path()) -> Workload:
    scenario = scenario_from_dict({"model": "m", "fleet": {"gpu": "g"}, "workload": workload, "seed": seed})
    work = build_workload(scenario.workload, scenario.seed, base_dir)
    work.validate()
    return work


def same(left: Workload, right: Workload) -> bool:
    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, np.ndarray):
            return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        return bool(a == b)

    return all(equal(vars(left)[each.name], vars(right)[each.name]) for each in fields(Workload))


tokens = st.one_of(
    st.integers(1, 500),
    st.builds(
        lambda a, b: {"kind": "uniform", "min": min(a, b), "max": max(a, b)},
        st.integers(1, 99),
        st.integers(1, 99),
    ),
    st.builds(
        lambda m, f, top: {"kind": "lognormal", "median": m, "p95": m * f, "max": top},
        st.floats(0.1, 400),
        st.floats(1, 20),
        st.floats(1, 4000),
    ),
    st.builds(
        lambda a, n, e: {"kind": "zipf", "min": a, "max": a + n, "exponent": e},
        st.integers(1, 9),
        st.integers(0, 99),
        st.floats(0.1, 3),
    ),
    st.builds(lambda v: {"kind": "empirical", "values": v}, st.lists(st.integers(1, 99), min_size=1, max_size=5)),
    st.just({"kind": "empirical", "histogram": [[1, 4, 2.0], [10, 10, 0.0], [20, 90, 1.0]]}),
)
seconds = st.one_of(
    st.floats(0, 10),
    st.builds(lambda a: {"kind": "uniform", "min": a, "max": 2 * a}, st.floats(0, 5)),
    st.builds(lambda m: {"kind": "exponential", "mean": m}, st.floats(0.01, 5)),
    st.builds(lambda m: {"kind": "lognormal", "median": m, "p95": 3 * m}, st.floats(0.01, 5)),
)
rates = st.floats(0.5, 500)
arrivals = st.one_of(
    st.builds(lambda r: {"kind": "poisson", "rate": r}, rates),
    st.builds(lambda r, cv: {"kind": "gamma", "rate": r, "cv": cv}, rates, st.floats(0.1, 4)),
    st.builds(lambda r: {"kind": "constant", "rate": r}, rates),
    st.builds(lambda t: {"kind": "burst", "at": t}, st.floats(0, 9)),
    st.builds(
        lambda r, f, p: {"kind": "varying", "profile": {"mean": r, "amplitude": r * f, "period": p}},
        rates,
        st.floats(0, 1),
        st.floats(0.1, 99),
    ),
    st.builds(
        lambda a, b: {"kind": "varying", "profile": [[0, a], [3, b], [9, 5]]},
        st.floats(0, 99),
        st.floats(0, 99),
    ),
    st.builds(
        lambda u, t, r: {"kind": "closed", "users": u, "think": t, "ramp": r},
        st.integers(1, 30),
        seconds,
        st.floats(0, 9),
    ),
)
system = st.one_of(st.integers(1, 300), st.just({"tokens": 40, "groups": 3, "zipf": 1.1}))


@st.composite
def workloads(draw: st.DrawFn) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "arrivals": draw(arrivals),
        "requests": draw(st.integers(1, 120)),
        "prompt": draw(tokens),
        "output": draw(tokens),
    }
    if draw(st.booleans()):
        spec["session"] = {"turns": draw(tokens), "think": draw(seconds)}
        if draw(st.booleans()):
            spec["session"]["system"] = draw(system)
    elif draw(st.booleans()):
        spec["prefix"] = draw(system)
    if draw(st.booleans()):
        spec["abort_after"] = {"kind": "exponential", "mean": 3}
        spec["priority"] = {"kind": "choice", "values": [0, 5], "weights": [3, 1]}
        spec["accept"] = {"probabilities": [0.9, 0.5]}
    return spec


@given(workloads(), st.integers(0, 2**40))
@settings(max_examples=150)
def test_any_workload_keeps_its_promises(spec: dict[str, Any], seed: int) -> None:
    work = build(spec, seed)
    assert len(work) == spec["requests"]
    assert same(work, build(spec, seed))


@given(st.lists(workloads(), min_size=2, max_size=4), st.integers(0, 9))
@settings(max_examples=60)
def test_a_mix_holds_every_request_of_its_workloads(specs: list[dict[str, Any]], seed: int) -> None:
    mixed = build(specs, seed)
    assert len(mixed) == sum(spec["requests"] for spec in specs)
    for i, spec in enumerate(specs):
        rows = np.flatnonzero(mixed.label == i)
        assert len(rows) == spec["requests"]
        followers = rows[mixed.after[rows] >= 0]
        assert (mixed.label[mixed.after[followers]] == i).all()
        own = {stream for row in rows for stream, _ in (mixed.content[row] if mixed.content else ())}
        others = {
            stream
            for row in np.flatnonzero(mixed.label != i)
            for stream, _ in (mixed.content[row] if mixed.content else ())
        }
        assert not own & others


def test_merging_keeps_each_request_whole() -> None:
    chat = build({"arrivals": POISSON, "requests": 40, "prompt": 9, "output": 3, "session": {"turns": 4, "system": 7}})
    plain = build({"arrivals": {"kind": "constant", "rate": 5}, "requests": 30, "prompt": 5, "output": 2}, seed=2)
    both = merge([plain, chat])
    both.validate()
    assert both.labels == ["workload", "workload"]
    rows = np.flatnonzero(both.label == 1)
    assert both.prompt[rows].tolist() == chat.prompt.tolist()
    assert both.content is not None and chat.content is not None
    assert [both.content[row] for row in rows] == chat.content  # the plain workload has no streams to make room for
    assert merge([chat, chat]).streams == 2 * chat.streams
    parents = both.after[rows]
    assert (parents[chat.after >= 0] == rows[chat.after[chat.after >= 0]]).all()


def test_shares_split_rate_users_and_requests_exactly() -> None:
    mix = {
        "arrivals": {"kind": "constant", "rate": 30},
        "requests": 1001,
        "mix": [{"share": share, "prompt": i + 1, "output": 1} for i, share in enumerate((5, 3, 2))],
    }
    work = build(mix)
    assert np.bincount(work.label).tolist() == [500, 301, 200]
    assert work.at[work.label == 0][1] == pytest.approx(1 / 15)
    assert work.at[work.label == 2][1] == pytest.approx(1 / 6)
    assert work.labels == ["workload-0", "workload-1", "workload-2"]
    closed = build({**mix, "arrivals": {"kind": "closed", "users": 10}})
    roots = closed.after < 0
    assert [int((roots & (closed.label == i)).sum()) for i in range(3)] == [5, 3, 2]


def test_a_duration_is_not_split_by_shares() -> None:
    mix = {
        "arrivals": POISSON,
        "duration": 200,
        "mix": [{"share": 1, "prompt": 1, "output": 1}, {"share": 3, "prompt": 1, "output": 1}],
    }
    work = build(mix)
    counts = np.bincount(work.label)
    assert abs(counts[0] - 1000) < 5 * 1000**0.5
    assert abs(counts[1] - 3000) < 5 * 3000**0.5
    assert 190 < work.at.max() <= 200


def test_changing_one_distribution_leaves_the_other_draws_alone() -> None:
    base = {
        "arrivals": POISSON,
        "requests": 50,
        "prompt": {"kind": "uniform", "min": 1, "max": 999},
        "output": 5,
    }
    other = build({**base, "output": {"kind": "lognormal", "median": 20, "p95": 90}, "abort_after": 3})
    first = build(base)
    assert np.array_equal(first.at, other.at)
    assert np.array_equal(first.prompt, other.prompt)
    assert not np.array_equal(first.at, build(base, seed=2).at)


def test_draws_of_different_purposes_and_workloads_are_independent() -> None:
    length = {"kind": "uniform", "min": 1, "max": 10_000}
    spec = {
        "arrivals": POISSON,
        "requests": 2000,
        "prompt": length,
        "output": length,
        "abort_after": {"kind": "exponential", "mean": 1},
    }
    work = build([spec, spec])
    first, second = (np.flatnonzero(work.label == i) for i in (0, 1))
    columns = [
        np.diff(work.at[first], prepend=0.0),
        work.prompt[first],
        work.output[first],
        work.abort[first],
        work.prompt[second],
        work.output[second],
    ]
    assert np.abs(np.corrcoef(columns) - np.eye(len(columns))).max() < 0.1


def test_priorities_patience_and_accepted_drafts() -> None:
    work = build(
        {
            "arrivals": POISSON,
            "requests": 20_000,
            "prompt": 5,
            "output": 5,
            "priority": {"kind": "choice", "values": [-1, 7], "weights": [1, 3]},
            "abort_after": 2.5,
            "accept": {"probabilities": [0.8, 0.5, 0.1]},
        }
    )
    assert (work.priority == 7).mean() == pytest.approx(0.75, abs=0.02)
    assert (work.abort == 2.5).all()
    assert work.accept is not None
    drawn = np.array(work.accept)
    assert [(drawn >= k).mean() for k in (1, 2, 3)] == pytest.approx([0.8, 0.5, 0.1], abs=0.01)
    assert len(set(work.accept)) > 500


def test_acceptance_of_the_engine_is_a_default() -> None:
    scenario = scenario_from_dict(
        {
            "model": "m",
            "fleet": {"gpu": "g"},
            "engine": {"num_speculative_tokens": 3, "acceptance": [1, 2]},
            "workload": [
                {"arrivals": {"kind": "burst"}, "requests": 2, "prompt": 1, "output": 1},
                {"arrivals": {"kind": "burst"}, "requests": 1, "prompt": 1, "output": 1, "accept": [3]},
            ],
        }
    )
    work = build_workload(scenario.workload, 0, Path(), scenario.engine.acceptance)
    assert work.accept == [(1, 2), (1, 2), (3,)]


def test_nobody_comes() -> None:
    with pytest.raises(UserError, match="workload 'chat' has no requests"):
        build(
            {
                "name": "chat",
                "arrivals": {"kind": "poisson", "rate": 0.01},
                "duration": 0.001,
                "prompt": 1,
                "output": 1,
            }
        )


def test_too_few_come() -> None:
    profile = [[0, 10], [10, 10], [11, 0]]
    work = build({"arrivals": {"kind": "varying", "profile": profile}, "requests": 5000, "prompt": 1, "output": 1})
    assert 50 < len(work) < 170
    assert work.notes == [f"{len(work)} of 5000 requests arrive before the duration or rate ends"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_examples_build(path: Path) -> None:
    scenario = load_scenario(path)
    work = build_workload(scenario.workload, scenario.seed, scenario.base_dir, scenario.engine.acceptance)
    work.validate()
    assert len(work) >= 512


def test_validate_notices_broken_promises() -> None:
    spec = {"arrivals": POISSON, "requests": 9, "prompt": 4, "output": 2, "session": {"turns": 3}}

    def broken(**changes: Any) -> None:
        work = build(spec)
        for name, (row, value) in changes.items():
            vars(work)[name][row] = value
        work.validate()

    broken()
    for changes in (
        {"at": (3, 0.0)},
        {"at": (1, 5.0)},
        {"at": (0, np.nan)},
        {"after": (1, 2)},
        {"prompt": (2, 0)},
        {"output": (2, 0)},
        {"think": (1, -1.0)},
        {"abort": (1, 0.0)},
        {"content": (1, ((0, 99),))},
        {"content": (1, ((99, 1),))},
        {"stream": (1, 99)},
        {"label": (1, 1)},
    ):
        with pytest.raises(ValueError, match="workload: "):
            broken(**changes)


def test_a_million_requests_build_quickly_and_small() -> None:
    start = time.process_time()
    work = build({"arrivals": POISSON, "requests": 1_000_000, "prompt": 768, "output": 192})
    assert time.process_time() - start < 1.5  # well under one second on any recent machine
    assert work.content is None and work.accept is None
    assert sum(column.nbytes for column in vars(work).values() if isinstance(column, np.ndarray)) <= 80e6
