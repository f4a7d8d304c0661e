"""From scenario to result: every figure recomputed the slow way, the fast path against the plain one, bytes."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steelyard import Result, Scenario, load_scenario, scenario_from_dict, simulate
from steelyard.balance.route.serving import serving_router
from steelyard.cost.step import RESTED, StepTime
from steelyard.engine import Engine, Limits, Request
from steelyard.fleet import Desk, run_fleet
from steelyard.model import AttentionOperator, Gemm, head_operators, operators
from steelyard.sim import set_up
from steelyard.sim.summary import Goodput, Outcomes, PrefixCache, Summary
from steelyard.workload import build_workload
from support.known import known
from support.paths import EXAMPLES

CUT = {
    "quickstart": ["workload.requests=400"],
    "chat-sessions": ["workload.requests=400"],
    "closed-loop": ["workload.requests=300", "workload.arrivals.users=24"],
    "azure-like-mix": ["workload.requests=400"],
    "rollout-burst": ["workload.requests=48"],
}
REQUEST_COLUMNS = {
    **dict.fromkeys(("id", "replica", "prompt", "output", "cached", "preemptions", "retries"), "i"),
    **dict.fromkeys(("label", "phase", "status", "reason"), "O"),
    **dict.fromkeys(("arrival", "taken", "scheduled", "first_token", "finish"), "f"),
    **dict.fromkeys(("queue", "ttft", "attft", "tpot", "e2e"), "f"),
}
STEP_COLUMNS = {
    **dict.fromkeys(("replica", "step", "n_decode", "kv_decode", "prefill_tokens", "prefill_requests"), "i"),
    **dict.fromkeys(("running", "waiting", "free_blocks", "preempted"), "i"),
    **dict.fromkeys(("start", "end"), "f"),
}
SUMMARY_KEYS = {
    *("name", "seed", "steelyard", "model", "gpu", "gpus", "replicas", "requests", "steps", "duration_s"),
    *("ttft", "attft", "tpot", "itl", "e2e", "queue", "throughput", "goodput", "slo", "kv", "prefix_cache"),
    *("preemptions", "mfu", "mbu", "busy", "gpu_hours", "cost", "provenance", "memory"),
}


def scenario(**changes: Any) -> Scenario:
    """A small run on one H100; keyword arguments replace whole sections."""
    data = {
        "model": "llama-3.1-8b",
        "fleet": {"gpu": "h100"},
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 20},
            "requests": 60,
            "prompt": {"kind": "uniform", "min": 20, "max": 900},
            "output": {"kind": "uniform", "min": 1, "max": 80},
        },
        "seed": 3,
    }
    return scenario_from_dict({**data, **changes})


def workload(**changes: Any) -> dict[str, Any]:
    base = {"arrivals": {"kind": "burst"}, "requests": 40, "prompt": 100, "output": 20}
    return {**base, **changes}


@cache
def example(name: str) -> Scenario:
    return load_scenario(EXAMPLES / f"{name}.yaml", CUT[name])


SQUEEZED: dict[str, Any] = {
    "fleet": {"gpu": "h100", "replicas": 2, "router": "least-outstanding", "price_per_hour": 7.0},
    "engine": {"num_gpu_blocks": 260, "max_num_batched_tokens": 512, "max_num_seqs": 24},
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 40},
        "requests": 90,
        "prompt": {"kind": "uniform", "min": 100, "max": 900},
        "output": {"kind": "uniform", "min": 1, "max": 300},
        "prefix": {"tokens": 90, "groups": 3},
    },
    "slo": {"ttft": 0.9, "tpot_p90": 0.02, "e2e_p50": 2.0, "itl_p99": 0.05, "queue_p95": 0.5, "ttft_p99": 1e-3},
}


@cache
def squeezed() -> Result:
    """A run with everything in it: preemptions, prefix hits, queues, two replicas, met and missed limits."""
    result = simulate(scenario(**SQUEEZED), plain=True)
    assert result.summary.preemptions > 0
    assert result.summary.prefix_cache.hit_tokens > 0
    return result


# -- the figures of the summary -----------------------------------------------------------------------------------


def percentile(values: Sequence[float], percent: float) -> float:
    """Straight lines between the sorted values."""
    ranked = sorted(values)
    place = (len(ranked) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)


def rows(result: Result) -> list[dict[str, Any]]:
    columns = {name: column.tolist() for name, column in result.requests.items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def finished(result: Result) -> list[dict[str, Any]]:
    return [row for row in rows(result) if row["status"] == "finished"]


def test_latencies_are_those_of_the_finished_requests() -> None:
    result = squeezed()
    done = finished(result)
    for metric in ("ttft", "attft", "tpot", "e2e", "queue"):
        values = [row[metric] for row in done if not math.isnan(row[metric])]
        found = result.summary.latencies[metric]
        assert found.count == len(values) > 50
        assert found.mean == pytest.approx(sum(values) / len(values))
        assert found.max == max(values)
        for percent in (50, 90, 95, 99):
            assert found.levels[f"p{percent}"] == pytest.approx(percentile(values, percent))


def test_durations_follow_from_the_moments() -> None:
    for row in finished(squeezed()):
        assert row["queue"] == pytest.approx(row["scheduled"] - row["arrival"], abs=1e-12)
        assert row["ttft"] == pytest.approx(row["first_token"] - row["arrival"], abs=1e-12)
        assert row["e2e"] == pytest.approx(row["finish"] - row["arrival"], abs=1e-12)
        if row["output"] == 1:
            assert math.isnan(row["tpot"]) and row["first_token"] == row["finish"]
        else:
            assert row["tpot"] == pytest.approx((row["finish"] - row["first_token"]) / (row["output"] - 1))
        assert row["arrival"] <= row["taken"] < row["scheduled"] < row["first_token"] <= row["finish"]


def test_throughput_and_cost_are_totals_over_the_duration() -> None:
    result = squeezed()
    summary, done = result.summary, finished(result)
    duration = max(row["finish"] for row in done) - min(row["arrival"] for row in rows(result))
    assert summary.duration_s == pytest.approx(duration)
    tokens_in, tokens_out = sum(row["prompt"] for row in done), sum(row["output"] for row in done)
    assert summary.throughput.to_dict() == pytest.approx(
        {
            "requests_per_s": len(done) / duration,
            "input_tokens_per_s": tokens_in / duration,
            "output_tokens_per_s": tokens_out / duration,
            "total_tokens_per_s": (tokens_in + tokens_out) / duration,
            "output_tokens_per_s_per_gpu": tokens_out / duration / 2,
            "total_tokens_per_s_per_gpu": (tokens_in + tokens_out) / duration / 2,
        }
    )
    assert summary.gpus == summary.replicas == 2
    assert summary.gpu_hours == pytest.approx(2 * duration / 3600)
    usd = 7.0 * 2 * duration / 3600
    assert summary.cost.usd == pytest.approx(usd)
    assert summary.cost.usd_per_million_tokens == pytest.approx(usd / (tokens_in + tokens_out) * 1e6)
    assert summary.cost.usd_per_million_output_tokens == pytest.approx(usd / tokens_out * 1e6)
    assert sum(summary.provenance.to_dict().values()) == pytest.approx(1)


def test_price_and_gpu_count_follow_the_fleet() -> None:
    summary = simulate(scenario(fleet={"gpu": "h100", "replicas": 3, "tp": 2})).summary
    assert summary.gpus == 6
    assert summary.cost.usd == pytest.approx(3.0 * summary.gpu_hours), "the catalog's price of an H100"
    assert summary.gpu_hours == pytest.approx(6 * summary.duration_s / 3600)


def test_goodput_counts_requests_that_meet_every_limit() -> None:
    """ttft 0.9 as given (not the percentile's 1e-3), tpot and e2e from their percentile limits."""
    result = squeezed()
    good = [row for row in finished(result) if row["ttft"] <= 0.9 and not row["tpot"] > 0.02 and row["e2e"] <= 2.0]
    assert 0 < len(good) < len(finished(result))
    goodput = result.summary.goodput
    assert goodput.share == pytest.approx(len(good) / len(rows(result)))
    assert goodput.requests_per_s == pytest.approx(len(good) / result.summary.duration_s)
    assert simulate(scenario()).summary.goodput == Goodput(requests_per_s=None, share=None)


def test_verdicts_compare_the_runs_percentiles_with_the_limits() -> None:
    result = squeezed()
    done, verdicts = finished(result), result.summary.slo
    assert list(verdicts) == ["tpot_p90", "e2e_p50", "itl_p99", "queue_p95", "ttft_p99"]
    for name, limit in SQUEEZED["slo"].items():
        if name not in verdicts:
            continue
        metric, _, percent = name.partition("_p")
        if metric == "itl":
            value = known(result.summary.itl.p99)
        else:
            value = percentile([row[metric] for row in done if not math.isnan(row[metric])], float(percent))
        assert verdicts[name].limit == limit
        assert verdicts[name].value == pytest.approx(value)
        assert verdicts[name].met is (value <= limit)
    assert {verdict.met for verdict in verdicts.values()} == {True, False}


def test_prefix_hits_and_preemptions_are_sums_over_requests() -> None:
    result = squeezed()
    served = [row for row in rows(result) if not math.isnan(row["scheduled"])]
    hits, prompts = sum(row["cached"] for row in served), sum(row["prompt"] for row in served)
    assert result.summary.prefix_cache == PrefixCache(hit_rate=hits / prompts, hit_tokens=hits, prompt_tokens=prompts)
    assert all(row["cached"] % 16 == 0 and row["cached"] <= 80 for row in served), "whole blocks of the 90 shared"
    assert result.summary.preemptions == sum(row["preemptions"] for row in served)
    assert result.summary.preemptions == int(result.steps["preempted"].sum())


def step_seconds(result: Result) -> np.ndarray:
    return np.asarray(result.steps["end"] - result.steps["start"])


def test_busy_and_block_use_are_time_averages_over_the_steps() -> None:
    result = squeezed()
    summary, steps = result.summary, result.steps
    room = summary.duration_s * 2
    blocks = summary.kv.blocks_per_replica
    assert blocks == 259 and summary.kv.block_size == 16
    assert summary.busy == pytest.approx(step_seconds(result).sum() / room)
    held = ((blocks - steps["free_blocks"]) * step_seconds(result)).sum()
    assert summary.kv.mean_use == pytest.approx(held / (blocks * room))
    assert summary.kv.peak_use == pytest.approx(1 - steps["free_blocks"].min() / blocks)
    fast = simulate(scenario(**SQUEEZED)).summary
    assert fast.busy == pytest.approx(summary.busy)
    assert fast.kv.peak_use == summary.kv.peak_use
    assert fast.kv.mean_use == pytest.approx(summary.kv.mean_use, rel=0.01)


@pytest.mark.parametrize("plain", [False, True])
def test_shares_of_peak_are_the_work_of_the_steps(plain: bool) -> None:
    """Without a prefix cache every prompt token is computed, so the work follows from the requests alone."""
    run = scenario(engine={"enable_prefix_caching": False})
    result = simulate(run, plain=plain)
    setup = set_up(run).pools[0]
    gemms = [
        op
        for layer in setup.model.layers
        for op in operators(setup.model, layer, 1) * layer.count
        if isinstance(op, Gemm)
    ]
    head = next(op for op in head_operators(setup.model, 1) if isinstance(op, Gemm))
    attention = next(op for op in operators(setup.model, setup.model.layers[0], 1) if isinstance(op, AttentionOperator))
    done = finished(result)
    tokens = sum(row["prompt"] + row["output"] - 1 for row in done)
    pairs = sum((row["prompt"] + row["output"] - 1) * (row["prompt"] + row["output"]) / 2 for row in done)
    sampled = sum(row["output"] for row in done)
    flops = 2.0 * sum(op.k * op.n for op in gemms) * tokens + 2.0 * head.k * head.n * sampled
    flops += attention.decode.flops_per_pair * pairs * setup.model.num_layers
    room = result.summary.duration_s
    assert result.summary.preemptions == 0
    assert result.summary.mfu == pytest.approx(flops / setup.gpu.peak("bf16") / room, rel=2e-3)
    weights = sum(op.k * op.n for op in [*gemms, head]) * 2.0
    cache = int(result.steps["kv_decode"].sum()) * 2 * 8 * 128 * 2 * 32
    moved = weights * result.summary.steps + cache
    assert result.summary.mbu == pytest.approx(moved / setup.gpu.memory_bandwidth / room, rel=1e-9)


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": workload(prompt=8000, output=1)},
        {"model": {"config": "llama-3.1-8b", "quantization": "fp8"}, "workload": workload(prompt=8000, output=1)},
        {"workload": workload(requests=200, prompt=2000, output=400)},
        {"workload": workload(requests=1, prompt=10, output=2000)},
        {"model": "mistral-7b-v0.1", "workload": workload(requests=16, prompt=24_000, output=6000)},
        {"model": "gemma-3-4b", "workload": workload(requests=16, prompt=24_000, output=6000)},
        {"model": "qwen3-30b-a3b", "fleet": {"gpu": "h200"}, "workload": workload(requests=64, output=200)},
        {"fleet": {"gpu": "h100", "tp": 4}, "workload": workload(requests=256, prompt=3000, output=200)},
        {"engine": {"kv_cache_dtype": "fp8"}, "workload": workload(requests=200, prompt=2000, output=400)},
    ],
    ids=["prefill", "fp8", "decode", "lone", "windowed", "half-windowed", "moe", "tp4", "fp8-cache"],
)
def test_no_run_beats_the_hardware(changes: dict[str, Any]) -> None:
    summary = simulate(scenario(**changes)).summary
    assert 0 < summary.mfu < 1
    assert 0 < summary.mbu < 1
    assert 0 < summary.busy <= 1 + 1e-9
    assert 0 < summary.kv.mean_use <= summary.kv.peak_use <= 1


