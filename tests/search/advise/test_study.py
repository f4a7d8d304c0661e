"""Advice on a made-up trace: nobody sees the future, costs add up, and what is not served is missed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from steelyard.balance.scaling import AheadSettings, HpaSettings, PredictiveSettings
from steelyard.cli import app
from steelyard.errors import UserError
from steelyard.scenario import SloSpec, scenario_from_dict
from steelyard.search.advise import AdviseSettings, advise
from steelyard.search.advise.judge import ServedTraffic, best, judge, replica_seconds
from steelyard.search.advise.oracle import oracle_schedule
from steelyard.search.advise.policies import Bounds, PolicySettings, RuleMaker
from steelyard.search.advise.pool import AdvisedPool, between, read_traffic
from steelyard.search.advise.runs import run_policy
from steelyard.workload.columns import take
from support.report_text import charts_of

FLEET: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "fleet": {"gpu": "rtx-4090", "router": "least-outstanding"},
    "workload": {"arrivals": {"kind": "poisson", "rate": 1}, "requests": 1, "prompt": 1, "output": 1},
    "slo": {"ttft_p95": 2.0, "tpot_p95": 0.06},
}
SLO = SloSpec.model_validate(FLEET["slo"])
BOUNDS = Bounds(begins=2, least=1, most=6, startup=20.0)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight minutes that rise and fall twice."""
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    draw = np.random.default_rng(1)
    at = np.cumsum(draw.exponential(1 / (2.0 + 1.5 * np.sin(np.arange(900) / 70))))
    lengths = draw.integers(200, 1800, 900), draw.integers(5, 300, 900)
    rows = zip(at[at < 480].tolist(), *(each.tolist() for each in lengths), strict=False)
    lines = [{"at": t, "prompt_tokens": p, "output_tokens": o} for t, p, o in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    "settings",
    [
        HpaSettings(8.0, down_window=60.0),
        PredictiveSettings(interval=60.0, share=0.5),
        AheadSettings(quantile=0.8, hold=60.0, startup=BOUNDS.startup),
    ],
    ids=lambda each: type(each).__name__,
)
def test_no_policy_sees_the_future(trace: Path, settings: PolicySettings) -> None:
    """Other requests after a moment change no decision before it."""
    pool = AdvisedPool.of(scenario_from_dict(FLEET), trace, 1.0)
    work, _ = read_traffic(pool.fixed(1), trace, AdviseSettings())
    rules, moment = RuleMaker.of(pool, BOUNDS), 240.0
    other = take(work, np.repeat(np.arange(len(work)), np.where(work.at < moment, 1, 3)))  # three times as many
    one, two = run_policy(rules, work, settings), run_policy(rules, other, settings)
    before = [[step for step in run.held if step[0] <= moment] for run in (one, two)]
    assert before[0] == before[1] and len(before[0]) > 1
    assert one.held != two.held
    again = run_policy(rules, work, settings)
    assert again.held == one.held


def test_advice_is_the_same_with_any_number_of_workers(trace: Path, tmp_path: Path) -> None:
    fleet = tmp_path / "s.yaml"
    fleet.write_text(json.dumps(FLEET))
    command = ["advise", str(trace), "--fleet", str(fleet), "--policies", "none,reactive,oracle", "--startup", "20"]
    one = CliRunner().invoke(app, [*command, "--json", "--page", str(tmp_path / "p.html")], catch_exceptions=False)
    two = CliRunner().invoke(app, [*command, "--json", "--workers", "2"], catch_exceptions=False)
    assert one.exit_code == 0 and one.stdout == two.stdout
    found = json.loads(one.stdout)
    rows = {row["name"]: row for row in found["rows"]}
    assert {"reactive", "oracle", found["chosen_fixed"]} <= set(rows)
    page = (tmp_path / "p.html").read_text()
    assert len(charts_of(page)) == 1 + 2 * len(rows) and found["sentence"].split(".")[0] in page
    for row in rows.values():  # costs add up
        parts = [row["tuned"], row["judged"]]
        spent = replica_seconds(tuple(map(tuple, row["held"])), 0.0, found["seconds"]) / 3600
        assert sum(each["gpu_hours"] for each in parts) == pytest.approx(spent)
        assert sum(each["usd"] for each in parts) == pytest.approx(spent * found["usd_per_gpu_hour"])
        assert sum(each["requests"] for each in parts) == found["requests"] == sum(found["arrivals"])
        assert sum(row["misses"]) == pytest.approx(sum(each["missed"] * each["requests"] for each in parts))
    good = [row["judged"]["usd"] for row in found["rows"] if row["judged"]["meets"] and row["kind"] != "bound"]
    assert good == sorted(good)


