"""LLMServingSim's profiles as a source of times, and its bench folders replayed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steelyard import UserError
from steelyard.cost import FirstOf, MeasuredSource, Roofline
from steelyard.cost.llmservingsim import read_variant
from steelyard.cost.profiles import open_profile
from steelyard.cost.source import EXTRAPOLATED, INTERPOLATED, MEASURED, Decodes
from steelyard.cost.tabulated import GAP_SECONDS, TabulatedAttention, TabulatedPrefill, TimeCurve, blend
from steelyard.hardware import find_gpu
from steelyard.model import Elementwise, Gemm, GroupedGemm, Recurrence, head_operators, load_model, operators
from steelyard.scenario import Scenario
from steelyard.validate.llmservingsim import bench_scenario, read_llmservingsim_bench, validate_bench
from support.paths import SHARED

LLMSERVINGSIM = SHARED / "llmservingsim"
LLAMA = LLMSERVINGSIM / "perf" / "RTXPRO6000" / "meta-llama" / "Llama-3.1-8B" / "bf16"
QWEN = LLMSERVINGSIM / "perf" / "RTXPRO6000" / "Qwen" / "Qwen3-30B-A3B-Instruct-2507" / "bf16"
BENCH = LLMSERVINGSIM / "bench" / "RTXPRO6000"
TRACE = LLMSERVINGSIM / "workloads" / "sharegpt-llama-3.1-8b-300-sps10.jsonl"
needs_data = pytest.mark.skipif(not LLMSERVINGSIM.is_dir(), reason="the shared LLMServingSim data is not here")

DENSE = ("embedding", "layernorm", "qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj")
TOKENS = (1, 2, 16, 32, 256, 512)
CHUNKS, BEFORE, DECODES, CACHED = (16, 64, 256), (0, 64, 1024), (1, 4, 16), (16, 256, 4096)


def layer_us(layer: str, tokens: int) -> float:
    return 5.0 + len(layer) + 0.25 * tokens


def decode_us(decodes: int, cached: int) -> float:
    return 4.0 + 0.003 * decodes * cached


def chunk_us(chunk: int, before: int) -> float:
    return 4.0 + 0.0001 * chunk * (before + chunk / 2)


def mixed_us(chunk: int, before: int, decodes: int, cached: int) -> float:
    """Beside a prompt every decode reads its cache twice, and waits for the chunk's empty tiles."""
    return chunk_us(chunk, before) + 2 * decode_us(decodes, cached) + 0.002 * chunk * decodes