def test_summary_is_json_with_the_promised_keys() -> None:
    for result in (squeezed(), simulate(scenario(workload=workload(prompt=900_000)))):
        told = result.summary.to_dict()
        assert set(told) >= SUMMARY_KEYS
        text = json.dumps(told, allow_nan=False)
        assert json.loads(text) == told
        assert Summary.from_dict(json.loads(text)) == result.summary
        for metric in ("ttft", "tpot", "itl", "e2e", "queue"):
            assert list(told[metric]) == ["mean", "p50", "p90", "p95", "p99", "max", "count"]


# -- gaps between tokens, by looking at every token ---------------------------------------------------------------


@dataclass
class TokenWatch:
    """Tells from an engine's scheduled tokens alone which steps bring each request's output tokens.

    Needs a run without prefix hits.
    """

    prompt: list[int]
    output: list[int]
    steps: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    requests: list[int] = field(default_factory=list)  # in each step
    computed: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def step(self, scheduled_at: float, tokens: dict[int, int], preempted: list[int], free: int) -> None:
        for i in preempted:
            self.computed[i] = 0
        for i, count in tokens.items():
            self.computed[i] += count
            if self.computed[i] >= self.prompt[i] + len(self.steps[i]):
                self.steps[i].append(len(self.requests))
                assert len(self.steps[i]) <= self.output[i], f"request {i} goes on after its last token"
        self.requests.append(len(tokens))


