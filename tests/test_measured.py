"""The measured source: what the shipped profile says, and how well it foretells what it was not told."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from steelyard import scenario_from_dict, simulate
from steelyard.cost import Bundle, FirstOf, Measured, Roofline, compile_cost, shipped_bundle
from steelyard.cost.source import EXTRAPOLATED, INTERPOLATED, MEASURED, PROVENANCES
from steelyard.hardware import find_gpu
from steelyard.model import AttentionOperator, Gemm, GroupedGemm, load_model, operators
from steelyard.scenario import EngineSpec

CAPTURES = Path(__file__).resolve().parents[2] / "shared" / "data" / "h200-vllm-0.26"


def bundle() -> Bundle:
    found = shipped_bundle("h200")
    assert found is not None
    return found


def source(profile: Bundle | None = None) -> FirstOf:
    gpu = find_gpu("h200")
    return FirstOf((Measured(gpu, profile or bundle()), Roofline(gpu)))


def attention_of(model: str) -> AttentionOperator:
    spec = load_model(model)
    return next(op for op in operators(spec, spec.layers[0]) if isinstance(op, AttentionOperator))


def test_measured_points_come_back_as_they_were_measured() -> None:
    rows = [row for row in bundle().families["gemm"] if (row["n"], row["k"]) == (6144, 4096)]
    at = np.array([float(row["m"]) for row in rows])
    found = source().rows(Gemm("qkv_proj", 4096, 6144, 2.0, "bf16"), at)
    assert found.seconds == pytest.approx([row["us"] * 1e-6 for row in rows])
    assert (found.provenance == MEASURED).all()


def test_between_and_beyond_the_points_is_said_so() -> None:
    gemm = Gemm("qkv_proj", 4096, 6144, 2.0, "bf16")
    found = source().rows(gemm, np.array([0.0, 64, 65, 8192, 10_000]))
    assert found.seconds[0] == 0
    assert found.provenance[1:].tolist() == [MEASURED, INTERPOLATED, MEASURED, EXTRAPOLATED]
    assert found.seconds[1] <= found.seconds[2] and found.seconds[4] > found.seconds[3]
    outside = source().rows(Gemm("wide", 4096, 400_000, 2.0, "bf16"), np.array([64.0]))
    assert outside.provenance[0] == EXTRAPOLATED


def test_matrices_left_out_of_the_profile_are_foretold() -> None:
    """Each shape of a real model in turn is taken out and predicted from the rest."""
    whole = bundle()
    by_shape = defaultdict(list)
    for row in whole.families["gemm"]:
        by_shape[row["n"], row["k"]].append(row)
    errors: list[float] = []
    for shape in [(6144, 4096), (4096, 14336), (28672, 4096), (5120, 2048), (4608, 3584), (24576, 4096)]:
        if shape not in by_shape:
            continue
        rest = [row for row in whole.families["gemm"] if (row["n"], row["k"]) != shape]
        without = source(replace(whole, families={**whole.families, "gemm": rest}))
        rows = np.array([float(row["m"]) for row in by_shape[shape]])
        found = without.rows(Gemm("left out", shape[1], shape[0], 2.0, "bf16"), rows)
        assert (found.provenance == INTERPOLATED).all()
        truth = np.array([row["us"] * 1e-6 for row in by_shape[shape]])
        errors.extend(np.abs(found.seconds / truth - 1).tolist())
    assert len(errors) > 60
    assert np.median(errors) < 0.08
    assert np.percentile(errors, 95) < 0.30


def test_decode_attention_rises_with_cached_tokens_and_between_batch_sizes() -> None:
    operator = attention_of("llama-3.1-8b")
    at = np.linspace(1, 2_000_000, 500)
    for n in (1, 2, 3, 50, 128, 200, 256, 400):
        seconds = source().decode_attention(operator, 2, n).at(at)
        assert (np.diff(seconds) >= 0).all() and seconds[0] > 0
    low, middle, high = (
        float(source().decode_attention(operator, 2, n).at(np.array([60_000.0]))[0]) for n in (32, 48, 64)
    )
    assert low <= middle <= high or high <= middle <= low
    assert source().decode_attention(operator, 2, 400).provenance == EXTRAPOLATED


def test_half_the_bytes_take_less_time() -> None:
    operator = attention_of("llama-3.1-8b")
    at = np.array([500_000.0])
    full, half = (float(source().decode_attention(operator, size, 64).at(at)[0]) for size in (2, 1))
    assert 0.4 < half / full < 0.7


def test_longer_prompts_take_longer_and_many_share_the_gpu() -> None:
    prefill = source().prefill_attention(attention_of("llama-3.1-8b"), 2)
    times = [prefill.seconds([(n, 0)]) for n in (256, 512, 1024, 2048, 4096, 8192)]
    assert times == sorted(times)
    assert prefill.seconds([(512, 8192)]) > prefill.seconds([(512, 0)])
    together, alone = prefill.seconds([(256, 0)] * 8), prefill.seconds([(256, 0)])
    assert alone < together < 8 * alone


def test_experts_count_once() -> None:
    model = load_model("qwen3-30b-a3b")
    grouped = [op for op in operators(model, model.layers[0]) if isinstance(op, GroupedGemm)]
    rows = np.array([1.0, 16, 128, 2048])
    up, down = (source().rows(op, rows) for op in grouped)
    assert (down.seconds == 0).all() and (np.diff(up.seconds) > 0).all()


def test_what_the_profile_lacks_is_analytic() -> None:
    gemm = Gemm("fp8", 4096, 4096, 1.0, "fp8")
    rows = np.array([1.0, 64])
    found, plain = source().rows(gemm, rows), Roofline(find_gpu("h200")).rows(gemm, rows)
    assert (found.seconds == plain.seconds).all() and (found.provenance == plain.provenance).all()


@pytest.mark.parametrize(
    ("gpu", "wanted", "analytic"), [("h200", "auto", False), ("h200", "analytic", True), ("h100", "auto", True)]
)
def test_a_run_says_where_its_times_come_from(gpu: str, wanted: str, analytic: bool) -> None:
    asked = {"arrivals": {"kind": "poisson", "rate": 4}, "requests": 40, "prompt": 300, "output": 30}
    run = {"model": "llama-3.1-8b", "fleet": {"gpu": gpu}, "cost": {"source": wanted}, "workload": asked}
    shares = simulate(scenario_from_dict(run)).summary["provenance"]
    assert list(shares) == list(PROVENANCES) and sum(shares.values()) == pytest.approx(1)
    assert (shares["analytic"] == pytest.approx(1)) == analytic
    if not analytic:
        assert shares["measured"] + shares["interpolated"] > 0.95


def test_real_decode_steps_are_foretold_from_operators_alone() -> None:
    """Steps of a real vLLM on an H200: even batches, medians over many steps of one batch size."""
    if not CAPTURES.exists():
        pytest.skip("the captures of a real engine are not beside this checkout")
    engine = EngineSpec(max_num_seqs=128, max_num_batched_tokens=2048)
    cost = compile_cost(load_model("llama-3.1-8b"), 1, engine, source())
    with gzip.open(CAPTURES / "llama-3.1-8b" / "calib-decode.steps.jsonl.gz", "rt") as lines:
        steps = [json.loads(line) for line in lines]
    seen = defaultdict(list)
    for before, step in pairwise(steps):
        if not before["chunks"] and not step["chunks"]:
            a, b, _ = cost.decode_line(step["n_decode"], step["kv_decode"])
            seen[step["n_decode"]].append((a + b * step["kv_decode"]) / (step["t_update"] - before["t_update"]) - 1)
    errors = [float(np.median(each)) for each in seen.values() if len(each) >= 20]
    assert len(errors) >= 8
    assert max(abs(error) for error in errors) < 0.06
