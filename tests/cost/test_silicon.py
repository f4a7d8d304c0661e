"""The silicon database: tables made by hand are read as they should be, and the real ones agree with what they say."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from steelyard import UserError
from steelyard.cost import Roofline, compile_cost
from steelyard.cost.interpolate import along, line, rising
from steelyard.cost.silicon import Database, find_silicon
from steelyard.cost.silicon.gemm import find_lattice
from steelyard.cost.source import EXTRAPOLATED, INTERPOLATED, MEASURED, CostSource, Curve
from steelyard.hardware import topology_of
from steelyard.model import (
    AttentionOperator,
    AttentionShape,
    Collective,
    Elementwise,
    Gemm,
    GroupedGemm,
    load_model,
)
from steelyard.report.silicon import print_silicon
from steelyard.scenario import EngineSpec, Scenario, TopologySpec
from steelyard.validate import silicon_points
from steelyard.validate.silicon import Errors, PointReplay, regret, validate_silicon
from steelyard.validate.silicon_apart import PointLayout
from steelyard.validate.silicon_points import Point, read_points, scenario_of, why_not
from support.silicon_sample import sample
from support.silicon_tables import H200, NOBODY, needs_package, seconds, silicon, write

__all__ = ["sample"]  # a fixture


ATTENTION = {"num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "kv_cache_dtype": "bfloat16"}


def gemm_rows(dtype: str, scale: float, start: float = 0.004) -> list[dict[str, Any]]:
    """Milliseconds in line with every side of the matrix."""
    return [
        {"gemm_dtype": dtype, "m": m, "n": n, "k": k, "latency": start + scale * m * n * k * 1e-9}
        for m in (1, 16, 64)
        for n in (1024, 2048, 8192)
        for k in (1024, 4096)
    ]


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0.1, 100)), min_size=2, max_size=30))
def test_lines_never_fall_and_stay_under_what_was_measured(points: list[tuple[int, float]]) -> None:
    x, y = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    knots, times = rising(x, y)
    assert (np.diff(times) >= 0).all()
    assert all(times[knots == at][0] <= time for at, time in points)
    on_line = line(np.linspace(1.0, 100.0, 57), knots, times)
    assert (np.diff(on_line) >= -1e-9).all()


def test_provenance_says_where_on_the_line_an_answer_is() -> None:
    found = along(np.array([0.0, 4.0, 5.0, 9.0]), np.array([2.0, 4.0, 8.0]), np.array([1.0, 2.0, 4.0]))
    assert found.seconds.tolist() == [0.0, 2.0, 2.5, 4.5]
    assert found.provenance.tolist()[1:] == [MEASURED, INTERPOLATED, EXTRAPOLATED]


def test_own_engines_newest_table_comes_first(tmp_path: Path) -> None:
    for place in ("sglang/0.6", "vllm/0.9.0", "vllm/0.24.0", "vllm/0.24.0rc2"):
        write(tmp_path, f"gemm/{place}/gemm_perf", gemm_rows("bfloat16", 1.0))
    origins = Database(tmp_path, "vllm").origins("gemm", "gemm_perf")
    assert [str(each) for each in origins] == ["vllm 0.24.0rc2", "vllm 0.24.0", "vllm 0.9.0", "sglang 0.6"]


def test_matrix_times_are_straight_between_the_points_of_the_lattice(tmp_path: Path) -> None:
    write(tmp_path, "gemm/vllm/0.24.0/gemm_perf", gemm_rows("bfloat16", 1.0))
    rows = np.array([0.0, 1.0, 16.0, 40.0])
    expected = np.array([0.0, *(4e-6 + m * 5000 * 3000 * 1e-12 for m in (1, 16, 40))])
    found = silicon(tmp_path).rows(Gemm("any", k=3000, n=5000, weight_bytes=2.0, compute="bf16"), rows)
    assert found is not None
    assert found.seconds == pytest.approx(expected)
    assert found.provenance.tolist()[1:] == [INTERPOLATED] * 3
    exact = silicon(tmp_path).rows(Gemm("any", k=1024, n=2048, weight_bytes=2.0, compute="bf16"), rows)
    assert exact is not None and exact.provenance.tolist()[1:] == [MEASURED, MEASURED, INTERPOLATED]
    beyond = silicon(tmp_path).rows(Gemm("head", k=4096, n=16384, weight_bytes=2.0, compute="bf16"), rows)
    assert beyond is not None
    assert beyond.seconds[2] == pytest.approx(4e-6 + 16 * 16384 * 4096 * 1e-12)
    assert beyond.provenance.tolist()[1:] == [EXTRAPOLATED] * 3


def test_weights_of_each_type_have_their_own_table(tmp_path: Path) -> None:
    rows = [*gemm_rows("bfloat16", 1.0), *gemm_rows("fp8", 0.5), *gemm_rows("fp8_block", 0.7)]
    write(tmp_path, "gemm/vllm/0.24.0/gemm_perf", rows)
    source, at = silicon(tmp_path), np.array([64.0])
    work = 64 * 2048 * 4096 * 1e-12
    for weight, compute, scale in ((2.0, "bf16", 1.0), (1.0, "fp8", 0.5), (1 + 4 / 128**2, "fp8", 0.7)):
        gemm = Gemm("any", 4096, 2048, weight, compute)
        assert seconds(source, gemm, at) == pytest.approx([4e-6 + scale * work])
    assert source.rows(Gemm("any", 4096, 2048, 0.5625, "bf16"), at) is None


def test_tables_timed_with_the_hosts_launches_are_left_aside(tmp_path: Path) -> None:
    write(tmp_path, "gemm/vllm/0.24.0/gemm_perf", gemm_rows("fp8_block", 1.0, start=0.055))
    write(tmp_path, "gemm/sglang/0.5/gemm_perf", gemm_rows("fp8_block", 1.0))
    lattice = find_lattice(Database(tmp_path, "vllm"), "fp8_block")
    assert lattice is not None and str(lattice.origin) == "sglang 0.5"


def moe_rows(tp: int, scale: float, dtype: str = "bfloat16") -> list[dict[str, Any]]:
    common = {"moe_dtype": dtype, "hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 128}
    return [
        {
            **common,
            "moe_tp_size": tp,
            "moe_ep_size": ep,
            "distribution": way,
            "num_tokens": n,
            "latency": scale * n * by,
        }
        for n in (1, 64, 1024)
        for ep, way, by in ((1, "power_law_1.01", 1.0), (1, "balanced", 9.0), (2, "power_law_1.01", 7.0))
    ]


def test_a_routed_layer_is_answered_whole_and_by_a_gpus_share(tmp_path: Path) -> None:
    write(tmp_path, "moe/vllm/0.24.0/moe_perf", [*moe_rows(1, 0.01), *moe_rows(4, 0.004)])
    source, rows = silicon(tmp_path), np.array([64.0])
    whole = GroupedGemm("experts_gate_up", k=2048, n=2 * 768, experts=128, top_k=8, weight_bytes=2.0, compute="bf16")
    assert seconds(source, whole, rows) == pytest.approx([0.64e-3])
    assert seconds(source, replace(whole, n=2 * 192), rows) == pytest.approx([0.256e-3])
    assert seconds(source, replace(whole, name="experts_down", k=768, n=2048), rows).tolist() == [0.0]
    assert seconds(source, Elementwise("experts_sum", 4096), rows).tolist() == [0.0]
    wider = source.rows(replace(whole, n=4 * 768), np.array([1024.0]))
    assert wider is not None and wider.provenance.tolist() == [EXTRAPOLATED]
    assert 1.5 < wider.seconds[0] / 10.24e-3 < 2.0
    assert source.rows(replace(whole, weight_bytes=1.0, compute="fp8"), rows) is None
    assert source.rows(Elementwise("post_norm", 4096), rows) is None


def test_microscaled_and_integer_weights_of_four_bits_are_told_apart(tmp_path: Path) -> None:
    rows = [*moe_rows(1, 0.01, "int4_wo"), *moe_rows(1, 0.002, "w4a16_mxfp4")]
    write(tmp_path, "moe/vllm/0.24.0/moe_perf", rows)
    layer = GroupedGemm("experts_gate_up", 2048, 1536, 128, 8, weight_bytes=0.5625, compute="bf16")
    assert seconds(silicon(tmp_path), layer, np.array([64.0])) == pytest.approx([0.64e-3])
    microscaled = replace(layer, weight_bytes=0.53125)
    assert seconds(silicon(tmp_path), microscaled, np.array([64.0])) == pytest.approx([0.128e-3])


def test_collectives_go_by_bytes_and_by_the_replayed_kernel(tmp_path: Path) -> None:
    sizes = (1024, 2048, 1 << 20)
    rows = [
        {
            "kernel_source": f"custom_{how}",
            "num_gpus": gpus,
            "message_size": size,
            "latency": start + size * 1e-6 * gpus,
        }
        for how, start in (("graph", 0.005), ("eager", 0.02))
        for gpus in (2, 4)
        for size in sizes
    ]
    write(tmp_path, "comm/vllm/0.24.0/custom_allreduce_perf", rows)
    nccl = {"op_name": "all_gather", "nccl_dtype": "half", "num_gpus": 4}
    write(
        tmp_path, "comm/nccl/2.29/nccl_perf", [{**nccl, "message_size": s, "latency": 0.01 + s * 1e-6} for s in sizes]
    )
    source = silicon(tmp_path)
    tokens = np.array([0.0, 10.0])
    expected = [0.0, 5e-6 + 10 * 4096 / 2 * 4e-9]
    assert seconds(source, Collective("ffn_allreduce", 4096, ranks=4), tokens) == pytest.approx(expected)
    gathered = seconds(source, Collective("logits_gather", 4096, kind="allgather", ranks=4), tokens)
    assert gathered == pytest.approx([0.0, 1e-5 + 10 * 4096 / 2 * 1e-9])
    assert source.rows(Collective("ffn_allreduce", 4096, ranks=8), tokens) is None
    assert source.rows(Collective("combine", 4096, kind="reducescatter", ranks=4), tokens) is None
    deep = Collective("dispatch", 4096, kind="alltoall", ranks=4, mode="low_latency", top_k=8, experts=128)
    assert source.rows(deep, tokens) is None  # neither is there a table of these, nor is another's taken for it
    rewired = replace(source, topology=topology_of(H200, TopologySpec(nvlink=1e9)))
    assert rewired.rows(Collective("ffn_allreduce", 4096, ranks=4), tokens) is None


def attention(window: int | None = None, heads: int = 32) -> AttentionOperator:
    shape = AttentionShape(heads, 8, 128, 128)
    return AttentionOperator("attention", "gqa", shape, shape, 2 * 8 * 128, window, "bf16")


def decode_rows(window: int = 0) -> list[dict[str, Any]]:
    """Microseconds: 10, one per request, one per 1,000 cached tokens; 50 past a window."""
    return [
        {
            **ATTENTION,
            "window_size": window,
            "batch_size": n,
            "step": step,
            "latency": 0.05 if window and step >= window else (10 + n + n * (step + 1) / 1000) * 1e-3,
        }
        for n in (1, 8, 64)
        for step in (15, 127, 1023, 8191)
    ]


def decodes(source: CostSource, operator: AttentionOperator, requests: int) -> Curve:
    found = source.decode_attention(operator, 2.0)
    assert found is not None
    return found.curve(requests)


def test_decodes_go_by_requests_and_all_their_cached_tokens(tmp_path: Path) -> None:
    write(tmp_path, "attention/vllm/0.24.0/generation_attention_perf", decode_rows())
    source = silicon(tmp_path)
    for requests, provenance in ((8, MEASURED), (20, INTERPOLATED)):
        curve = decodes(source, attention(), requests)
        assert curve.provenance == provenance
        assert curve.at(np.array([requests * 1000.0])) == pytest.approx([(10 + requests + requests) * 1e-6], rel=0.02)
    more = decodes(source, attention(), 128)
    assert more.provenance == EXTRAPOLATED
    other = decodes(source, attention(heads=16), 8)
    assert other.provenance == INTERPOLATED
    assert source.decode_attention(attention(), 1.0) is None  # no table of 8-bit caches
    assert seconds(source, Elementwise("kv_write", 64), np.array([4.0])).tolist() == [0.0]


def test_one_slow_sample_does_not_slow_longer_requests(tmp_path: Path) -> None:
    rows = decode_rows()
    spike = next(row for row in rows if row["batch_size"] == 8 and row["step"] == 15)
    spike["latency"] *= 3
    write(tmp_path, "attention/vllm/0.24.0/generation_attention_perf", rows)
    curve = decodes(silicon(tmp_path), attention(), 8)
    assert curve.at(np.array([8 * 128.0, 8 * 1024.0])) == pytest.approx([19.024e-6, 26.192e-6])


def test_a_request_past_the_window_costs_what_long_ones_do(tmp_path: Path) -> None:
    write(tmp_path, "attention/vllm/0.24.0/generation_attention_perf", [*decode_rows(), *decode_rows(window=128)])
    curve = decodes(silicon(tmp_path), attention(window=128), 8)
    assert curve.at(np.array([8 * 16.0, 8 * 128.0])) == pytest.approx([18.128e-6, 50e-6])


def test_chunks_take_the_time_of_prompts_with_as_many_pairs(tmp_path: Path) -> None:
    rows = [
        {
            **ATTENTION,
            "window_size": 0,
            "batch_size": n,
            "isl": t,
            "step": 0,
            "latency": 0.01 + n * t * (t + 1) / 2 * 1e-6,
        }
        for n in (1, 4)
        for t in (16, 256, 1024, 4096)
    ]
    write(tmp_path, "attention/vllm/0.24.0/context_attention_perf", rows)
    prefill = silicon(tmp_path).prefill_attention(attention(), 2.0)
    assert prefill is not None

    def expected(*pairs: float) -> float:
        return 1e-5 + sum(pairs) * 1e-9

    whole = 1024 * 1025 / 2
    assert prefill.seconds([(1024, 0)]) == pytest.approx(expected(whole))
    assert prefill.seconds([(512, 3000)]) == pytest.approx(expected(512 * 3000 + 512 * 513 / 2))
    assert prefill.seconds([(1024, 0), (256, 100)]) == pytest.approx(expected(whole, 256 * 100 + 256 * 257 / 2))
    assert prefill.seconds([(1024, 0)] * 8) == pytest.approx(2 * expected(*[whole] * 4))


# -- the sample --------------------------------------------------------------------------------------------------


def the_workload(scenario: Scenario) -> Any:
    (only,) = scenario.workload.mix
    return only


def test_a_published_run_is_repeated_with_its_recipe(sample: Any) -> None:
    (point,) = sample({})
    scenario = scenario_of(point, "auto")
    workload = the_workload(scenario)
    assert (workload.prompt.min, workload.prompt.max) == (800, 1000)
    assert (workload.output.min, workload.output.max) == (80, 100)
    assert (workload.arrivals.users, workload.requests) == (4, 40)
    assert scenario.engine.max_num_seqs == 4 and scenario.engine.async_scheduling
    assert (point.ttft, point.tpot) == pytest.approx((0.06, 0.009))


def test_an_own_run_has_exact_lengths_and_its_releases_defaults(sample: Any) -> None:
    own = {"silicon_data_source": "source_file=/somewhere/0.12.0/x.csv; silicon_concurrency=4"}
    for version, ahead in (("0.12.0", False), ("0.14.1", True)):
        (point,) = sample({**own, "backend_version": version})
        scenario = scenario_of(point, "auto")
        workload = the_workload(scenario)
        assert (workload.prompt.min, workload.prompt.max, workload.requests) == (1000, 1000, 80)
        assert scenario.engine.async_scheduling is ahead


def published(sample: Any, model: str, system: str, version: str) -> Any:
    """Engine settings of a published run."""
    (point,) = sample({"model_path": model, "system": system, "backend_version": version})
    return silicon_points._engine(point)


def test_published_recipes_differ_between_gpus_and_releases(sample: Any) -> None:
    hopper = published(sample, "openai/gpt-oss-120b", "h200_sxm", "0.18.0")
    assert hopper["moe_backend"] == "marlin" and "kv_cache_dtype" not in hopper
    blackwell = published(sample, "openai/gpt-oss-120b", "b200_sxm", "0.15.1")
    assert "moe_backend" not in blackwell and blackwell["kv_cache_dtype"] == "fp8"
    before, since = (published(sample, "MiniMaxAI/MiniMax-M2.5", "b200_sxm", each) for each in ("0.17.0", "0.19.0"))
    assert (before["max_num_batched_tokens"], before["gpu_memory_utilization"]) == (8192, 0.95)
    assert (since["max_num_batched_tokens"], since["gpu_memory_utilization"]) == (2000, 0.9)
    assert max(since["cudagraph_capture_sizes"]) == 2048 and "cudagraph_capture_sizes" not in before
    nightly = published(sample, "MiniMaxAI/MiniMax-M2.5", "b200_sxm", "nightly-5b8c30d62b754b57")
    assert nightly == since


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mode": "disagg"}, "number of engines"),
        ({"backend": "sglang"}, "vLLM's scheduler"),
        ({"backend": "trtllm", "mode": "disagg"}, "TensorRT-LLM"),
        ({"system": "b300_sxm"}, "not in the catalog"),
        ({"attention_dp_size": "4"}, "data or pipeline"),
        ({"moe_ep_size": "4"}, "expert parallel"),
    ],
)
def test_what_cannot_be_repeated_says_why(sample: Any, change: dict[str, str], reason: str) -> None:
    (point,) = sample(change)
    assert reason in str(why_not(point))


def test_experts_over_other_gpus_than_attention_are_refused(sample: Any) -> None:
    (point,) = sample({"model_path": "Qwen/Qwen3-30B-A3B", "tp_size": "2", "moe_tp_size": "4"})
    with pytest.raises(UserError, match="different numbers of GPUs"):
        scenario_of(point, "auto")
    (dense,) = sample({"tp_size": "2", "moe_tp_size": "1"})
    assert scenario_of(dense, "auto").fleet.pools[0].tp == 2


def test_the_sample_needs_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silicon_points, "package_folder", lambda: None)
    with pytest.raises(UserError, match=r"steelyard\[silicon\]"):
        read_points()


def test_replays_count_each_measurement_once_and_are_repeatable(
    sample: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    sample({}, {}, {"silicon_ttft_ms": "66"}, {"mode": "disagg"}, {"model_path": "nobody/knows-this"})
    found = validate_silicon(source="analytic", rival=NOBODY)
    assert [each.point.name for each in found.replays] == ["row0", "row2"]
    assert found.replays[0].ours == found.replays[1].ours
    assert found.skipped == {
        "the same measurement again": 1,
        "prefill and decode apart: the number of engines is not said": 1,
        "model not known": 1,
    }
    told = json.dumps(found.as_dict(), allow_nan=False)
    assert told == json.dumps(validate_silicon(source="analytic", rival=NOBODY).as_dict(), allow_nan=False)
    assert validate_silicon(source="analytic", gpus=["h100"], rival=NOBODY).replays == ()
    print_silicon(found, Console(width=160))
    printed = capsys.readouterr().out
    assert "Llama-3.1-8B-Instruct" in printed and "nobody asked" in printed and "model not known" in printed


def replay(tp: int, users: int, measured: tuple[float, float], ours: tuple[float, float]) -> PointReplay:
    layout = PointLayout(tp, 1, 1, 1, 1)
    point = Point(
        *("x", "", "m", "h200_sxm", "vllm", "0.18.0", "", "", ""),
        aggregated=True,
        layout=layout,
        isl=1000,
        osl=101,
        concurrency=users,
        ttft=measured[0],
        tpot=measured[1],
    )
    return PointReplay(point, ours, None)


def test_errors_are_signed_and_unsigned() -> None:
    found = Errors.of([replay(1, 4, (0.1, 0.01), (0.12, 0.009)), replay(1, 8, (0.1, 0.01), (0.08, 0.01))], "ours")
    assert found is not None
    assert found.median == pytest.approx({"ttft": 0.2, "tpot": 0.05})
    assert found.bias == pytest.approx({"ttft": 0.0, "tpot": -0.05})
    assert Errors.of([replay(1, 4, (0.1, 0.01), (0.12, 0.009))], "theirs") is None


def test_regret_is_what_the_choice_falls_short_of() -> None:
    """Real tokens/s per GPU: 4 * 101 / 1.1, then twice that for 8 users; we take the first for the better one."""
    slow, fast = replay(1, 4, (0.1, 0.01), (0.1, 0.001)), replay(1, 8, (0.1, 0.01), (0.1, 0.02))
    found = regret([slow, fast], "ours")
    assert found is not None
    assert found.free_mean == pytest.approx(0.5)
    assert found.limited_mean == pytest.approx(0.5) and found.kept == 1.0
    assert regret([slow], "ours") is None
    right = regret([replace(slow, ours=slow.measured), replace(fast, ours=fast.measured)], "ours")
    assert right is not None and right.free_mean == 0.0 and right.free_worst == 0.0


def test_a_choice_that_misses_the_limit_gives_all_away() -> None:
    """The limit is the median of 10 and 30 ms per token; the slow one seems to keep it."""
    slow, fast = replay(1, 8, (0.1, 0.03), (0.1, 0.01)), replay(1, 4, (0.1, 0.01), (0.1, 0.01))
    found = regret([slow, fast], "ours")
    assert found is not None
    assert found.free_mean == pytest.approx(1 - (8 / 3.1) / (4 / 1.1))
    assert found.limited_mean == 1.0 and found.kept == 0.0


@needs_package
@pytest.mark.parametrize(
    ("version", "tp", "backend"),
    [("0.12.0", 4, "deep_gemm"), ("0.14.1", 2, "deep_gemm"), ("0.16.0", 4, "auto"), ("0.12.0", 8, "auto")],
)
def test_experts_run_with_the_kernels_that_the_release_chose(version: str, tp: int, backend: str) -> None:
    points = (each for each in read_points() if each.engine == "vllm" and each.aggregated)
    point = next(each for each in points if each.model == "Qwen/Qwen3-235B-A22B-FP8")
    layout = replace(point.layout, tp=tp, expert_tp=tp)
    changed = replace(point, version=version, layout=layout, system="h200_sxm")
    assert scenario_of(changed, "auto").engine.moe_backend == backend


# -- the installed package ---------------------------------------------------------------------------------------


@needs_package
def test_the_installed_tables_answer_for_a_dense_model_in_time() -> None:
    model = load_model("llama-3.1-8b")
    began = time.perf_counter()
    source = find_silicon(H200, topology_of(H200))
    assert source is not None
    engine = EngineSpec(max_num_seqs=64, max_num_batched_tokens=8192)
    compile_cost(model, 2, engine, source, Roofline(H200))
    assert time.perf_counter() - began < 2.0
    assert {"gemm bfloat16", "prefill attention", "allreduce"} <= set(source.used)
    assert set(source.used.values()) <= {"vllm 0.24.0", "nccl 2.29.2"}


@needs_package
def test_the_installed_tables_are_of_the_size_that_physics_gives() -> None:
    source = find_silicon(H200, topology_of(H200))
    assert source is not None
    rows = np.array([1.0, 64.0, 8192.0])
    for gemm in (Gemm("up", 4096, 28672, 2.0, "bf16"), Gemm("down", 14336, 4096, 1.0, "fp8")):
        ratio = seconds(source, gemm, rows) / Roofline(H200).rows(gemm, rows).seconds
        assert ((ratio > 0.6) & (ratio < 1.8)).all()
    curve = decodes(source, attention(), 64)
    read = 64 * 8192 * 2 * 8 * 128 * 2 / H200.memory_bandwidth
    assert 1.0 < curve.at(np.array([64 * 8192.0]))[0] / read < 1.5


@needs_package
def test_the_installed_sample_is_read_whole() -> None:
    points = read_points()
    assert len(points) == 5221
    hopper = [each for each in points if each.engine == "vllm" and each.gpu in ("h100", "h200")]
    assert len(hopper) == 576
    assert all(each.ttft > 0 and each.tpot > 0 for each in points)