@dataclass
class Tokens:
    """Of every request, when each of its tokens was there and when its client saw it."""

    made: dict[int, list[float]] = field(default_factory=dict)
    seen: dict[int, list[float]] = field(default_factory=dict)


def watched(run: Scenario, plain: bool) -> Tokens:
    fleet = set_up(run)
    setup = fleet.pools[0]
    work = build_workload(run.workload, run.seed, run.base_dir)
    desk = Desk(work, [setup.limits], host=fleet.host)
    watches = [TokenWatch(work.prompt.tolist(), work.output.tolist()) for _ in range(setup.pool.replicas)]
    engines = [
        Engine(
            setup.limits,
            setup.cost,
            desk.names,
            wake=fleet.host.wake,
            taking_in=fleet.host.taking_in,
            rested=RESTED,
            reactive=bool(desk.followers),
            plain=plain,
            observer=watch,
        )
        for watch in watches
    ]
    run_fleet(engines, desk, serving_router(run.fleet.router, len(engines), run.seed))
    tokens = Tokens()
    for engine, watch in zip(engines, watches, strict=True):
        ends = engine.log.ends
        assert len(ends) == len(watch.requests)
        for i, steps in watch.steps.items():
            tokens.made[i] = [ends[step] for step in steps]
            tokens.seen[i] = [
                ends[step] + fleet.host.output + watch.requests[step] * fleet.host.output_request for step in steps
            ]
    return tokens


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_token_gaps_are_those_of_every_single_token(plain: bool, asynchronous: bool) -> None:
    engine = {**SQUEEZED["engine"], "enable_prefix_caching": False, "async_scheduling": asynchronous}
    run = scenario(**{**SQUEEZED, "engine": engine})
    result, tokens = simulate(run, plain=plain), watched(run, plain)
    assert result.summary.preemptions > 0
    for row in finished(result):
        times = tokens.seen[row["id"]]
        assert len(times) == row["output"]
        assert times[0] == pytest.approx(row["first_token"], abs=1e-12)
        assert times[-1] == pytest.approx(row["finish"], abs=1e-12)
    gaps = sorted(float(gap) for times in tokens.made.values() for gap in np.diff(times))
    itl = result.summary.itl
    assert itl.count == len(gaps) == sum(row["output"] - 1 for row in finished(result))
    assert itl.mean == pytest.approx(sum(gaps) / len(gaps))
    assert itl.max == pytest.approx(gaps[-1])
    for percent in (50, 90, 95, 99):
        assert itl.levels[f"p{percent}"] == pytest.approx(gaps[math.ceil(percent / 100 * len(gaps)) - 1])


