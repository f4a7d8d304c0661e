"""The GPU's power limit: costs from single operators, checked against steps of an engine that nothing was fitted to."""

from __future__ import annotations

import pickle
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import pytest

from steelyard.cost import CompiledCost, MeasuredSource, Roofline, compile_cost, shipped_bundle
from steelyard.cost.measured.attention import MeasuredAttention
from steelyard.cost.measured.tiles import HeadShape
from steelyard.cost.power import COSTS, StepPower
from steelyard.files.jsontext import json_lines
from steelyard.hardware import find_gpu
from steelyard.model import load_model
from steelyard.scenario import EngineSpec
from support.paths import DATA
from tools.power_points import costs_of, read_points

FOLDER = DATA / "power-h200"
ENGINE: dict[str, Any] = {"max_num_seqs": 512, "max_num_batched_tokens": 8192, "max_model_len": 40960}


def compiled(model: str = "llama-3.1-8b", gpu: str = "h200", tp: int = 1, **engine: Any) -> CompiledCost:
    found, bundle = find_gpu(gpu), shipped_bundle(gpu)
    sources = () if bundle is None else (MeasuredSource(found, bundle),)
    return compile_cost(load_model(model), tp, EngineSpec(**ENGINE | engine), *sources, Roofline(found))


def power_of(cost: CompiledCost) -> StepPower:
    assert cost.power is not None
    return cost.power


def decodes() -> list[dict[str, Any]]:
    """Even batches of Llama-3.1-8B in vLLM 0.26."""
    return [row for _, row in json_lines(FOLDER / "decodes.jsonl", None)]


def test_costs_are_those_of_the_measured_operators() -> None:
    found = costs_of(read_points(FOLDER / "operators.jsonl"))
    assert asdict(COSTS["h200"]) == pytest.approx(asdict(found), rel=0.005)


def test_steps_of_an_engine_are_as_long_as_their_energy_says() -> None:
    """With attention of one length, as they have it. Those that the limit slows would be 3 % and more too short."""
    cost, bundle = compiled(), shipped_bundle("h200")
    assert bundle is not None
    attention = MeasuredAttention(bundle.families["attention"], find_gpu("h200"))
    errors, without = [], []
    for row in decodes():
        n, kv = row["decodes"], row["cached"]
        seconds = 32 * attention.batch(HeadShape(32, 8, 128), [1] * n, [kv // n + 1] * n)
        cost.decode_line(n, kv, kv // n)
        fixed = cost._fixed[n]
        longer = power_of(cost).slowed(n, n, (n, kv), (), fixed, seconds)
        errors.append(1e3 * (fixed + seconds + longer) / row["ms"] - 1)
        if row["mhz"] < 1850:
            without.append(1e3 * (fixed + seconds) / row["ms"] - 1)
        elif row["mhz"] == 1980:
            assert longer == 0.0
    assert len(errors) > 25 and max(map(abs, errors)) < 0.02
    assert len(without) > 15 and sum(without) / len(without) < -0.04
    assert abs(sum(errors) / len(errors)) < 0.005


def test_a_step_is_slowed_the_more_the_more_it_reads() -> None:
    power = power_of(compiled())
    times = [power.slowed(256, 256, (256, kv), (), 6.5e-3, 32 * 4096 * kv / 3.9e12) for kv in range(0, 500_000, 5_000)]
    assert times[0] >= 0 and times[-1] > 1e-3
    assert all(after >= before for before, after in pairwise(times))
    assert power.slowed(8, 8, (8, 4_000), (), 4.9e-3, 0.3e-3) == 0.0


def test_more_watts_slow_less() -> None:
    power = power_of(compiled())
    step = 256, 256, (256, 200_000), (), 6.5e-3, 6.5e-3
    more, most = (replace(power, watts=watts).slowed(*step) for watts in (power.watts + 50, 2 * power.watts))
    assert 0.0 == most < more < power.slowed(*step)


def test_a_gpu_that_waits_for_its_host_is_not_slowed() -> None:
    """Half of the time is enough here, and a host that is faster than the GPU changes nothing."""
    power = power_of(compiled())
    step = 256, 256, (256, 200_000), (), 6.5e-3, 6.5e-3
    assert power.slowed(*step, host=26e-3) == 0.0
    assert 0.0 < power.slowed(*step, host=14e-3) < power.slowed(*step) == power.slowed(*step, host=12e-3)


@pytest.mark.parametrize("n", [64, 100, 128, 256, 384, 512])
def test_lines_of_decodes_follow_the_equation(n: int) -> None:
    """Within 0.3 %, and without a jump where one line ends."""
    cost = compiled()
    power, kv = power_of(cost), n * 16
    before = 0.0
    while kv < n * 20_000:
        a, b, end = cost.decode_line(n, kv, kv // n)
        attention_a, attention_b, _ = cost._decode_attention(n, kv, kv // n)
        fixed, attention = cost._fixed[n], attention_a + attention_b * kv
        rows = cost.graphs.padded(n, decode_only=True) or n
        exact = fixed + attention + power.slowed(rows, n, (n, kv), (), fixed, attention)
        assert a + b * kv == pytest.approx(exact, rel=3e-3)
        assert not before or a + b * kv == pytest.approx(before, rel=1e-4)
        before, kv = a + b * (end + 1), end + 1


def test_prompts_are_slowed_beside_the_sum_of_their_operators() -> None:
    """Large ones were timed at the limit, so little is added. It is never negative, and part of the step's time."""
    cost = compiled()
    for tokens in (16, 64, 256, 512, 1024, 8192):
        for before in (0, 4096):
            step = cost.mixed(0, 0, 0, [(tokens, before)])
            assert 0.0 <= step.slowed < 0.15 * step.gpu
    assert cost.mixed(0, 0, 0, [(16, 0)]).slowed == 0.0
    few, many = (cost.mixed(0, 0, 0, [(tokens, 0)]) for tokens in (512, 8192))
    assert few.slowed > 0.03 * few.gpu and many.slowed < 0.01 * many.gpu


@pytest.mark.parametrize(
    "other",
    [{"model": "qwen3-30b-a3b"}, {"gpu": "h100"}, {"tp": 2}, {"kv_cache_dtype": "fp8"}],
    ids=["experts", "unmeasured", "two", "8-bit"],
)
def test_what_was_not_measured_has_no_limit(other: dict[str, Any]) -> None:
    assert compiled(**other).power is None


def test_a_copy_in_another_process_knows_the_limit() -> None:
    cost = compiled()
    again: CompiledCost = pickle.loads(pickle.dumps(cost))
    cost.decode_line(256, 200_000, 900)
    again = pickle.loads(pickle.dumps(cost))
    assert again.decode_line(256, 200_000, 900) == cost.decode_line(256, 200_000, 900)
