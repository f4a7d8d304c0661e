"""The measured source: what the shipped profile says, and how well it predicts what it was not told."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from steelyard import scenario_from_dict, simulate
from steelyard.cost import Bundle, FirstOf, MeasuredSource, Roofline, compile_cost, shipped_bundle
from steelyard.cost.source import EXTRAPOLATED, INTERPOLATED, MEASURED, PROVENANCES, Decodes
from steelyard.hardware import find_gpu
from steelyard.model import AttentionOperator, Elementwise, Gemm, GroupedGemm, load_model, operators
from steelyard.scenario import EngineSpec
from support.paths import SHARED

CAPTURES = SHARED / "h200-vllm-0.26"


def bundle() -> Bundle:
    found = shipped_bundle("h200")
    assert found is not None
    return found


def source(profile: Bundle | None = None) -> FirstOf:
    gpu = find_gpu("h200")
    return FirstOf((MeasuredSource(gpu, profile or bundle()), Roofline(gpu)))


def attention_of(model: str) -> AttentionOperator:
    spec = load_model(model)
    return next(op for op in operators(spec, spec.layers[0]) if isinstance(op, AttentionOperator))


def test_measured_points_come_back_as_they_were_measured() -> None:
    rows = [row for row in bundle().families["gemm"] if (row["n"], row["k"]) == (6144, 4096) and row["m"] <= 512]
    at = np.array([float(row["m"]) for row in rows])
    alone = {family: points for family, points in bundle().families.items() if family != "layer"}
    found = source(replace(bundle(), families=alone)).rows(Gemm("qkv_proj", 4096, 6144, 2.0, "bf16"), at)
    assert found.seconds == pytest.approx([row["us"] * 1e-6 for row in rows])
    assert found.provenance.tolist() == [INTERPOLATED if row.get("carried") else MEASURED for row in rows]
    assert (found.provenance == MEASURED).sum() > 50


@pytest.mark.parametrize(("name", "family"), [("qk_norm", "qk_norm"), ("rope", "rope")])
def test_small_kernels_of_a_measured_size_of_row_know_nothing_of_others(name: str, family: str) -> None:
    """Those of few heads take longer for as many bytes, which is their own affair."""
    wide = [row for row in bundle().families[family] if row["heads"] == 32]
    operator = Elementwise(name, 4 * (32 + 8) * 128)
    alone = replace(bundle(), families={**bundle().families, "layer": []})
    found = source(alone).rows(operator, np.array([float(row["m"]) for row in wide]))
    assert found.seconds == pytest.approx([row["us"] * 1e-6 for row in wide])
    assert set(found.provenance.tolist()) == {MEASURED}
    between = source(alone).rows(replace(operator, bytes=4 * (32 + 4) * 128), np.array([16.0, 64.0, 2048.0]))
    assert set(between.provenance.tolist()) == {INTERPOLATED}
    assert (between.seconds <= source(alone).rows(operator, np.array([16.0, 64.0, 2048.0])).seconds).all()


def test_operators_take_longer_inside_a_layer() -> None:
    """By the tenth of what a whole layer takes more than its ten operators; not where there is nothing to do."""
    layers = [{"m": 8, "us": 140.0 + more, "apart_us": 140.0} for more in (1.0, 3.0, 20.0)]
    profile = replace(bundle(), families={**bundle().families, "layer": layers})
    without = replace(bundle(), families={**bundle().families, "layer": []})
    gemm, rows = Gemm("qkv_proj", 4096, 6144, 2.0, "bf16"), np.array([0.0, 8.0])
    more = source(profile).rows(gemm, rows).seconds - source(without).rows(gemm, rows).seconds
    assert more == pytest.approx([0.0, 0.3e-6])
    operator = attention_of("llama-3.1-8b")
    here, alone = (source(each).decode_attention(operator, 2).curve(4).seconds[3] for each in (profile, without))
    assert here - alone == pytest.approx(0.3e-6)


def test_between_and_beyond_the_points_is_said_so() -> None:
    gemm = Gemm("qkv_proj", 4096, 6144, 2.0, "bf16")
    found = source().rows(gemm, np.array([0.0, 64, 65, 8192, 10_000]))
    assert found.seconds[0] == 0
    assert found.provenance[1:].tolist() == [MEASURED, INTERPOLATED, MEASURED, EXTRAPOLATED]
    assert found.seconds[1] <= 1.05 * found.seconds[2] and found.seconds[4] > found.seconds[3]
    outside = source().rows(Gemm("wide", 4096, 400_000, 2.0, "bf16"), np.array([64.0]))
    assert outside.provenance[0] == EXTRAPOLATED


def test_matrices_left_out_of_the_profile_are_predicted() -> None:
    """Each shape of a real model in turn is taken out and predicted from the rest."""
    whole = bundle()
    by_shape = defaultdict(list)
    for row in whole.families["gemm"]:
        by_shape[row["n"], row["k"]].append(row)
    errors: list[float] = []
    for shape in [(6144, 4096), (4096, 14336), (28672, 4096), (5120, 2048), (4608, 3584), (24576, 4096)]:
        rest = [row for row in whole.families["gemm"] if (row["n"], row["k"]) != shape]
        without = source(replace(whole, families={**whole.families, "gemm": rest}))
        rows = np.array([float(row["m"]) for row in by_shape[shape]])
        found = without.rows(Gemm("left out", shape[1], shape[0], 2.0, "bf16"), rows)
        assert (found.provenance == INTERPOLATED).all()
        truth = np.array([row["us"] * 1e-6 for row in by_shape[shape]])
        errors.extend(np.abs(found.seconds / truth - 1).tolist())
    assert len(errors) > 250
    assert np.median(errors) < 0.05
    assert np.percentile(errors, 95) < 0.17


def test_a_gap_in_a_matrix_is_filled_by_its_neighbours_form() -> None:
    """Half of the rows of one shape are taken out: the others and the shapes around it tell them."""
    whole = bundle()
    mine = [row for row in whole.families["gemm"] if (row["n"], row["k"]) == (28672, 4096) and row["m"] % 8 == 0]
    mine.sort(key=lambda row: row["m"])
    out = mine[1:-1:2]
    rest = [row for row in whole.families["gemm"] if row not in out]
    found = source(replace(whole, families={**whole.families, "gemm": rest})).rows(
        Gemm("half known", 4096, 28672, 2.0, "bf16"), np.array([float(row["m"]) for row in out])
    )
    errors = np.abs(found.seconds / np.array([row["us"] * 1e-6 for row in out]) - 1)
    assert np.median(errors) < 0.04 and (found.provenance == INTERPOLATED).all()


def test_decode_attention_rises_with_cached_tokens_and_between_batch_sizes() -> None:
    operator = attention_of("llama-3.1-8b")
    at = np.linspace(1, 2_000_000, 500)
    for n in (1, 2, 3, 50, 128, 200, 256, 400):
        seconds = source().decode_attention(operator, 2).curve(n).at(at)
        assert (np.diff(seconds) >= 0).all() and seconds[0] > 0
    low, middle, high = (
        float(source().decode_attention(operator, 2).curve(n).at(np.array([60_000.0]))[0]) for n in (32, 48, 64)
    )
    assert 0.98 * min(low, high) <= middle <= 1.02 * max(low, high)
    assert source().decode_attention(operator, 2).curve(400).provenance == EXTRAPOLATED


def test_half_the_bytes_take_less_time() -> None:
    """But far more than half: an 8-bit cache costs its kernel conversions."""
    operator = attention_of("llama-3.1-8b")
    at = np.array([500_000.0])
    full, half = (float(source().decode_attention(operator, size).curve(64).at(at)[0]) for size in (2, 1))
    assert 0.6 < half / full < 0.95


def test_a_window_bounds_the_time() -> None:
    model = load_model("gpt-oss-20b")
    kinds = [op for layer in model.layers for op in operators(model, layer) if isinstance(op, AttentionOperator)]
    windowed = next(op for op in kinds if op.window is not None)
    whole = next(op for op in kinds if op.window is None)
    assert windowed.window is not None
    filled = np.array([64.0 * windowed.window])
    short, same = (float(source().decode_attention(op, 2).curve(64).at(filled)[0]) for op in (windowed, whole))
    assert same < short < 2 * same  # a filled window reaches into another block
    chunks = [(2048, 8192)]
    few, many = (source().prefill_attention(op, 2).seconds(chunks) for op in (windowed, whole))
    assert few < 0.3 * many


def test_longer_prompts_take_longer_and_many_share_the_gpu() -> None:
    prefill = source().prefill_attention(attention_of("llama-3.1-8b"), 2)
    times = [prefill.seconds([(n, 0)]) for n in (256, 512, 1024, 2048, 4096, 8192)]
    assert times == sorted(times)
    assert prefill.seconds([(512, 8192)]) > prefill.seconds([(512, 0)])
    together, alone = prefill.seconds([(256, 0)] * 8), prefill.seconds([(256, 0)])
    assert alone < together < 8 * alone


def test_decodes_among_prompts_cost_less_than_by_themselves_and_more_than_nothing() -> None:
    operator = attention_of("llama-3.1-8b")
    prefill = source().prefill_attention(operator, 2)
    chunks, decodes = [(1024, 0)], Decodes(64, 64_000, 1500)
    together = prefill.together(chunks, decodes)
    alone = float(source().decode_attention(operator, 2).curve(64).at(np.array([64_000.0]))[0])
    assert together is not None and prefill.seconds(chunks) < together < prefill.seconds(chunks) + 1.3 * alone
    held_up = prefill.together(chunks, Decodes(2, 33_000, 32_000))
    assert held_up is not None and held_up > 3 * prefill.seconds(chunks)  # one long decode is not split in a large step


def test_experts_count_once() -> None:
    model = load_model("qwen3-30b-a3b")
    grouped = [op for op in operators(model, model.layers[0]) if isinstance(op, GroupedGemm)]
    rows = np.array([1.0, 16, 128, 2048])
    up, down = (source().rows(op, rows) for op in grouped)
    assert (down.seconds == 0).all() and (np.diff(up.seconds) > 0).all()


def test_what_the_profile_lacks_is_analytic() -> None:
    gemm = Gemm("mxfp4", 4096, 4096, 0.53125, "bf16")
    rows = np.array([1.0, 64])
    found, plain = source().rows(gemm, rows), Roofline(find_gpu("h200")).rows(gemm, rows)
    assert (found.seconds == plain.seconds).all() and (found.provenance == plain.provenance).all()


def test_eight_bit_matrices_are_faster_and_pay_for_quantising() -> None:
    rows = np.array([1.0, 64, 4096])
    half, full = (
        source().rows(Gemm("any", 4096, 28672, size, kind), rows) for size, kind in ((1.0, "fp8"), (2.0, "bf16"))
    )
    assert (half.seconds < full.seconds).all() and (half.seconds > 0.45 * full.seconds).all()
    assert (half.provenance == MEASURED).all()


@pytest.mark.parametrize(
    ("gpu", "wanted", "analytic"), [("h200", "auto", False), ("h200", "analytic", True), ("a100-80", "auto", True)]
)
def test_a_run_says_where_its_times_come_from(gpu: str, wanted: str, analytic: bool) -> None:
    asked = {"arrivals": {"kind": "poisson", "rate": 4}, "requests": 40, "prompt": 300, "output": 30}
    run = {"model": "llama-3.1-8b", "fleet": {"gpu": gpu}, "cost": {"source": wanted}, "workload": asked}
    shares = simulate(scenario_from_dict(run)).summary.provenance
    assert list(shares.to_dict()) == list(PROVENANCES) and sum(shares.to_dict().values()) == pytest.approx(1)
    assert (shares.analytic == pytest.approx(1)) == analytic
    if not analytic:
        assert shares.measured + shares.interpolated > 0.95


@pytest.mark.parametrize(
    ("model", "capture", "worst"),
    [
        ("llama-3.1-8b", "calib-decode", 0.03),
        ("llama-3.1-8b", "rollout-burst", 0.06),
        ("qwen3-30b-a3b", "calib-decode", 0.04),
    ],
)
def test_real_decode_steps_are_predicted_from_operators_alone(model: str, capture: str, worst: float) -> None:
    """Steps of a real vLLM on an H200, even batches and uneven: medians over many steps of one batch size."""
    file = CAPTURES / model / f"{capture}.steps.jsonl.gz"
    if not file.exists():
        pytest.skip("the captures of a real engine are not beside this checkout")
    engine = EngineSpec(max_num_seqs=128, max_num_batched_tokens=2048)
    cost = compile_cost(load_model(model), 1, engine, source())
    with gzip.open(file, "rt") as lines:
        steps = [json.loads(line) for line in lines]
    seen = defaultdict(list)
    for before, step in pairwise(steps):
        if not before["chunks"] and not step["chunks"] and before["n_decode"] == step["n_decode"] > 0:
            a, b, _ = cost.decode_line(step["n_decode"], step["kv_decode"], step["kv_decode_max"])
            seen[step["n_decode"]].append((a + b * step["kv_decode"]) / (step["t_update"] - before["t_update"]) - 1)
    errors = [float(np.median(each)) for each in seen.values() if len(each) >= 20]
    assert len(errors) >= 5
    assert max(abs(error) for error in errors) < worst
    assert abs(np.mean(errors)) < 0.025


def test_experts_of_other_types_are_left_to_the_next_source() -> None:
    """All of them: the second matrix is part of the first only where the profile has both."""
    rows = np.array([16.0])
    for name in ("experts_gate_up", "experts_down"):
        eight_bit = GroupedGemm(name, 2048, 1536, 128, 8, 1.0, "fp8")
        plain = Roofline(find_gpu("h200")).rows(eight_bit, rows)
        assert source().rows(eight_bit, rows).seconds == pytest.approx(plain.seconds)