def test_token_gaps_leave_out_requests_that_did_not_finish() -> None:
    """As the other latencies do: an aborted request's tokens were not what anybody got."""
    run = scenario(workload=workload(output={"kind": "uniform", "min": 50, "max": 400}, abort_after=1.5))
    result = simulate(run)
    assert 0 < result.summary.outcomes.aborted < 40
    assert result.summary.itl.count == sum(row["output"] - 1 for row in finished(result))


# -- tables -------------------------------------------------------------------------------------------------------


def test_tables_have_the_promised_columns() -> None:
    result = squeezed()
    assert {name: column.dtype.kind for name, column in result.requests.items()} == REQUEST_COLUMNS
    assert {name: column.dtype.kind for name, column in result.steps.items()} == STEP_COLUMNS
    assert {len(column) for column in result.requests.values()} == {90}
    assert {len(column) for column in result.steps.values()} == {result.summary.steps}
    assert result.requests["id"].tolist() == list(range(90))
    assert all(isinstance(label, str) for label in result.requests["label"])


def test_steps_of_an_engine_follow_each_other() -> None:
    for result in (squeezed(), simulate(example("closed-loop")), simulate(scenario())):
        for replica in range(result.summary.replicas):
            mine = result.steps["replica"] == replica
            start, end = result.steps["start"][mine], result.steps["end"][mine]
            assert (end > start).all()
            assert (start[1:] >= end[:-1]).all()
            assert result.steps["step"][mine].tolist() == list(range(len(end)))
        assert (result.steps["free_blocks"] >= 0).all()
        busy = result.steps["n_decode"] + result.steps["prefill_requests"]
        assert (busy > 0).all() and (busy <= result.steps["running"]).all()
        assert (result.steps["kv_decode"] >= result.steps["n_decode"]).all()


def test_the_first_step_of_a_burst_starts_when_its_first_request_is_seen() -> None:
    """Dirty memory of the right size first: a start that nobody wrote must not look like a zero."""
    run = scenario(workload=workload())
    result, host = simulate(run), set_up(run).host
    steps = result.summary.steps
    seen = host.submit + host.ingest + 100 * host.ingest_token + host.wake
    for _ in range(20):
        dirty = [np.full(steps, 1e9) for _ in range(4)]
        del dirty
        assert result.logs[0].start()[0] == pytest.approx(seen)
    assert result.summary.busy == pytest.approx((result.logs[0].end[-1] - seen) / result.summary.duration_s)
    assert result.summary.busy > 0.98


def test_clients_see_tokens_in_order() -> None:
    """254 short prompts wait behind a long one and run in one step; all but four of them end with it.

    Handing out so many tokens takes longer than the next step, whose tokens nobody may see before, and whose
    clients do not ask again before they have seen them.
    """
    long = workload(name="long", requests=1, prompt=39_000, output=1)
    once = workload(name="once", requests=250, prompt=4, output=1)
    twice = workload(name="twice", requests=8, prompt=4, output=2, session={"turns": 2, "think": 0.0})
    result = simulate(scenario(model="qwen3-0.6b", workload=[long, once, twice]))
    assert result.steps["prefill_requests"].max() > 200
    served = result.requests
    assert (served["finish"] >= served["first_token"]).all(), f"tpot of {np.nanmin(served['tpot'])} s"
    first, second = (served["label"] == "twice").nonzero()[0].reshape(-1, 2).T
    assert (served["arrival"][second] >= served["finish"][first]).all(), "asked again before the answer was there"