def write_csv(path: Path, header: str, rows: Iterable[tuple[Any, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")


def write_attention(path: Path, *, newer: bool = False) -> None:
    rows: list[tuple[Any, ...]] = [(0, 0, n, kv, decode_us(n, kv)) for n in DECODES for kv in CACHED]
    rows += [(c, b, 0, 0, chunk_us(c, b)) for c in CHUNKS for b in BEFORE]
    rows += [(c, b, n, kv, mixed_us(c, b, n, kv)) for c in CHUNKS for b in BEFORE for n in DECODES for kv in CACHED]
    if not newer:
        write_csv(path, "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", rows)
        return
    header = "layer,prefill_chunk,prefill_key,n_decode,kv_decode,decode_q_len,time_us"
    there = [("attention", c, b + c / 2, n, kv, 1, us) for c, b, n, kv, us in rows]
    write_csv(path, header, [*there, ("indexer", 16, 8, 0, 0, 1, 9999.0), ("attention", 0, 0, 1, 16, 3, 9999.0)])


@pytest.fixture
def perf(tmp_path: Path) -> Path:
    """A profile of Llama-3.1-8B on an RTX PRO 6000, one degree."""
    variant = tmp_path / "perf" / "RTXPRO6000" / "meta-llama" / "Llama-3.1-8B" / "bf16"
    tables = variant / "tp1"
    layers = (*DENSE, "final_layernorm", "unheard_of")
    write_csv(tables / "dense.csv", "layer,tokens,time_us", [(n, t, layer_us(n, t)) for n in layers for t in TOKENS])
    heads = [(layer, n, 10.0 + n) for layer in ("lm_head", "sampler") for n in (1, 16, 64)]
    write_csv(tables / "per_sequence.csv", "layer,sequences,time_us", heads)
    write_attention(tables / "attention.csv")
    fits = [
        (0, "n<=8", "sr<=15%", "kvB<=1k", "kp=0", 0.04, 3),
        (0, "n<=8", "sr<=40%", "kvB<=4k", "kp=0", 0.08, 1),
        (0, "n<=8", "sr>70%", "kvB<=1k", "kp=0", 0.9, 50),  # nearly all are the longest
        (64, "n<=8", "sr<=15%", "kvB<=1k", "kp=0", 0.5, 9),  # beside a prompt
        (0, "n>8", "sr<=15%", "kvB<=1k", "kp=0", 0.5, 9),  # no size
    ]
    write_csv(tables / "skew_fit.csv", "pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha,n_samples", fits)
    meta = "gpu: NVIDIA RTX PRO 6000 Blackwell Server Edition\nhardware: RTXPRO6000\nvariant: bf16\n"
    (variant / "meta.yaml").write_text(meta + "model: meta-llama/Llama-3.1-8B\n")
    return tmp_path / "perf"


def variant_of(perf: Path) -> Path:
    return perf / "RTXPRO6000" / "meta-llama" / "Llama-3.1-8B" / "bf16"


def chain(*source: Any) -> FirstOf:
    return FirstOf((*source, Roofline(find_gpu("rtx-pro-6000"))))


# -- between the points of a table -----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0.1, 100)), min_size=1, max_size=30))
def test_more_work_never_takes_less_and_nothing_is_made_up(measured: list[tuple[int, float]]) -> None:
    points = TimeCurve.of(measured)
    at = np.linspace(0.5, 60, 200)
    seconds = points.along(at).seconds
    assert (np.diff(seconds) >= -1e-9).all()
    assert seconds == pytest.approx([points.at(float(x)) for x in at])
    inside = points.along(np.array(points.x)).seconds
    values = [y for _, y in measured]
    assert min(values) - 1e-9 <= inside.min() and inside.max() <= max(values) + 1e-9


def test_points_that_rise_come_back_as_they_were_measured() -> None:
    points = TimeCurve.of([(1, 3.0), (2, 3.0), (8, 9.0), (64, 10.0)])
    found = points.along(np.array([0.0, 1, 2, 8, 64, 5, 96]))
    assert found.seconds[:6] == pytest.approx([0, 3, 3, 9, 10, 6])
    assert found.provenance[1:].tolist() == [MEASURED] * 4 + [INTERPOLATED, EXTRAPOLATED]
    upper_half = (10.0 - points.at(32)) / 32
    assert found.seconds[6] == pytest.approx(10 + 32 * upper_half)


def test_rows_cost_what_their_tile_costs() -> None:
    """Between 16 and 32 rows a matrix takes what it takes at 32; over a wider gap nobody knows where the steps are."""
    points = TimeCurve.of([(16, 1.0), (32, 2.0), (128, 3.0)])
    assert points.along(np.array([17.0, 31, 80]), tile=16).seconds == pytest.approx([2, 2, 2.5])


def test_weights_of_neighbours() -> None:
    assert blend([1, 4, 16], 4) == ((4, 1.0),)
    assert blend([1, 4, 16], 0) == ((1, 1.0),)
    assert dict(blend([1, 4, 16], 10)) == pytest.approx({4: 0.5, 16: 0.5})
    assert dict(blend([1, 4, 16], 28)) == pytest.approx({4: -1.0, 16: 2.0})


# -- the files -------------------------------------------------------------------------------------------------------


def test_layers_come_under_our_names(perf: Path) -> None:
    source = read_variant(variant_of(perf), 1)
    at = np.array([1.0, 256])
    for ours, theirs in (("input_norm", "layernorm"), ("post_norm", "layernorm"), ("act", "act_fn")):
        found = source.rows(Elementwise(ours, 1), at)
        assert found is not None and found.seconds == pytest.approx(
            [layer_us(theirs, t) * 1e-6 + GAP_SECONDS for t in (1, 256)]
        )
    gate_up = source.rows(Gemm("gate_up_proj", 4096, 28672, 2.0, "bf16"), at)
    assert gate_up is not None and (gate_up.provenance == MEASURED).all()
    assert source.rows(Gemm("gate_up_proj", 4096, 28672, 1.0, "fp8"), at) is None
    assert source.rows(Elementwise("unheard_of", 1), at) is None


def test_the_profile_answers_for_every_operator_of_its_model(perf: Path) -> None:
    """Even for the cache write, of which nothing is left since it was timed within attention."""
    source = chain(read_variant(variant_of(perf), 1))
    model = load_model("llama-3.1-8b")
    for operator in (*operators(model, model.layers[0]), *head_operators(model)):
        if operator.kind == "attention":
            source.decode_attention(operator, 2.0).curve(3)
            source.prefill_attention(operator, 2.0)
        elif not isinstance(operator, Recurrence):
            source.rows(operator, np.array([4.0]))
    assert set(source.chosen.values()) == {"LLMServingSim profile of meta-llama/Llama-3.1-8B on RTXPRO6000"}


def attention_of(perf: Path) -> TabulatedAttention:
    return read_variant(variant_of(perf), 1).attention


def test_cached_tokens_of_a_decode_are_its_own(perf: Path) -> None:
    times = attention_of(perf)
    curve = times.curve(16)
    assert curve.provenance == MEASURED and times.curve(10).provenance == INTERPOLATED
    assert curve.at(np.array([16 * 256.0]))[0] == pytest.approx(decode_us(16, 256) * 1e-6)
    assert times.curve(10).at(np.array([10 * 256.0]))[0] == pytest.approx(decode_us(10, 256) * 1e-6)
    twice = times.curve(32)
    assert twice.provenance == EXTRAPOLATED
    assert twice.at(np.array([32 * 256.0]))[0] == pytest.approx(2 * decode_us(16, 256) * 1e-6)


def test_a_straggler_weighs_less_in_a_larger_batch(perf: Path) -> None:
    times = attention_of(perf)
    assert times.skew[0] == pytest.approx({8: 0.05})
    assert times.curve(8).skew == pytest.approx(0.05)
    assert times.curve(5).skew == pytest.approx(0.05 * 8 / 5)
    assert times.curve(1).skew == 0.0


def test_beside_a_chunk_a_straggler_weighs_what_was_measured_there(perf: Path) -> None:
    """How far towards all the longest is told of the kernel that serves both, and so is how far that is."""
    times = attention_of(perf)
    prefill = TabulatedPrefill(times)
    for decodes, alpha in ((8, 0.5), (4, 0.5 * 8 / 4)):
        low, high = (times.together(64, 64, decodes, decodes * cached) for cached in (256, 1024))
        uneven = prefill.together([(64, 64)], Decodes(decodes, decodes * 256, 1024))
        assert uneven == pytest.approx(low + alpha * (high - low) + GAP_SECONDS)
    assert times.skew_of(8, 1) == times.skew_of(8, 64) == times.skew_of(8, 9999)
    assert times.skew_of(2, 64) == 1.0
    assert prefill.together([(64, 64)], Decodes(1, 256, 1024)) == pytest.approx(
        times.together(64, 64, 1, 256) + GAP_SECONDS
    )


def test_a_profile_that_knows_stragglers_of_decodes_alone_has_no_others(perf: Path) -> None:
    edited(variant_of(perf) / "tp1" / "skew_fit.csv", "64,n<=8", "64,n>8")
    times = attention_of(perf)
    assert times.skew_of(8, 64) == times.skew_of(8) == pytest.approx(0.05)


def test_a_chunk_beside_decodes_takes_what_both_took_together(perf: Path) -> None:
    times = attention_of(perf)
    prefill = TabulatedPrefill(times)
    for chunk, before, decodes, cached in ((16, 0, 1, 16), (256, 1024, 16, 4096), (64, 64, 4, 256)):
        kv = decodes * cached
        both = prefill.together([(chunk, before)], Decodes(decodes, kv, cached))
        assert both == pytest.approx(mixed_us(chunk, before, decodes, cached) * 1e-6 + GAP_SECONDS)
        uneven = prefill.together([(chunk, before)], Decodes(decodes, kv, 2 * cached))
        assert (uneven > both) == (decodes > 1)
        alone = times.even(decodes, kv) + prefill.seconds([(chunk, before)])
        assert both > alone


def test_a_grid_that_starts_higher_is_not_stretched_down(perf: Path) -> None:
    """Chunks of 32 that were measured beside long decodes only say nothing about short ones."""
    path = variant_of(perf) / "tp1" / "attention.csv"
    with path.open("a") as file:
        file.write("32,0,1,4096,500.0\n32,0,16,4096,900.0\n")
    times = attention_of(perf)
    between = (times.together(16, 0, 1, 16) * 2 + times.together(64, 0, 1, 16)) / 3
    assert times.together(32, 0, 1, 16) == pytest.approx(between)
    assert times.together(32, 0, 1, 4096) == pytest.approx(500e-6)


def test_chunks_share_a_kernel_and_long_ones_are_several(perf: Path) -> None:
    times = attention_of(perf)
    prefill = TabulatedPrefill(times)
    start = times.start
    two = prefill.seconds([(64, 64), (256, 0)])
    assert two == pytest.approx(times.chunk(256, 0) + times.chunk(64, 64) - start + GAP_SECONDS)
    assert times.chunk(600, 10) == pytest.approx(
        times.chunk(256, 10) + times.chunk(256, 266) + times.chunk(88, 522) - 2 * start
    )
    decodes = Decodes(4, 4 * 256, 256)
    assert prefill.together([(600, 10)], decodes) > prefill.together([(256, 10)], decodes)


def test_newer_profiles_tell_mean_keys_and_several_kernels(perf: Path) -> None:
    older = attention_of(perf)
    write_attention(variant_of(perf) / "tp1" / "attention.csv", newer=True)
    newer = attention_of(perf)
    assert newer.chunks == older.chunks and newer.decodes == older.decodes and newer.mixed == older.mixed


def test_experts_are_chosen_by_chance(perf: Path) -> None:
    rows = [(t, a, 10.0 * a + t) for t in (1, 16, 256) for a in (8, 32, 128) if a <= 8 * t]
    write_csv(variant_of(perf) / "tp1" / "moe.csv", "tokens,activated_experts,time_us", rows)
    source = read_variant(variant_of(perf), 1)
    gemm = GroupedGemm("experts_gate_up", 2048, 1536, 128, 8, 2.0, "bf16")
    found = source.rows(gemm, np.array([1.0, 16, 256, 512]))
    assert found is not None
    chosen = 128 * (1 - (1 - 8 / 128) ** 16)
    assert found.seconds[:3] == pytest.approx([81.6e-6, (10 * chosen + 16.6) * 1e-6, (1280 + 256.6) * 1e-6], rel=1e-3)
    assert found.provenance.tolist() == [INTERPOLATED] * 3 + [EXTRAPOLATED]
    router = source.rows(Gemm("router", 2048, 128, 2.0, "bf16"), np.array([16.0]))
    assert router is not None and router.seconds[0] == 0.0  # timed with the experts


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda v: edited(v / "tp1" / "dense.csv", "time_us", "time_ms"), r"dense\.csv:1: no column time_us"),
        (lambda v: edited(v / "tp1" / "dense.csv", "embedding,1,", "embedding,x,"), r"dense\.csv:2: tokens .*'x'"),
        (lambda v: edited(v / "tp1" / "skew_fit.csv", ",0.04,", ",?,"), r"skew_fit\.csv:2: alpha .*'\?'"),
        (lambda v: (v / "meta.yaml").write_text("[1, 2]"), r"meta\.yaml: must be a mapping"),
        (lambda v: (v / "meta.yaml").unlink(), r"meta\.yaml: no such file"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(perf: Path, spoil: Callable[[Path], object], complaint: str) -> None:
    spoil(variant_of(perf))
    with pytest.raises(UserError, match=complaint):
        read_variant(variant_of(perf), 1)


def test_degrees_that_were_not_profiled_are_named(perf: Path) -> None:
    with pytest.raises(UserError, match="profiled for tp1, not for tp4"):
        read_variant(variant_of(perf), 4)


# -- finding the profile ---------------------------------------------------------------------------------------------


def test_a_profile_is_found_from_any_folder_above_it(perf: Path) -> None:
    gpu, model = find_gpu("rtx-pro-6000"), load_model("llama-3.1-8b")
    below = variant_of(perf)
    for path in (perf, perf / "RTXPRO6000", below.parent, below):
        assert open_profile(path, gpu, model, 1).name.startswith("LLMServingSim profile")


def test_profiles_of_another_gpu_or_model_are_refused(perf: Path) -> None:
    model = load_model("llama-3.1-8b")
    for path in (perf, variant_of(perf)):
        with pytest.raises(UserError, match="no profile of NVIDIA H100"):
            open_profile(path, find_gpu("h100"), model, 1)
        with pytest.raises(UserError, match=r"no profile of llama-3.1-70b on rtx-pro-6000"):
            open_profile(path, find_gpu("rtx-pro-6000"), load_model("llama-3.1-70b"), 1)


def test_variants_are_told_apart_by_precision(perf: Path) -> None:
    other = variant_of(perf).with_name("fp8")
    other.mkdir()
    (other / "meta.yaml").write_text((variant_of(perf) / "meta.yaml").read_text())
    (other / "tp1").mkdir()
    (other / "tp1" / "dense.csv").write_text("layer,tokens,time_us\n")
    gpu, model = find_gpu("rtx-pro-6000"), load_model("llama-3.1-8b")
    assert open_profile(perf, gpu, model, 1).name.startswith("LLMServingSim")
    variant_of(perf).rename(variant_of(perf).with_name("mine"))
    with pytest.raises(UserError, match=r"several profiles would do: .*fp8.*mine"):
        open_profile(perf, gpu, model, 1)


def test_bundles_of_our_own_are_profiles_too(tmp_path: Path) -> None:
    model, bundle = load_model("llama-3.1-8b"), tmp_path / "mine.jsonl"
    points = [{"point": {"op": "gemm", "m": m, "n": 2, "k": 3}, "us": 4} for m in (8, 16, 24, 32, 48, 64, 96, 128)]
    bundle.write_text("\n".join(json.dumps(line) for line in ({"about": {"gpu": "h200"}}, *points)))
    source = open_profile(bundle, find_gpu("h200"), model, 1)
    assert isinstance(source, MeasuredSource) and source.bundle.families["gemm"][0]["us"] == 4
    with pytest.raises(UserError, match="a profile of 'h200', but the GPU is h100"):
        open_profile(bundle, find_gpu("h100"), model, 1)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"about": {"gpu": "h200"}}\n{"pint": 1}\n', "layer,tokens\n"])
def test_other_files_are_not_profiles(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(UserError, match="; a bundle of our own is"):
        open_profile(path, find_gpu("h200"), load_model("llama-3.1-8b"), 1)


def test_folders_without_profiles_are_refused(tmp_path: Path) -> None:
    for path, complaint in ((tmp_path, "holds no profile"), (tmp_path / "gone", "no such file or folder")):
        with pytest.raises(UserError, match=complaint):
            open_profile(path, find_gpu("h200"), load_model("llama-3.1-8b"), 1)


# -- the real profiles -----------------------------------------------------------------------------------------------


@needs_data
def test_decodes_read_their_cache_at_no_more_than_the_memory_gives() -> None:
    """Were cached tokens those of the whole batch, large batches would read at a hundredth of the bandwidth."""
    gpu = find_gpu("rtx-pro-6000")
    times = read_variant(LLAMA, 1).attention
    per_token = 2 * 8 * 128 * 2
    rate = {n: points.x[-1] * per_token / points.seconds[-1] for n, points in times.decodes.items()}
    assert max(rate.values()) < gpu.memory_bandwidth
    assert rate[256] > 0.9 * gpu.memory_bandwidth


@needs_data
def test_joint_attention_is_predicted_where_it_was_held_out() -> None:
    """Rows of every other decode length taken out of the table; prompts and decodes added up are far off."""
    times = read_variant(LLAMA, 1).attention
    thinned = {
        c: {b: {n: TimeCurve(p.x[::2], p.seconds[::2]) for n, p in by.items()} for b, by in contexts.items()}
        for c, contexts in times.mixed.items()
    }
    kept = TabulatedAttention(times.decodes, times.chunks, thinned, times.skew)
    errors, added = [], []
    for chunk in (64, 512, 2048):
        for before, by in times.mixed[chunk].items():
            for n, points in by.items():
                for x, seconds in zip(points.x[1:-1:2], points.seconds[1:-1:2], strict=True):
                    errors.append(kept.together(chunk, before, n, n * x) / seconds - 1)
                    added.append((times.chunk(chunk, before) + times.even(n, n * x)) / seconds - 1)
    assert np.median(np.abs(errors)) < 0.03 < 0.15 < np.median(np.abs(added))
    assert np.percentile(np.abs(errors), 90) < 0.1 < 0.4 < np.percentile(np.abs(added), 90)


@needs_data
def test_the_real_folders_answer_for_their_models() -> None:
    gpu = find_gpu("RTXPRO6000")
    for name, tp in (("llama-3.1-8b", 1), ("llama-3.1-8b", 2), ("qwen3-30b-a3b", 1), ("qwen3-30b-a3b", 2)):
        model = load_model(name)
        source = chain(open_profile(LLMSERVINGSIM / "perf", gpu, model, tp))
        for operator in operators(model, model.layers[0], tp):
            if operator.kind != "attention" and not isinstance(operator, Recurrence):
                source.rows(operator, np.array([1.0, 100, 2048]))
        rest = {what for what, by in source.chosen.items() if by == "roofline"}
        experts = {"router", "router_topk", "experts_gate_up", "experts_act", "experts_down", "experts_sum"}
        collectives = {"attention_allreduce", "ffn_allreduce"} if tp > 1 else set()
        assert rest == collectives | (experts if tp > 1 and "qwen" in name else set())


# -- benches ---------------------------------------------------------------------------------------------------------

REQUESTS = [(40, 3), (50, 1), (30, 8)]
META: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "engine_kwargs": {"tensor_parallel_size": 1, "data_parallel_size": 1, "max_num_seqs": 8, "max_model_len": None},
}


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """Three requests, answered 2 seconds after they were queued and with 0.5 seconds between tokens."""
    folder = tmp_path / "RTXPRO6000" / "Llama-3.1-8B"
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm" / "meta.json").write_text(json.dumps(META))
    npu = {"hardware": "RTXPRO6000", "npu_mem": {"mem_util": 0.8}}
    (folder / "config.json").write_text(json.dumps({"nodes": [{"instances": [npu]}]}))
    with (folder / "vllm" / "requests.jsonl").open("w") as file:
        for i, (prompt, output) in reversed(list(enumerate(REQUESTS))):
            queued = 1000.0 + i
            times = {"queued_ts": queued, "first_token_ts": queued + 2, "last_token_ts": queued + 2 + (output - 1) / 2}
            row = {"request_id": f"bench-{i}", "input_toks": prompt, "output_toks": output, "arrival_time": 1.7e9}
            file.write(json.dumps({**row, **times}) + "\n")
    write_csv(folder / "vllm" / "timeseries.csv", "t,running,waiting", [(1.0, 1, 0), (2.0, 2, 1)])
    with (tmp_path / "trace.jsonl").open("w") as file:
        for i, (prompt, output) in enumerate(REQUESTS):
            file.write(json.dumps({"input_toks": prompt, "output_toks": output, "arrival_time_ns": i * 10**9}) + "\n")
    return folder


def trace_of(bench: Path) -> Path:
    return bench.parents[1] / "trace.jsonl"


def test_a_bench_is_read_as_a_capture(bench: Path) -> None:
    capture = read_llmservingsim_bench(bench, trace_of(bench))
    answers = capture.runs[0].answers
    assert answers.at.tolist() == [0, 1, 2] and answers.ttft.tolist() == [2, 2, 2]
    assert answers.e2e.tolist() == [3, 2, 5.5]
    assert answers.tpot[[0, 2]].tolist() == [0.5, 0.5] and np.isnan(answers.tpot[1])
    assert answers.cached is None and capture.runs[0].preemptions is None
    load = capture.runs[0].load
    assert load.start.tolist() == [0, 1] and load.waiting.tolist() == [0, 1]


def test_a_scenario_takes_only_what_was_known_before(bench: Path) -> None:
    capture = read_llmservingsim_bench(bench, trace_of(bench))
    scenario = bench_scenario(capture, capture.runs[0], "rtx-pro-6000", {})
    assert scenario.model.config == "meta-llama/Llama-3.1-8B" and scenario.fleet.pools[0].tp == 1
    assert scenario.engine.max_num_seqs == 8 and scenario.engine.gpu_memory_utilization == 0.9
    assert scenario.engine.max_model_len is None and scenario.engine.async_scheduling


RESOLVED: dict[str, Any] = {
    "kv_cache": {
        "num_gpu_blocks": 3333,
        "block_size": 32,
        "gpu_memory_utilization": 0.85,
        "kv_cache_memory_bytes": None,
    },
    "hardware": {"device_name": "NVIDIA GeForce RTX 4090"},
    "resolved_config": {
        "cache_config": {"gpu_memory_utilization": 0.5, "enable_prefix_caching": False, "num_gpu_blocks": 3333},
        "scheduler_config": {"max_num_seqs": 16, "async_scheduling": False, "policy": "fcfs"},
        "parallel_config": {"tensor_parallel_size": 2, "disable_custom_all_reduce": True},
        "model_config": {"max_model_len": 4096, "dtype": "torch.bfloat16", "enforce_eager": False},
        "compilation_config": {"cudagraph_mode": [2, 1], "cudagraph_capture_sizes": "<list len=83>"},
    },
}


def rewritten(bench: Path, **fields: Any) -> Scenario:
    """The scenario of a bench with these fields in its meta.json."""
    (bench / "vllm" / "meta.json").write_text(json.dumps({**META, **fields}))
    capture = read_llmservingsim_bench(bench, trace_of(bench))
    return bench_scenario(capture, capture.runs[0], "rtx-4090", {})


def test_what_vllm_resolved_goes_before_what_it_was_given(bench: Path) -> None:
    scenario = rewritten(bench, **RESOLVED)
    engine = scenario.engine
    assert engine.gpu_memory_utilization == 0.85, "of the cache itself; never that of the other simulator"
    assert (engine.max_num_seqs, engine.block_size, engine.max_model_len) == (16, 32, 4096)
    assert not engine.async_scheduling and not engine.enable_prefix_caching and engine.disable_custom_all_reduce
    assert engine.cudagraph == "full_and_piecewise" and engine.cudagraph_capture_sizes is None
    assert scenario.fleet.pools[0].tp == 2 and scenario.model.dtype == "bfloat16"
    assert engine.num_gpu_blocks is None, "which the engine found, and we predict"
    assert read_llmservingsim_bench(bench, trace_of(bench)).meta["num_gpu_blocks"] == 3333


def test_a_gpu_is_called_as_its_driver_calls_it(bench: Path) -> None:
    for name, found in (("NVIDIA GeForce RTX 4090", "rtx-4090"), ("a card of the future", "rtx-pro-6000")):
        (bench / "vllm" / "meta.json").write_text(json.dumps({**META, "hardware": {"device_name": name}}))
        assert validate_bench(bench, None, trace_of(bench)).gpu == found


@pytest.mark.parametrize(
    ("fields", "share"),
    [
        ({"vllm_version": "0.19.0"}, 0.9),
        ({"vllm_version": "0.20.0"}, 0.92),
        ({"vllm_version": "0.28.1rc1.dev5"}, 0.92),
        ({}, 0.9),
        ({"vllm_version": "0.28.0", "engine_kwargs": {**META["engine_kwargs"], "gpu_memory_utilization": 0.7}}, 0.7),
        ({"kv_cache": {}, "resolved_config": {"cache_config": {"gpu_memory_utilization": 0.6}}}, 0.6),
    ],
)
def test_the_share_of_memory_is_the_engines_or_its_versions(bench: Path, fields: dict[str, Any], share: float) -> None:
    assert rewritten(bench, **fields).engine.gpu_memory_utilization == share


@pytest.mark.parametrize("share", [0, 1.5, True, "most", -0.1])
def test_a_share_that_is_none_is_refused(bench: Path, share: Any) -> None:
    with pytest.raises(UserError, match=r"meta\.json: gpu_memory_utilization must be above 0 and at most 1"):
        rewritten(bench, kv_cache={"gpu_memory_utilization": share})


@pytest.mark.parametrize(
    ("mode", "sizes", "expected"),
    [
        (0, [1, 2], ("none", (1, 2))),
        ("CUDAGraphMode.PIECEWISE", [8, 4, 4], ("piecewise", (4, 8))),
        ([2, 0], None, ("full_decode_only", None)),
        ("<CUDAGraphMode>", [], ("full_and_piecewise", None)),
    ],
)
def test_graphs_are_those_that_were_captured(bench: Path, mode: Any, sizes: Any, expected: tuple[Any, Any]) -> None:
    compilation = {"cudagraph_mode": mode, "cudagraph_capture_sizes": sizes}
    engine = rewritten(bench, resolved_config={"compilation_config": compilation}).engine
    assert (engine.cudagraph, engine.cudagraph_capture_sizes) == expected
    eager = rewritten(bench, engine_kwargs={**META["engine_kwargs"], "enforce_eager": True}).engine
    assert eager.enforce_eager


leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
sections = st.sampled_from(["kv_cache", "hardware", "resolved_config", "engine_kwargs", "vllm_version"])
keys = st.sampled_from(["gpu_memory_utilization", "max_num_seqs", "tensor_parallel_size", "block_size", "cache_config"])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(section=sections, value=anything | st.dictionaries(keys, anything | st.dictionaries(keys, anything), max_size=3))
def test_a_meta_that_holds_anything_is_read_or_refused(bench: Path, section: str, value: Any) -> None:
    try:
        rewritten(bench, **{section: value})
    except UserError as error:
        assert "meta.json" in str(error)


def test_preemptions_are_counted_where_they_are_recorded(bench: Path) -> None:
    write_csv(bench / "vllm" / "timeseries.csv", "t,running,waiting,preempted", [(1.0, 1, 0, 2), (2.0, 2, 1, 5)])
    assert read_llmservingsim_bench(bench, trace_of(bench)).runs[0].preemptions == 7


def test_a_bench_is_replayed_and_compared(bench: Path) -> None:
    validation = validate_bench(bench, None, trace_of(bench))
    assert validation.gpu == "rtx-pro-6000"
    compared = validation.workloads[0]
    assert compared.name == "trace" and compared.latency["e2e"]["mean"].measured == pytest.approx(3.5)
    assert compared.figures["finished"].simulated == 3
    assert compared.figures["prefix_hit_tokens"].measured is None and compared.figures["preemptions"].measured is None


@pytest.mark.parametrize(("gpu", "how"), [("RTXPRO6000", "send through the host's memory"), ("L40S", "reach each")])
def test_links_that_nothing_is_known_of_are_named(bench: Path, gpu: str, how: str) -> None:
    kwargs = {**META["engine_kwargs"], "tensor_parallel_size": 2}
    meta = {**META, "engine_kwargs": kwargs, "hardware": {"device_name": gpu}}
    (bench / "vllm" / "meta.json").write_text(json.dumps(meta))
    (note,) = [
        note for note in validate_bench(bench, None, trace_of(bench)).workloads[0].notes if "peer_access" in note
    ]
    assert how in note
    (bench / "vllm" / "meta.json").write_text(json.dumps({**META, "hardware": {"device_name": "NVIDIA H100"}}))
    assert not any("peer_access" in note for note in validate_bench(bench, None, trace_of(bench)).workloads[0].notes)


def test_ranks_of_a_bench_are_the_fleets(bench: Path) -> None:
    change = {"data_parallel_size": 2, "enable_expert_parallel": True}
    meta = {**META, "engine_kwargs": {**META["engine_kwargs"], **change}}
    (bench / "vllm" / "meta.json").write_text(json.dumps(meta))
    capture = read_llmservingsim_bench(bench, trace_of(bench))
    fleet = bench_scenario(capture, capture.runs[0], "rtx-pro-6000", {}).fleet
    assert fleet.pools[0].dp == 2 and fleet.pools[0].expert_parallel and fleet.router == "least-outstanding"
    with pytest.raises(UserError, match=r"llama-3\.1-8b: it has no routed experts"):
        validate_bench(bench, None, trace_of(bench))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            '"input_toks": 30',
            '"input_toks": 31',
            r"requests\.jsonl:1: 31 tokens in and 8 out, but .* asks for 30 and 8",
        ),
        ("bench-2", "bench-3", r"requests\.jsonl:1: request bench-3 is not one of the 3"),
        ("bench-2", "bench-1", r"requests\.jsonl:1: 30 tokens in"),
        ('"queued_ts"', '"queued"', r"requests\.jsonl:1: queued_ts is missing"),
    ],
)
def test_another_workload_than_the_bench_ran_is_refused(bench: Path, old: str, new: str, complaint: str) -> None:
    edited(bench / "vllm" / "requests.jsonl", old, new)
    with pytest.raises(UserError, match=complaint):
        read_llmservingsim_bench(bench, trace_of(bench))