def test_ours_and_predictive_give_advice(trace: Path) -> None:
    found = advise(scenario_from_dict(FLEET), trace, AdviseSettings(policies=("predictive", "ours"), startup=20.0))
    assert {row.name for row in found.rows} == {"predictive", "ours", found.chosen_fixed}
    assert "Take " in found.sentence or "None of these" in found.sentence
    assert found.most == 2 * int(found.chosen_fixed.split()[1])


def served(
    arrival: list[float], ttft: list[float], status: list[str], held: tuple[tuple[float, int], ...]
) -> ServedTraffic:
    n = len(arrival)
    columns: dict[str, Any] = {name: np.full(n, 0.01) for name in ("attft", "tpot", "e2e", "queue")}
    columns |= {"id": np.arange(n), "arrival": np.array(arrival), "ttft": np.array(ttft), "output": np.full(n, 5)}
    columns |= {"status": np.array(status, dtype=object), "phase": np.full(n, "visible", dtype=object)}
    return ServedTraffic(columns, held)


def test_requests_that_are_not_served_are_missed() -> None:
    statuses = ["finished", "rejected", "unfinished", "aborted"]
    run = served([0.0, 1.0, 2.0, 3.0], [0.1, np.nan, np.nan, 0.1], statuses, ((0.0, 2), (2.0, 1)))
    found = judge(run, SLO, 0.0, 4.0, gpus=2, price=3.0)
    assert found.missed == 0.75 and found.unserved == 3 and not found.meets
    assert found.gpu_hours == pytest.approx(2 * (2 * 2 + 1 * 2) / 3600) and found.usd == pytest.approx(
        3 * found.gpu_hours
    )
    assert found.changes == 1


def test_the_worst_ten_minutes() -> None:
    arrival = [float(second) for second in range(0, 3600, 10)]
    late = [5.0 if 1200 <= second < 1800 else 0.1 for second in arrival]
    found = judge(served(arrival, late, ["finished"] * 360, ((0.0, 1),)), SLO, 0.0, 3600.0, 1, 1.0)
    assert (found.worst_start, found.worst) == (1200.0, 1.0) and found.missed == pytest.approx(1 / 6)
    assert len(found.hours) == 1 and found.hours[0].ttft_p95 == 5.0


def test_the_cheapest_that_meets_the_limits_is_best() -> None:
    good, late = ([0.1] * 10, [3.0] * 10)
    times = [float(i) for i in range(10)]
    tried = (late, 1), (good, 3), (good, 2)
    runs = [served(times, ttft, ["finished"] * 10, ((0.0, n),)) for ttft, n in tried]
    judged = [judge(run, SLO, 0.0, 10.0, 1, 1.0) for run in runs]
    assert best(judged) == 2 and best(judged[:1]) == 0


def test_the_oracle_asks_for_replicas_in_time() -> None:
    arrival = [float(second) for second in range(0, 600, 2)]
    busy = [5.0 if 300 <= second < 360 else 0.1 for second in arrival]
    fixed = {n: served(arrival, busy if n == 1 else [0.1] * 300, ["finished"] * 300, ((0.0, n),)) for n in (1, 2)}
    limits = SLO.on_run()
    assert oracle_schedule(fixed, limits, 600.0, startup=60.0) == ((0.0, 1), (240.0, 2), (360.0, 1))


def test_a_part_of_a_trace_begins_at_zero(trace: Path) -> None:
    pool = AdvisedPool.of(scenario_from_dict(FLEET), trace, 2.0)
    work, whole = read_traffic(pool.fixed(1), trace, AdviseSettings(speed=2.0, start=100.0, end=200.0))
    assert work.at.min() >= 0 and work.at.max() <= 50.0 and whole == pytest.approx(480, abs=10)
    assert len(between(work, 0.0, 25.0)) + len(between(work, 25.0, None)) == len(work)


@pytest.mark.parametrize(
    ("changes", "settings", "told"),
    [
        ({"slo": {}}, {}, "slo: advise needs limits on percentiles"),
        ({"slo": {"itl_p95": 1.0}}, {}, "itl is of single tokens"),
        ({"slo": {"ttft_p95": 1e-6}}, {"most": 2}, "is not kept by 2 replicas"),
        ({"dynamics": [{"at": 1, "crash": {"pool": "serve", "replica": 0, "restart_after": 1}}]}, {}, "without faults"),
        ({}, {"start": 1e6}, "0 of its"),
        ({}, {"policies": ("hpa",)}, "--policies: 'hpa' is not known"),
        ({}, {"least": 3, "most": 2}, "--max 2: is less than --min 3"),
        ({}, {"start": 5.0, "end": 5.0}, "--to 5: is not after --from 5"),
        ({}, {"speed": float("nan")}, "--speed nan: must be a number"),
    ],
)
def test_mistakes(trace: Path, changes: dict[str, Any], settings: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        advise(scenario_from_dict({**FLEET, **changes}), trace, AdviseSettings(**settings))