def test_every_token_is_computed_once_without_cache_and_preemption() -> None:
    result = simulate(scenario(engine={"enable_prefix_caching": False}))
    assert result.summary.preemptions == 0
    computed = int(result.steps["n_decode"].sum() + result.steps["prefill_tokens"].sum())
    assert computed == sum(row["prompt"] + row["output"] - 1 for row in finished(result))


def test_replicas_without_requests_are_part_of_the_fleet() -> None:
    result = simulate(scenario(fleet={"gpu": "h100", "replicas": 5}, workload=workload(requests=2)))
    assert result.requests["replica"].tolist() == [0, 1]
    seconds = step_seconds(result).sum()
    assert result.summary.busy == pytest.approx(seconds / 5 / result.summary.duration_s)
    assert result.summary.busy == pytest.approx(2 / 5, rel=0.03)
    assert result.summary.gpus == 5


# -- nobody is lost -----------------------------------------------------------------------------------------------


def test_unservable_requests_are_turned_away_and_the_rest_is_served() -> None:
    result = simulate(
        scenario(
            engine={"max_model_len": 2000, "num_gpu_blocks": 101},
            workload=[
                workload(name="fine", requests=10),
                workload(name="long", requests=3, prompt=2000),
                workload(name="large", requests=2, prompt=1500, output=400),
            ],
        )
    )
    assert result.summary.requests == 15
    assert result.summary.outcomes == Outcomes(finished=10, rejected=5, aborted=0)
    for row in rows(result):
        if row["label"] == "fine":
            assert row["status"] == "finished" and row["reason"] == ""
            continue
        assert row["status"] == "rejected"
        assert ("max_model_len 2000" if row["label"] == "long" else "119 KV blocks") in row["reason"]
        for moment in ("scheduled", "first_token", "finish", "queue", "ttft", "tpot", "e2e"):
            assert math.isnan(row[moment]), moment
        assert row["arrival"] == 0.0


@pytest.mark.parametrize("router", ["round-robin", "least-outstanding", "sticky"])
@pytest.mark.parametrize("session", [None, {"turns": 2}])
def test_a_rejected_request_has_no_replica(router: str, session: dict[str, int] | None) -> None:
    asked = workload(requests=6, prompt=5000, **({"session": session} if session else {}))
    fleet = {"gpu": "h100", "replicas": 2, "router": router}
    result = simulate(scenario(fleet=fleet, engine={"max_model_len": 2000}, workload=asked))
    assert result.summary.outcomes.rejected == 6
    assert result.requests["replica"].tolist() == [-1] * 6
    assert result.summary.steps == 0 and result.summary.duration_s == 0


def test_turns_after_a_rejected_one_still_come() -> None:
    """A user whose request is refused goes on: the next turn is submitted after the pause, and judged by itself."""
    asked = workload(requests=4, prompt={"kind": "fixed", "tokens": 600}, session={"turns": 4, "think": 2.0})
    result = simulate(scenario(engine={"max_model_len": 1300}, workload=asked))
    assert result.requests["status"].tolist() == ["finished", "finished", "rejected", "rejected"]
    assert result.requests["arrival"][3] == pytest.approx(result.requests["arrival"][2] + 2.0)


def test_outputs_stop_at_the_models_length() -> None:
    result = simulate(scenario(engine={"max_model_len": 150}, workload=workload(output=500)))
    assert set(result.requests["output"].tolist()) == {50}
    assert result.summary.outcomes.finished == 40


def test_impatient_clients_leave_when_they_said() -> None:
    run = scenario(
        workload=workload(requests=80, output={"kind": "uniform", "min": 10, "max": 900}, abort_after=3.0),
        engine={"max_num_seqs": 16},
    )
    result = simulate(run)
    counts = result.summary.outcomes
    assert counts.aborted > 5 and counts.finished > 5 and counts.aborted + counts.finished == 80
    longest = float(step_seconds(result).max())
    for row in rows(result):
        stayed = row["finish"] - row["arrival"]
        if row["status"] == "aborted":
            assert 3.0 <= stayed <= 3.0 + 2 * longest + 1e-9
            assert row["reason"] and math.isnan(row["e2e"]) and math.isnan(row["tpot"])
        else:
            assert stayed <= 3.0 + 2 * longest


@pytest.mark.parametrize("plain", [False, True])
def test_who_never_ran_found_nothing_in_the_cache(plain: bool) -> None:
    """A prefix that was looked up for a request which then did not fit, and gave up waiting, was of no use to it."""
    run = scenario(
        engine={"num_gpu_blocks": 30, "policy": "fcfs"},
        workload=workload(requests=8, prompt=200, output=150, prefix=96, abort_after=0.6),
    )
    result = simulate(run, plain=plain)
    never = np.isnan(result.requests["scheduled"])
    assert 0 < never.sum() < 8
    assert result.requests["cached"][never].tolist() == [0] * int(never.sum())