def test_folders_that_are_no_benches_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no vllm/requests\.jsonl in it"):
        read_llmservingsim_bench(tmp_path, tmp_path / "trace.jsonl")


def their_summary() -> list[list[str]]:
    """Metric, statistic, measured, simulated and error in percent, by that simulator's own account."""
    lines = (BENCH / "Llama-3.1-8B" / "their-summary.txt").read_text().splitlines()[2:]
    said = [line.split() for line in lines if line]
    assert len(said) == 15
    return said


@needs_data
def test_the_measured_side_is_what_their_own_summary_says() -> None:
    answers = read_llmservingsim_bench(BENCH / "Llama-3.1-8B", TRACE).runs[0].answers
    latencies = {"TTFT": answers.ttft, "TPOT": answers.tpot, "Latency": answers.e2e}
    quantiles = {"Median": 50, "P90": 90, "P95": 95, "P99": 99}
    for metric, statistic, theirs, *_ in their_summary():
        values = latencies[metric] * 1e3
        ours = values.mean() if statistic == "Mean" else np.percentile(values, quantiles[statistic])
        assert ours == pytest.approx(float(theirs), abs=0.051)


@needs_data
def test_two_real_ranks_with_spread_experts_are_predicted_from_their_profile() -> None:
    """From the profile, with a host nobody has calibrated and links of which nothing is recorded: what they send passes
    through the host's memory. First tokens wait in a queue that grows for half of the run, six times the error of a
    step."""
    trace = LLMSERVINGSIM / "workloads" / "sharegpt-qwen3-30b-a3b-300-sps10.jsonl"
    compared = validate_bench(BENCH / "Qwen3-30B-A3B-Instruct-2507", LLMSERVINGSIM / "perf", trace).workloads[0]
    pairs = {metric: compared.latency[metric]["mean"] for metric in ("tpot", "e2e", "ttft")}
    pairs["throughput"] = compared.figures["throughput"]
    for metric, bar in {"tpot": 0.03, "e2e": 0.035, "throughput": 0.02, "ttft": 0.2}.items():
        error = pairs[metric].error
        assert error is not None and abs(error) <= bar, (metric, error)


@needs_data
def test_a_real_vllm_is_predicted_from_its_profile() -> None:
    compared = validate_bench(BENCH / "Llama-3.1-8B", LLMSERVINGSIM / "perf", TRACE).workloads[0]
    assert compared.provenance["analytic"] < 0.01
    for metric, bar in {"tpot": 0.02, "e2e": 0.02, "ttft": 0.05}.items():
        error = compared.latency[metric]["mean"].error
        assert error is not None and abs(error) <= bar
    names = {"TTFT": "ttft", "TPOT": "tpot", "Latency": "e2e", "Mean": "mean", "Median": "p50"}
    for metric, statistic, *_, theirs in their_summary():
        error = compared.latency[names[metric]][names.get(statistic, statistic.lower())].error
        assert error is not None and abs(error) <= max(0.02, abs(float(theirs.rstrip("%"))) / 100), (metric, statistic)