def test_a_request_given_up_after_a_preemption_leaves_no_gap() -> None:
    """Between its last token before the preemption and nothing after it there is no gap to count."""
    fast, plain = both_ways("awkward:48")
    assert fast.summary.preemptions > 0 and fast.summary.outcomes.aborted > 0
    assert ((fast.requests["status"] == "aborted") & (fast.requests["preemptions"] > 0)).any()
    assert fast.summary.itl.count
    assert fast.summary.itl.to_dict() == pytest.approx(plain.summary.itl.to_dict(), rel=1e-9)


# -- who goes where, and when -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["poisson", "closed", "sessions", "preempting"])
def test_least_outstanding_means_least_outstanding(name: str) -> None:
    """Replayed from the request table: at each arrival, count who is there and take the emptiest replica."""
    arrivals = {"kind": "closed", "users": 30} if name == "closed" else {"kind": "poisson", "rate": 60}
    squeezed = name == "preempting"
    asked: dict[str, Any] = {
        "arrivals": arrivals,
        "requests": 200,
        "prompt": {"kind": "uniform", "min": 20, "max": 300 if squeezed else 900},
        "output": {"kind": "uniform", "min": 1, "max": 400 if squeezed else 120},
    }
    if name == "sessions":
        asked["session"] = {"turns": {"kind": "uniform", "min": 1, "max": 5}, "think": 0.3}
    engine = {"num_gpu_blocks": 120} if squeezed else {}
    fleet = {"gpu": "h100", "replicas": 4, "router": "least-outstanding"}
    result = simulate(scenario(fleet=fleet, engine=engine, workload=asked, seed=2))
    assert (result.summary.preemptions > 100) is squeezed
    served = rows(result)
    assert len({row["replica"] for row in served}) == 4
    for row in sorted(served, key=lambda row: (row["arrival"], row["id"])):
        now = (row["arrival"], row["id"])
        load = [0] * 4
        for other in served:
            if (other["arrival"], other["id"]) < now and other["finish"] > row["arrival"]:
                load[other["replica"]] += 1
        assert load[row["replica"]] == min(load), f"request {row['id']} at {row['arrival']}: {load}"


class PerRequest:
    """A second of step time for every request in it: what leaves the batch makes the rest faster."""

    def decode_line(self, n: int, kv: int, longest: int) -> tuple[float, float, int]:
        return float(n), 0.0, 1 << 60

    def decode_host(self, n: int) -> tuple[float, float, float]:
        return 0.0, 0.0, 0.0

    def mixed(self, n: int, kv: int, longest: int, chunks: list[tuple[int, int]]) -> StepTime:
        return StepTime(float(n + len(chunks)), 0.0, 0.0, 0.0)


@pytest.mark.parametrize("blocks", [1000, 8, 5])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_an_engine_ends_nothing_before_its_own_bound(blocks: int, asynchronous: bool) -> None:
    """A fleet leaves an engine alone until then; an earlier end would reach the router too late."""
    engine = Engine(Limits(blocks=blocks, max_model_len=200, async_scheduling=asynchronous), PerRequest())
    for i, output in enumerate((40, 47, 60)):
        engine.submit(Request(i, 0.0, 16, output), 0.0)
    ended = 0
    while engine.outstanding:
        bound = engine.next_end_bound()
        engine.advance(bound if bound > engine.clock else math.nextafter(engine.clock, math.inf))
        for r in engine.finished:
            assert engine.end_of(r) >= bound, f"request {r.index} ended {bound - engine.end_of(r)} s too early"
        ended += len(engine.finished)
        engine.finished.clear()
    assert ended == 3


def test_round_robin_and_sticky_take_turns() -> None:
    fleet = {"gpu": "h100", "replicas": 3}
    result = simulate(scenario(fleet={**fleet, "router": "round-robin"}))
    assert result.requests["replica"].tolist() == [i % 3 for i in range(60)]
    asked = workload(arrivals={"kind": "poisson", "rate": 5}, session={"turns": 4, "think": 0.1})
    result = simulate(scenario(fleet={**fleet, "router": "sticky"}, workload=asked))
    assert result.requests["replica"].tolist() == [i // 4 % 3 for i in range(40)]


def test_turns_of_a_session_follow_and_find_their_past() -> None:
    asked = workload(arrivals={"kind": "poisson", "rate": 2}, session={"turns": 5, "think": 1.5}, prompt=100, output=60)
    result = simulate(scenario(workload=asked))
    served = rows(result)
    for before, row in pairwise(served):
        if row["id"] % 5 == 0:
            assert row["prompt"] == 100 and row["cached"] == 0
            continue
        assert row["arrival"] == pytest.approx(before["finish"] + 1.5, abs=1e-12)
        assert row["prompt"] == before["prompt"] + before["output"] + 100
        # the last token of an answer is sampled but never computed, so it is not in the cache
        assert row["cached"] == (before["prompt"] + before["output"] - 1) // 16 * 16


def test_a_closed_loop_never_has_more_requests_than_users() -> None:
    result = simulate(example("closed-loop"))
    events = [(row["arrival"], 1) for row in rows(result)] + [(row["finish"], -1) for row in rows(result)]
    there = most = 0
    for _, change in sorted(events):
        there += change
        most = max(most, there)
    assert 12 < most <= 24


def test_lower_priority_values_wait_less() -> None:
    asked = workload(requests=200, output=60, priority={"kind": "choice", "values": [0, 5]})
    engine = {"max_num_seqs": 8}
    work = build_workload(scenario(workload=asked).workload, 3, Path())
    urgent = work.priority == 0
    served = simulate(scenario(workload=asked, engine={**engine, "policy": "priority"})).requests
    queue = served["queue"]
    chosen = served["scheduled"] > served["taken"].max() + 0.01  # from among all 200; others came when few were there
    assert chosen.sum() > 180
    assert queue[urgent & chosen].max() <= queue[~urgent & chosen].min()
    assert queue[urgent].mean() < 0.5 * queue[~urgent].mean()
    queue = simulate(scenario(workload=asked, engine=engine)).requests["queue"]
    assert abs(queue[urgent].mean() - queue[~urgent].mean()) < 0.5 * queue.mean()


# -- speculation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["engine", "workload"])
def test_accepted_drafts_shorten_the_run(place: str) -> None:
    """One token a step when nothing is accepted, four when all three drafts are; wherever acceptance is said."""

    def steps(accepted: list[int]) -> int:
        engine: dict[str, Any] = {"num_speculative_tokens": 3, "async_scheduling": False}
        asked = workload(requests=1, output=41)
        (engine if place == "engine" else asked)["acceptance" if place == "engine" else "accept"] = accepted
        result = simulate(scenario(engine=engine, workload=asked))
        assert result.summary.outcomes.finished == 1
        return int(result.summary.steps)

    assert steps([0]) == 41
    assert steps([3]) == 11
    assert steps([1]) == 21


# -- the fast path and the plain one ------------------------------------------------------------------------------


def awkward(seed: int) -> dict[str, Any]:
    """A scenario that mixes features which seldom meet, with too few blocks more often than not."""
    dice = random.Random(seed)
    arrivals = dice.choice(
        [
            {"kind": "poisson", "rate": dice.choice([2, 20, 100])},
            {"kind": "burst"},
            {"kind": "closed", "users": dice.choice([1, 5, 20]), "think": dice.choice([0, 0.5]), "ramp": 1},
            {"kind": "gamma", "rate": 20, "cv": 3},
        ]
    )
    asked: dict[str, Any] = {
        "arrivals": arrivals,
        "requests": dice.choice([5, 40, 80]),
        "prompt": dice.choice([{"kind": "uniform", "min": 1, "max": 300}, 64]),
        "output": dice.choice(
            [{"kind": "uniform", "min": 1, "max": 60}, 1, {"kind": "uniform", "min": 50, "max": 400}]
        ),
    }
    sharing = dice.random()
    if sharing < 0.3:
        asked["session"] = {"turns": {"kind": "uniform", "min": 1, "max": 5}, "think": dice.choice([0, 0.2])}
    elif sharing < 0.6:
        asked["prefix"] = {"tokens": dice.choice([16, 50, 200]), "groups": dice.choice([1, 3])}
    if dice.random() < 0.3:
        asked["abort_after"] = dice.choice([0.05, 0.5, {"kind": "exponential", "mean": 1.0}])
    engine: dict[str, Any] = {
        "max_num_seqs": dice.choice([2, 8, 64, 256]),
        "max_num_batched_tokens": dice.choice([256, 512, 2048]),
        "block_size": dice.choice([8, 16]),
        "async_scheduling": dice.random() < 0.6,
        "enable_prefix_caching": dice.random() < 0.7,
        "watermark": dice.choice([0, 0, 0.05]),
        "long_prefill_token_threshold": dice.choice([0, 0, 32]),
    }
    if dice.random() < 0.6:
        engine["num_gpu_blocks"] = dice.choice([80, 150, 300, 1000])
    if dice.random() < 0.3:
        engine["policy"], asked["priority"] = "priority", {"kind": "choice", "values": [0, 1, 2]}
    if dice.random() < 0.2:
        engine["num_speculative_tokens"], asked["accept"] = 3, [2, 0, 3, 1]
    routers = ["round-robin", "random", "least-outstanding", "power-of-two", "sticky", "prefix-aware"]
    fleet = {"gpu": "h100", "replicas": dice.choice([1, 1, 3]), "router": dice.choice(routers)}
    model = dice.choice(["llama-3.1-8b", "qwen3-0.6b", "gemma-3-4b", "mistral-7b-v0.1"])
    return {"model": model, "fleet": fleet, "engine": engine, "workload": asked, "seed": seed}


SPECIAL = {
    "long-tail": {
        "engine": {"max_num_seqs": 512},
        "workload": workload(
            requests=24, prompt=400, output={"kind": "lognormal", "median": 1500, "p95": 12_000, "max": 32_768}
        ),
    },
    "speculation": {
        "engine": {"num_speculative_tokens": 3},
        "workload": workload(accept={"probabilities": [0.8, 0.5, 0.3]}),
    },
    "preemption": {"engine": {"num_gpu_blocks": 200}, "workload": workload(output=300)},
    "priority": {
        "engine": {"policy": "priority", "num_gpu_blocks": 200},
        "workload": workload(output=200, priority={"kind": "choice", "values": [0, 1, 2]}),
    },
    "aborts": {"workload": workload(output=300, abort_after={"kind": "exponential", "mean": 1.0})},
}


def both_ways(name: str) -> tuple[Result, Result]:
    kind, _, which = name.partition(":")
    if kind == "example":
        run = example(which)
    elif kind == "awkward":
        run = scenario_from_dict(awkward(int(which)))
    else:
        run = scenario(**SPECIAL[which])
    return simulate(run), simulate(run, plain=True)


CASES = [
    *(f"example:{name}" for name in CUT),
    *(f"special:{name}" for name in SPECIAL),
    *(f"awkward:{seed}" for seed in range(40)),
]


@pytest.mark.parametrize("name", CASES)
def test_short_cuts_change_nothing(name: str) -> None:
    fast, plain = both_ways(name)
    assert_same(fast.requests, plain.requests)
    counts = fast.summary.outcomes
    assert counts.finished + counts.rejected + counts.aborted == fast.summary.requests == len(fast.requests["id"])
    for before, after in (("arrival", "scheduled"), ("scheduled", "first_token"), ("first_token", "finish")):
        assert not (fast.requests[after] < fast.requests[before]).any(), f"{after} before {before}"
    assert not np.isnan(fast.requests["e2e"][fast.requests["status"] == "finished"]).any()
    steps = {key: column for key, column in fast.steps.items() if key not in ("free_blocks", "running")}
    assert_same(steps, {key: plain.steps[key] for key in steps})
    one, other = fast.summary, plain.summary
    assert (one.busy, one.mfu, one.mbu) == pytest.approx((other.busy, other.mfu, other.mbu), rel=1e-9)
    for key, value in other.itl.levels.items():
        assert one.itl.levels[key] == (None if value is None else pytest.approx(value, rel=1e-9))


@pytest.mark.parametrize("name", [case for case in CASES if "awkward" not in case])
def test_short_cuts_show_the_same_queues_and_blocks(name: str) -> None:
    """Free blocks are drawn as a line within a stretch, so there they may be off by what one step takes."""
    fast, plain = both_ways(name)
    assert (np.abs(fast.steps["free_blocks"] - plain.steps["free_blocks"]) <= fast.steps["n_decode"]).all()
    off = np.flatnonzero(fast.steps["running"] != plain.steps["running"])
    assert not len(off), f"running is off in {len(off)} of {fast.summary.steps} steps, first in step {off[0]}"


def assert_same(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for key, column in ours.items():
        if column.dtype.kind == "f":
            np.testing.assert_allclose(column, theirs[key], rtol=0, atol=1e-9, err_msg=key)
        else:
            np.testing.assert_array_equal(column, theirs[key], err_msg=key)


def test_a_whole_rollout_burst_is_a_matter_of_a_moment() -> None:
    """512 requests at once, answers of up to 32,768 tokens. The bound is loose: the benchmark is stricter."""
    run = load_scenario(EXAMPLES / "rollout-burst.yaml")
    clock = os.times()
    result = simulate(run)
    spent = os.times().user - clock.user
    assert result.summary.outcomes.finished == 512
    assert result.requests["output"].max() > 20_000
    assert spent < 3


# -- progress and determinism -------------------------------------------------------------------------------------


@pytest.mark.parametrize("router", ["round-robin", "least-outstanding"])
def test_progress_is_reported_and_rises(router: str) -> None:
    calls: list[tuple[int, int]] = []
    asked = workload(requests=6500, arrivals={"kind": "poisson", "rate": 200}, output=3)
    fleet = {"gpu": "h100", "replicas": 2, "router": router}
    simulate(scenario(fleet=fleet, workload=asked), progress=lambda done, total: calls.append((done, total)))
    assert len(calls) >= 3
    assert calls == sorted(calls) and all(0 < done <= total == 6500 for done, total in calls)


def test_progress_is_reported_for_few_but_long_requests() -> None:
    """A run's time goes with its tokens: a few hundred long requests can take minutes, too."""
    calls: list[int] = []
    asked = workload(requests=150, output=600, accept=[1, 0, 2])
    run = scenario(engine={"num_speculative_tokens": 3, "max_num_seqs": 8}, workload=asked)
    simulate(run, progress=lambda done, total: calls.append(done))
    assert calls


WRITE = """
import sys
from pathlib import Path
from steelyard import load_scenario, simulate
from steelyard.report import write_result
examples, out, seed = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
for name, requests in (("quickstart", 200), ("closed-loop", 150), ("rollout-burst", 24)):
    sets = [f"workload.requests={requests}", f"seed={seed}"]
    result = simulate(load_scenario(examples / f"{name}.yaml", sets))
    write_result(result, out / name, trace=True)
"""


def written(out: Path, seed: int, hash_seed: str, perturb: str) -> dict[str, bytes]:
    """Files of three runs in a process of their own, with its own hash seed and its own dirt in fresh memory."""
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "MALLOC_PERTURB_": perturb}
    subprocess.run([sys.executable, "-c", WRITE, EXAMPLES, out, str(seed)], env=env, check=True, timeout=120)
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first = written(tmp_path / "first", 1, "1", "85")
    again = written(tmp_path / "again", 1, "4242", "170")
    other = written(tmp_path / "other", 2, "1", "85")
    assert len(first) == 18, sorted(first)
    assert first.keys() == again.keys()
    assert [name for name in first if first[name] != again[name]] == []
    tables = [name for name in first if name.endswith(("requests.parquet", "steps.parquet", "summary.json"))]
    assert all(first[name] != other[name] for name in tables)


def test_simulating_twice_in_one_process_changes_nothing() -> None:
    run = scenario(**SQUEEZED)
    first, second = simulate(run), simulate(run)
    assert first.summary == second.summary
    assert_same(first.requests, second.requests)
    assert_same(first.steps, second.steps)
