"""Step times and memory: the compiled tables against the operators they were made of, and against physics."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.cost import (
    CompiledCost,
    HostTerms,
    Roofline,
    compile_cost,
    default_capture_sizes,
    graph_plan,
    plan_memory,
    work_of,
)
from steelyard.cost.collectives import Collectives, Kind
from steelyard.cost.source import MEASURED, Curve, Estimate, PrefillAttention, RowOperator
from steelyard.engine import Engine, Limits, Request
from steelyard.errors import UserError
from steelyard.hardware import find_gpu, gpu_names, topology_of
from steelyard.model import (
    AttentionOperator,
    Collective,
    Gemm,
    GroupedGemm,
    ModelSpec,
    Recurrence,
    check_tp,
    head_operators,
    kv_dtype_bytes,
    load_model,
    model_names,
    operators,
    parameters,
)
from steelyard.scenario import EngineSpec, scenario_from_dict
from support.paths import SHARED

CAPTURES = SHARED / "h200-vllm-0.26"
MODES = ("full_and_piecewise", "full_decode_only", "piecewise", "none")
WINDOWED = ("mistral-7b-v0.1", "gemma-3-4b", "gpt-oss-20b")
SOME_MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", *WINDOWED)
ENDLESS = 1 << 40  # more cached tokens than any GPU holds


def compiled(model: str = "llama-3.1-8b", gpu: str = "h100", tp: int = 1, **engine: Any) -> CompiledCost:
    spec = EngineSpec(**{"max_num_batched_tokens": 1024, **engine})
    return compile_cost(load_model(model), tp, spec, Roofline(find_gpu(gpu)))


@cache
def remembered(model: str, mode: str) -> CompiledCost:
    return compiled(model, cudagraph=mode)


def decode_seconds(cost: CompiledCost, n: int, kv: int, longest: int | None = None) -> float:
    """GPU seconds of a decode step; of an even batch unless one is longer than the others."""
    a, b, kv_max = cost.decode_line(n, kv, -(-kv // n) if longest is None else longest)
    assert kv <= kv_max
    return a + b * kv


def pieces(cost: CompiledCost, n: int) -> Iterator[tuple[int, int, float, float]]:
    """(first kv, last kv, a, b) of each piece, as an engine meets them while its cache grows."""
    kv = 0
    while kv < ENDLESS:
        a, b, kv_max = cost.decode_line(n, kv, -(-kv // n))
        yield kv, kv_max, a, b
        kv = kv_max + 1


def slow_step(
    model: ModelSpec, gpu: str, engine: EngineSpec, n: int, kv: int, chunks: Sequence[tuple[int, int]] = ()
) -> float:
    """A step's GPU seconds the obvious way: every operator of every layer asked for by itself."""
    source = Roofline(find_gpu(gpu))
    kv_bytes = kv_dtype_bytes(model, engine.kv_cache_dtype)
    tokens, sequences = n + sum(chunk for chunk, _ in chunks), n + len(chunks)
    mode = "none" if engine.enforce_eager else engine.cudagraph
    whole = not chunks and mode in ("full_and_piecewise", "full_decode_only")
    sizes = default_capture_sizes(engine.max_num_seqs, engine.max_num_batched_tokens)
    fitting = [size for size in sizes if size >= tokens]
    captured = bool(fitting) and (whole or mode in ("full_and_piecewise", "piecewise"))
    rows = fitting[0] if captured else tokens
    seconds = 0.0

    def one(operator: RowOperator, count: int) -> float:
        return float(source.rows(operator, np.array([float(count)])).seconds[0])

    for layer in model.layers:
        for _ in range(layer.count):
            for operator in operators(model, layer, 1):
                assert not isinstance(operator, Recurrence)
                if not isinstance(operator, AttentionOperator):
                    seconds += one(operator, (tokens + rows) // 2 if isinstance(operator, GroupedGemm) else rows)
                    continue
                if chunks:
                    seconds += source.prefill_attention(operator, kv_bytes).seconds(chunks)
                if n:
                    seen = kv if operator.window is None else min(kv, n * operator.window)
                    seconds += float(source.decode_attention(operator, kv_bytes).curve(n).at(np.array([seen]))[0])
    for operator in head_operators(model, 1):
        assert not isinstance(operator, AttentionOperator | Recurrence)
        per_sequence = not isinstance(operator, GroupedGemm) and operator.per == "sequence"
        seconds += one(operator, sequences if per_sequence else rows)
    return seconds


# -- the compiled tables say what the operators say ---------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["qwen3-0.6b", "gemma-3-4b", "qwen3-30b-a3b"])
def test_steps_cost_the_sum_of_their_operators(name: str, mode: Any) -> None:
    """Layers run at the padded size; the output head sees one row per request, as logits are taken after the graph."""
    engine = EngineSpec(max_num_batched_tokens=1024, cudagraph=mode)
    model, cost = load_model(name), remembered(name, mode)
    for n, each in ((1, 5), (3, 700), (100, 40), (250, 9000)):
        expected = slow_step(model, "h100", engine, n, n * each)
        assert decode_seconds(cost, n, n * each) == pytest.approx(expected, rel=1e-12)
    mixes: list[tuple[int, int, list[tuple[int, int]]]] = [
        (0, 0, [(1000, 0)]),
        (0, 0, [(7, 5000), (300, 20)]),
        (70, 70_000, [(9, 0)]),
        (200, 9000, [(600, 3000)]),
    ]
    for n, kv, chunks in mixes:
        expected = slow_step(model, "h100", engine, n, kv, chunks)
        longest = kv // max(n, 1)
        found = cost.mixed(n, kv, longest, chunks)
        assert found.gpu == pytest.approx(expected, rel=1e-12)
        assert found == cost.mixed(n, kv, longest, list(chunks)), "asking twice changes nothing"


@pytest.mark.parametrize("name", SOME_MODELS)
@pytest.mark.parametrize("mode", ["piecewise", "none"])
@settings(max_examples=60)
@given(n=st.integers(1, 255), each=st.integers(1, 40_000), more=st.integers(0, 40_000))
def test_a_decode_is_the_same_in_both_kinds_of_step(name: str, mode: str, n: int, each: int, more: int) -> None:
    """Where both are launched alike, it must not matter which of the two questions the engine asks."""
    cost = remembered(name, mode)
    chunk = [(1, 50)]  # of one token, so that rows and requests are as many as those of n + 1 decodes
    short, long = (cost.mixed(n, n * tokens, tokens, chunk) for tokens in (each, each + more))
    grown = decode_seconds(cost, n, n * (each + more)) - decode_seconds(cost, n, n * each)
    assert long.gpu - short.gpu == pytest.approx(grown, rel=1e-9, abs=1e-14)
    assert short[1:] == long[1:]
    prepare, *launch_and_tail = cost.decode_host(n + 1)
    assert short.prepare == prepare
    assert [*short[2:4]] == launch_and_tail


@pytest.mark.parametrize("name", SOME_MODELS)
@settings(max_examples=60)
@given(n=st.integers(1, 256), each=st.integers(1, 40_000))
def test_a_whole_graph_differs_from_its_pieces_on_the_host_only(name: str, n: int, each: int) -> None:
    whole, in_pieces = (remembered(name, mode) for mode in ("full_and_piecewise", "piecewise"))
    assert decode_seconds(whole, n, n * each) == decode_seconds(in_pieces, n, n * each)
    ours, theirs = whole.decode_host(n), in_pieces.decode_host(n)
    assert ours[0] == theirs[0] and ours[1] < theirs[1] and ours[2] < theirs[2]


@pytest.mark.parametrize("name", SOME_MODELS)
@pytest.mark.parametrize("mode", MODES)
def test_decode_pieces_join_without_gaps_or_steps(name: str, mode: str) -> None:
    cost, source = remembered(name, mode), Roofline(find_gpu("h100"))
    model = load_model(name)
    kv_bytes = kv_dtype_bytes(model, "auto")
    steepest = sum(
        layer.count * float(np.diff(source.decode_attention(op, kv_bytes).curve(1).at(np.array([1.0, 2.0])))[0])
        for layer in model.layers
        for op in operators(model, layer, 1)
        if isinstance(op, AttentionOperator)
    )
    for n in (1, 2, 8, 9, 100, 255, 256):
        end, last = -1, None
        for first, kv_max, a, b in pieces(cost, n):
            assert first == end + 1 and kv_max >= first
            assert a > 0 and 0 <= b <= steepest * (1 + 1e-12)
            if last is not None:
                rise = (a + b * first) - last
                assert -1e-15 <= rise <= steepest * (1 + 1e-9), f"a jump of {rise} s at kv={first}, n={n}"
            end, last = kv_max, a + b * kv_max
        assert end >= ENDLESS


def test_a_line_holds_from_any_kv_to_its_end() -> None:
    """An engine asks once and runs on to kv_max: the answer may not depend on where it asked."""
    cost = remembered("gpt-oss-20b", "full_and_piecewise")
    for first, kv_max, a, b in pieces(cost, 40):
        for kv in {first, min(first + 1, kv_max), (first + min(kv_max, ENDLESS)) // 2, kv_max}:
            assert cost.decode_line(40, kv, -(-kv // 40)) == (a, b, kv_max)


# -- the host's part ----------------------------------------------------------------------------------------------

TERMS = HostTerms(step=1.0, request=1e-3, prompt=0.5, sample=0.25, pieces=16.0, eager=64.0, experts=256.0)


def host_of(name: str, mode: Any) -> CompiledCost:
    spec = EngineSpec(max_num_batched_tokens=1024, cudagraph=mode)
    return compile_cost(load_model(name), 1, spec, Roofline(find_gpu("h100")), terms=TERMS)


def test_a_whole_graph_is_launched_at_once() -> None:
    """Only sampling comes after it, and the head is what it samples from."""
    for name in ("qwen3-0.6b", "qwen3-30b-a3b"):
        for mode in ("full_and_piecewise", "full_decode_only"):
            cost = host_of(name, mode)
            for n in (1, 9, 256):
                prepare, launch, tail = cost.decode_host(n)
                assert prepare == pytest.approx(1.0 + n * 1e-3)
                assert launch == 0.25
                assert tail == pytest.approx(head_seconds(name, n))


def test_pieces_are_launched_layer_by_layer() -> None:
    """28 layers, with or without experts inside the pieces; 48 of the other model."""
    for name, layers in (("qwen3-0.6b", 28), ("qwen3-30b-a3b", 48)):
        cost = host_of(name, "piecewise")
        for n in (1, 9, 256):
            prepare, launch, _ = cost.decode_host(n)
            assert prepare == pytest.approx(1.0 + n * 1e-3)
            assert launch == layers * 16.0 + 0.25
        mixed = host_of(name, "full_and_piecewise").mixed(100, 5000, 50, [(40, 0), (7, 0)])
        assert mixed.prepare == pytest.approx(1.0 + 102 * 1e-3), "prompts are requests, too"
        assert mixed.launch == layers * 16.0 + 0.25


def test_eager_steps_are_launched_kernel_by_kernel() -> None:
    """All 48 layers of the one model have experts, 26 of the other's 27, and none of the third."""
    for name, launch in (
        ("qwen3-30b-a3b", 48 * 256.0),
        ("deepseek-v2-lite", 1 * 64.0 + 26 * 256.0),
        ("qwen3-0.6b", 28 * 64.0),
    ):
        assert host_of(name, "none").decode_host(5)[1] == launch + 0.25
        assert host_of(name, "full_decode_only").mixed(5, 500, 100, [(9, 0)]).launch == launch + 0.25
        above = host_of(name, "full_and_piecewise").mixed(5, 500, 100, [(600, 0)])  # the largest graph has 512 tokens
        assert above.launch == launch + 0.25


@pytest.mark.parametrize("mode", ["piecewise", "none"])
@pytest.mark.parametrize("name", ["qwen3-0.6b", "qwen3-30b-a3b"])
def test_the_last_layer_and_the_head_are_left_after_the_last_launch(name: str, mode: str) -> None:
    """Of the layers' time without attention an equal share each; 100 decodes run as 104 where that is captured."""
    cost, model = host_of(name, mode), load_model(name)
    rows = np.array([104.0 if mode == "piecewise" else 100.0])
    source = Roofline(find_gpu("h100"))
    layer = sum(
        layer.count * float(source.rows(operator, rows).seconds[0]) / model.num_layers
        for layer in model.layers
        for operator in operators(model, layer, 1)
        if not isinstance(operator, AttentionOperator | Recurrence)
    )
    left = cost.decode_host(100)[2] - head_seconds(name, 100)
    assert layer <= left * (1 + 1e-9) and left == pytest.approx(layer, rel=0.05), "embedding and final norm aside"


def head_seconds(name: str, requests: int) -> float:
    source = Roofline(find_gpu("h100"))
    return sum(
        float(source.rows(operator, np.array([float(requests)])).seconds[0])
        for operator in head_operators(load_model(name), 1)
        if not isinstance(operator, AttentionOperator | GroupedGemm | Recurrence) and operator.per == "sequence"
    )


@pytest.mark.parametrize("mode", MODES)
def test_what_is_left_at_the_end_is_a_part_of_the_gpus_work(mode: str) -> None:
    """Else a step could end later than all its kernels back to back after the last launch."""
    for name in SOME_MODELS:
        cost = remembered(name, mode)
        for n in (1, 8, 255):
            assert 0 < cost.decode_host(n)[2] < decode_seconds(cost, n, n)
            mixed = cost.mixed(n, n, 1, [(2, 0)])
            assert 0 < mixed.tail < mixed.gpu


# -- uneven batches -----------------------------------------------------------------------------------------------

KNOTS = (10, 100, 1000, 2500)  # cached tokens of each request


@dataclass(frozen=True)
class Skewed:
    """A roofline whose decode attention is a bent curve, with a share of the way to the longest request's."""

    skew: float
    roofline: Roofline
    name: str = "skewed"

    def rows(self, operator: RowOperator, rows: np.ndarray) -> Estimate | None:
        return self.roofline.rows(operator, rows)

    def decode_attention(self, operator: AttentionOperator, kv_bytes: float) -> Skewed:
        return self

    def curve(self, requests: int) -> Curve:
        knots = tuple(float(requests * knot) for knot in (0, *KNOTS))
        return Curve(knots, (2e-5, 3e-5, 8e-5, 2e-4, 6e-4), MEASURED, self.skew)

    def prefill_attention(self, operator: AttentionOperator, kv_bytes: float) -> PrefillAttention | None:
        return self.roofline.prefill_attention(operator, kv_bytes)


@cache
def skewed(skew: float) -> CompiledCost:
    spec = EngineSpec(max_num_batched_tokens=1024)
    return compile_cost(load_model("qwen3-0.6b"), 1, spec, Skewed(skew, Roofline(find_gpu("h100"))))


UNEVEN = settings(max_examples=200, derandomize=True)
LENGTHS = st.lists(st.one_of(st.integers(1, 120), st.integers(1, 6000)), min_size=1, max_size=40)


@UNEVEN
@given(skew=st.sampled_from([0.0, 0.25, 0.7, 1.0]), lengths=LENGTHS)
def test_an_uneven_batch_lies_between_an_even_one_and_one_of_the_longest(skew: float, lengths: list[int]) -> None:
    n, kv, longest = len(lengths), sum(lengths), max(lengths)
    cost, even = skewed(skew), skewed(0.0)
    low, high = decode_seconds(even, n, kv), decode_seconds(even, n, n * longest)
    found = decode_seconds(cost, n, kv, longest)
    assert low * (1 - 1e-12) <= found <= high * (1 + 1e-12)
    assert found == pytest.approx(low + skew * (high - low), rel=1e-12)
    mixed = (each.mixed(n, kv, longest, [(30, 0)]).gpu for each in (cost, even))
    assert next(mixed) - next(mixed) == pytest.approx(found - low, rel=1e-9, abs=1e-14), "in any step"


@UNEVEN
@given(n=st.integers(1, 64), each=st.integers(1, 6000))
def test_an_even_batch_is_not_skewed_at_all(n: int, each: int) -> None:
    assert skewed(0.7).decode_line(n, n * each, each) == skewed(0.0).decode_line(n, n * each, each)


@UNEVEN
@given(skew=st.sampled_from([0.25, 1.0]), lengths=LENGTHS)
def test_a_batch_that_grows_together_stays_on_its_line_to_the_end(skew: float, lengths: list[int]) -> None:
    """To the bit, since an engine may ask once for a whole stretch or again at each step; and no jump after it."""
    cost = skewed(skew)
    n, kv, longest = len(lengths), sum(lengths), max(lengths)
    a, b, kv_max = cost.decode_line(n, kv, longest)
    assert kv <= kv_max and b >= 0
    steps = (kv_max - kv) // n
    ways = ((kv, n, n), (longest, 1, 1))  # of passing a knot: all requests together, and the longest by itself
    if kv_max >= ENDLESS:
        assert not any(tokens <= scale * knot for tokens, scale, _ in ways for knot in KNOTS)
    else:
        for last in (steps, steps + 1):
            passed = any(
                tokens <= scale * knot < tokens + last * step for tokens, scale, step in ways for knot in KNOTS
            )
            assert passed is (last > steps), "the line ends with the last step before a knot"
        beyond = decode_seconds(cost, n, kv + (steps + 1) * n, longest + steps + 1)
        steepest = max(slope for _, _, _, slope in pieces(cost, n))
        rise = beyond - (a + b * (kv + steps * n))
        assert -1e-15 <= rise <= n * steepest * (1 + 1e-9)
    for grown in {0, 1, steps // 2, steps - 1, steps}:
        if 0 <= grown <= steps:
            assert cost.decode_line(n, kv + grown * n, longest + grown) == (a, b, kv_max)


# -- more work never takes less time ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOME_MODELS)
@pytest.mark.parametrize("mode", ["full_and_piecewise", "none"])
def test_more_decodes_never_take_less_time(name: str, mode: str) -> None:
    cost = remembered(name, mode)
    for kv in (256, 20_000, 2_000_000):
        times = [decode_seconds(cost, n, kv) for n in range(1, 257)]
        assert all(after >= before - 1e-15 for before, after in pairwise(times))


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-4b"])
@pytest.mark.parametrize("before", [0, 3000])
def test_a_longer_chunk_never_takes_less_time(name: str, before: int) -> None:
    """If it did, padding the shorter one would be the better kernel."""
    cost = compiled(name, max_num_batched_tokens=4096)
    times = [cost.mixed(0, 0, 0, [(tokens, before)]).gpu for tokens in range(1, 4097)]
    drops = [
        (tokens, shorter, longer)
        for tokens, (shorter, longer) in enumerate(pairwise(times), 1)
        if longer < shorter * (1 - 1e-9)
    ]
    assert not drops, f"{len(drops)} drops, the first from {drops[0][0]} tokens on: {drops[0]}"


def test_more_context_never_takes_less_time() -> None:
    for name in SOME_MODELS:
        cost = remembered(name, "full_and_piecewise")
        times = [cost.mixed(10, 10_000, 1000, [(100, before)]).gpu for before in range(0, 20_000, 97)]
        assert all(after >= before - 1e-15 for before, after in pairwise(times))


def test_every_step_of_a_capture_plateau_costs_the_same_rows() -> None:
    """9 to 16 tokens run as 16: only the output head sees the difference."""
    cost = remembered("llama-3.1-8b", "full_and_piecewise")
    plateau = [decode_seconds(cost, n, 100_000) for n in range(9, 17)]
    assert max(plateau) / min(plateau) < 1.002
    assert decode_seconds(cost, 17, 100_000) > max(plateau)


def test_short_chunks_of_many_requests_share_the_gpu() -> None:
    """Verifying three drafts each reads the cache once, as a plain decode does; 64 such chunks are no 64 lone ones."""
    cost = remembered("llama-3.1-8b", "full_and_piecewise")
    plain = decode_seconds(cost, 64, 64 * 2000)
    verify = cost.mixed(0, 0, 0, [(4, 2000)] * 64).gpu
    assert verify < 2 * plain, f"{verify * 1e3:.1f} ms against {plain * 1e3:.1f} ms for one token each"


@pytest.mark.parametrize("mode", MODES)
def test_synchronous_scheduling_costs_at_least_as_much(mode: str) -> None:
    cost = remembered("llama-3.1-8b", mode)

    def done(asynchronous: bool) -> list[float]:
        engine = Engine(Limits(10_000, 4096, async_scheduling=asynchronous), cost)
        for i in range(20):
            engine.submit(Request(i, 0.0, prompt=33, output=30), 0.0)
        engine.advance(math.inf)
        return list(engine.log.ends)

    overlapped, serial = done(True), done(False)
    assert len(serial) == len(overlapped) == 30
    assert serial[-1] > overlapped[-1]


# -- physics ------------------------------------------------------------------------------------------------------


def dense_bytes_read(model: ModelSpec) -> float:
    """The least that a step of one token must read: all weights it passes through, at their smallest."""
    size = model.dtype_bytes if model.quantization is None else 0.5
    return parameters(model).active_without_embedding * size


@pytest.mark.parametrize("name", sorted(model_names()))
def test_every_model_of_the_catalog_compiles_within_the_rooflines(name: str) -> None:
    gpu, model = find_gpu("b200"), load_model(name)
    engine = EngineSpec(max_num_batched_tokens=512)
    tp = next(tp for tp in (1, 2, 4, 8) if fits(model, "b200", tp, engine))
    cost = compile_cost(model, tp, engine, Roofline(gpu))
    peak = gpu.peak(model.compute if model.quantization is None else model.quantization.compute or model.compute)
    head = model.vocab * model.hidden
    for n, kv in ((1, 1), (256, 100_000)):
        seconds = decode_seconds(cost, n, kv)
        assert math.isfinite(seconds)
        assert seconds >= dense_bytes_read(model) / tp / gpu.memory_bandwidth
    for tokens in (1, 512):
        seconds = cost.mixed(0, 0, 0, [(tokens, 1000)]).gpu
        flops = 2 * tokens * (parameters(model).active_without_embedding - head) / tp
        assert math.isfinite(seconds) and seconds >= flops / peak
    assert all(map(math.isfinite, cost.mixed(3, 3000, 1000, [(64, 64)])))


def fits(model: ModelSpec, gpu: str, tp: int, engine: EngineSpec) -> bool:
    try:
        check_tp(model, tp)
        plan_memory(model, find_gpu(gpu), tp, engine)
    except UserError:
        return False
    return True


def test_decode_reads_the_cache_at_no_more_than_peak_bandwidth() -> None:
    model, gpu = load_model("llama-3.1-8b"), find_gpu("h100")
    cost = remembered("llama-3.1-8b", "full_and_piecewise")
    per_token = 2 * 8 * 128 * 2 * 32  # k and v, heads, dims, bytes, layers
    extra = decode_seconds(cost, 64, 400_000) - decode_seconds(cost, 64, 200_000)
    assert extra >= 200_000 * per_token / gpu.memory_bandwidth
    assert sum(part.kv_bytes for part in work_of(model, gpu, 1, "auto").attention) == per_token
    half = compiled("llama-3.1-8b", kv_cache_dtype="fp8")
    assert decode_seconds(half, 64, 400_000) - decode_seconds(half, 64, 200_000) == pytest.approx(extra / 2)


def test_windows_bound_what_decode_reads() -> None:
    """Every layer of this model sees at most 4,096 tokens of a request."""
    cost = remembered("mistral-7b-v0.1", "full_and_piecewise")
    assert decode_seconds(cost, 10, 10 * 4096) > decode_seconds(cost, 10, 10 * 3000)
    assert decode_seconds(cost, 10, 10 * 4096) == pytest.approx(decode_seconds(cost, 10, 10 * 30_000), rel=1e-12)


def test_experts_are_paid_for_when_touched() -> None:
    """128 experts, 8 per token: one token reads 8, a few hundred read them all."""
    model = load_model("qwen3-30b-a3b")
    grouped = [op for op in operators(model, model.layers[0], 1) if isinstance(op, GroupedGemm)]
    assert [(op.experts, op.top_k) for op in grouped] == [(128, 8), (128, 8)]
    source, gpu = Roofline(find_gpu("h200")), find_gpu("h200")
    for op in grouped:
        times = source.rows(op, np.array([0.0, 1, 2, 4, 8, 16, 32, 64, 128, 256])).seconds
        assert times[0] == 0 and (np.diff(times) > 0).all()
        one, all_of_them = (
            count * op.k * op.n * op.weight_bytes / gpu.memory_bandwidth for count in (op.top_k, op.experts)
        )
        assert one <= times[1] <= 2 * one + 5e-6
        assert times[1] + times[1] > times[2] > times[1], "two tokens share some experts, but not all"
        assert 0.999 * all_of_them <= times[-1] <= 2 * all_of_them
    dense, sparse = (compiled(name, "h200") for name in ("llama-3.1-8b", "qwen3-30b-a3b"))
    growth = [decode_seconds(cost, 64, 64_000) / decode_seconds(cost, 1, 1000) for cost in (dense, sparse)]
    assert growth[1] > 3 * growth[0]


# -- tensor parallelism -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", sorted(gpu_names()))
def test_collectives_grow_with_size_and_ranks_and_are_free_alone(gpu: str) -> None:
    chip = find_gpu(gpu)
    sizes = np.logspace(2, 9, 50)
    collectives = Collectives(topology_of(chip))
    kinds: tuple[Kind, ...] = ("allreduce", "allgather")
    for kind in kinds:
        assert (collectives.seconds(kind, 1, sizes) == 0).all()
        two, four, eight = (collectives.seconds(kind, ranks, sizes) for ranks in (2, 4, 8))
        assert (np.diff(two) > 0).all() and (two > 0).all()
        # NCCL does not use its low-latency protocol for two ranks through the host's memory.
        far = slice(None) if chip.peer_access else sizes >= 1e6
        assert (four >= two)[far].all() and (eight >= four).all()
        assert (two[-1:] >= sizes[-1:] / 2 / chip.peer_bandwidth).all(), "faster than the link"


def test_two_gpus_halve_the_matrices_and_add_collectives() -> None:
    model, gpu = load_model("llama-3.1-8b"), find_gpu("h100")
    layer = model.layers[0]
    rows = np.array([64.0])

    def seconds(tp: int, kind: type[Gemm] | type[Collective]) -> float:
        found = [op for op in operators(model, layer, tp) if isinstance(op, kind)]
        return float(sum(Roofline(gpu).rows(op, rows).seconds[0] for op in found))

    assert seconds(2, Gemm) == pytest.approx(seconds(1, Gemm) / 2, rel=0.1)
    assert seconds(1, Collective) == 0
    assert len([op for op in operators(model, layer, 2) if isinstance(op, Collective)]) == 2
    assert seconds(2, Collective) > 10e-6
    one, two = compiled(), compiled(tp=2)
    for n, kv in ((1, 1000), (64, 64_000), (256, 256_000)):
        alone, both = decode_seconds(one, n, kv), decode_seconds(two, n, kv)
        assert alone / 2 < both < alone
    many, few = compiled(max_num_batched_tokens=8192), compiled(tp=2, max_num_batched_tokens=8192)
    alone, both = (cost.mixed(0, 0, 0, [(8192, 0)]).gpu for cost in (many, few))
    assert alone / 2 < both < alone


# -- CUDA graphs --------------------------------------------------------------------------------------------------

TO_256 = (1, 2, 4, *(8 * i for i in range(1, 33)))


@pytest.mark.parametrize(
    ("seqs", "tokens", "expected"),
    [
        (128, 2048, TO_256),
        (256, 8192, (*TO_256, *(256 + 16 * i for i in range(1, 17)))),
        (1024, 8192, (*TO_256, *(256 + 16 * i for i in range(1, 17)))),
        (8, 8192, (1, 2, 4, 8, 16)),
        (10, 8192, (1, 2, 4, 8, 16)),
        (3, 8192, (1, 2, 4)),
        (1, 8192, (1, 2)),
        (256, 300, (*TO_256, 272, 288)),
    ],
)
def test_capture_sizes_follow_vllms_rule(seqs: int, tokens: int, expected: tuple[int, ...]) -> None:
    assert default_capture_sizes(seqs, tokens) == expected


def captures() -> list[Path]:
    return sorted(CAPTURES.glob("*/meta.json"))


@pytest.mark.skipif(not captures(), reason="no captures of a real engine in ../shared/data")
@pytest.mark.parametrize("path", captures(), ids=lambda path: path.parent.name)
def test_a_real_engine_captured_these_sizes_and_had_these_blocks(path: Path) -> None:
    meta = json.loads(path.read_text())
    engine = EngineSpec(
        max_num_seqs=meta["max_num_seqs"],
        max_num_batched_tokens=meta["max_num_batched_tokens"],
        gpu_memory_utilization=meta["gpu_memory_utilization"],
        block_size=meta["block_size"],
    )
    plan = graph_plan(engine)
    assert list(plan.sizes) == meta["capture_sizes"]
    memory = plan_memory(load_model(str(path.parent)), find_gpu("h200"), 1, engine)
    assert memory.blocks + 1 == pytest.approx(meta["num_gpu_blocks"], rel=0.005)
    assert memory.summary()["num_gpu_blocks"] == memory.blocks + 1


@pytest.mark.parametrize(
    ("mode", "decode_only", "mixed"),
    [
        ("full_and_piecewise", 16, 16),
        ("full_decode_only", 16, None),
        ("full", 16, 16),
        ("piecewise", 16, 16),
        ("none", None, None),
    ],
)
def test_which_steps_replay_a_graph(mode: Any, decode_only: int | None, mixed: int | None) -> None:
    plan = graph_plan(EngineSpec(cudagraph=mode))
    assert plan.padded(9, decode_only=True) == decode_only
    assert plan.padded(9, decode_only=False) == mixed
    assert plan.padded(513, decode_only=True) is None and plan.padded(513, decode_only=False) is None


def test_an_eager_engine_replays_no_graph() -> None:
    eager = graph_plan(EngineSpec(enforce_eager=True))
    assert eager.sizes == () and eager.padded(9, decode_only=True) is None


def test_given_capture_sizes_are_used() -> None:
    plan = graph_plan(EngineSpec(cudagraph_capture_sizes=(3, 50)))
    assert [plan.padded(n, decode_only=True) for n in (1, 3, 4, 50, 51)] == [3, 3, 50, 50, None]
    cost = compiled(cudagraph_capture_sizes=(3, 50))
    assert decode_seconds(cost, 4, 9000) == pytest.approx(decode_seconds(cost, 50, 9000), rel=0.03)


def test_capture_sizes_beyond_the_largest_step_do_no_harm() -> None:
    """No step has more tokens than max_num_batched_tokens; a larger graph must be refused clearly, or never used."""
    try:
        scenario_from_dict(
            {
                "model": "llama-3.1-8b",
                "fleet": {"gpu": "h100"},
                "engine": {"max_num_batched_tokens": 1024, "cudagraph_capture_sizes": [8, 4096]},
                "workload": {"arrivals": {"kind": "burst"}, "requests": 1, "prompt": 1, "output": 1},
            }
        )
    except UserError as error:
        assert "cudagraph_capture_sizes" in str(error)
        return
    cost = compiled(cudagraph_capture_sizes=(8, 4096))
    assert math.isfinite(decode_seconds(cost, 9, 9)) and math.isfinite(cost.mixed(0, 0, 0, [(900, 0)]).gpu)


def test_eager_steps_pay_for_every_kernel() -> None:
    whole, in_pieces, none = (
        remembered("qwen3-0.6b", mode).decode_host(1)[1] for mode in ("full_and_piecewise", "piecewise", "none")
    )
    assert whole < in_pieces < none
    eager, same = compiled("qwen3-0.6b", enforce_eager=True), remembered("qwen3-0.6b", "none")
    assert eager.decode_host(1) == same.decode_host(1) and eager.decode_line(1, 1, 1) == same.decode_line(1, 1, 1)


# -- memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "seqs", "tokens", "measured"),
    [
        ("llama-3.1-8b", 256, 8192, 57_489),
        ("llama-3.1-8b", 128, 2048, 57_537),
        ("qwen3-30b-a3b", 128, 2048, 48_196),
    ],
)
def test_blocks_are_those_of_a_real_h200(name: str, seqs: int, tokens: int, measured: int) -> None:
    engine = EngineSpec(max_num_seqs=seqs, max_num_batched_tokens=tokens)
    memory = plan_memory(load_model(name), find_gpu("h200"), 1, engine)
    assert memory.blocks + 1 == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b"])
def test_the_parts_of_memory_stay_within_the_whole(name: str, tp: int) -> None:
    engine = EngineSpec()
    model, gpu = load_model(name), find_gpu("h100")
    if not fits(model, "h100", tp, engine):
        check_tp(model, 1)
        pytest.skip(f"{name} does not split {tp} ways")
    memory = plan_memory(model, gpu, tp, engine)
    parts = memory.weights + memory.activations + memory.runtime
    assert parts + (memory.blocks + 1) * memory.block_bytes <= memory.usable <= memory.total
    assert parts + (memory.blocks + 2) * memory.block_bytes > memory.usable, "another block would fit"
    assert memory.summary()["kv_bytes"] == memory.kv == memory.blocks * memory.block_bytes


def test_given_blocks_are_taken_or_refused() -> None:
    model, gpu = load_model("llama-3.1-8b"), find_gpu("h100")
    engine = EngineSpec(num_gpu_blocks=1000)
    assert plan_memory(model, gpu, 1, engine).blocks == 999
    engine = EngineSpec(num_gpu_blocks=1_000_000)
    with pytest.raises(UserError, match=r"num_gpu_blocks.*1000000.*at most \d+"):
        plan_memory(model, gpu, 1, engine)


def test_a_model_that_does_not_fit_is_refused_with_advice() -> None:
    engine = EngineSpec()
    with pytest.raises(UserError) as refused:
        plan_memory(load_model("llama-3.1-70b"), find_gpu("h100"), 1, engine)
    message = str(refused.value)
    assert "llama-3.1-70b" in message and "H100" in message
    assert re.search(r"1[23]\d\.\d GiB", message), "its weights"
    assert re.search(r"7\d\.\d GiB", message), "what the GPU offers"
    assert "fleet.tp=4" in message


@pytest.mark.parametrize("gpu", ["h100", "a100-40", "l40s", "rtx-4090", "mi300x"])
def test_advice_on_what_would_fit_is_true(gpu: str) -> None:
    engine = EngineSpec()
    untrue = []
    for name in model_names():
        model = load_model(name)
        try:
            plan_memory(model, find_gpu(gpu), 1, engine)
        except UserError as error:
            advised = re.search(r"fleet\.tp=(\d+) would fit", str(error))
            if advised and not fits(model, gpu, int(advised[1]), engine):
                untrue.append(f"{name}: {advised[0]}")
    assert not untrue


def test_a_cache_given_in_bytes_holds_that_many_whatever_the_share() -> None:
    """vLLM takes it without asking for the share, so it may be in what others would leave free."""
    model, gpu = load_model("llama-3.1-8b"), find_gpu("rtx-4090")
    block = 16 * 2 * 8 * 128 * 2 * 32
    for share in (0.92, 0.7):
        engine = EngineSpec(kv_cache_memory_bytes=1000 * block + 1, gpu_memory_utilization=share)
        assert plan_memory(model, gpu, 1, engine).summary()["num_gpu_blocks"] == 1000
    by_share = plan_memory(model, gpu, 1, EngineSpec()).kv
    assert plan_memory(model, gpu, 1, EngineSpec(kv_cache_memory_bytes=by_share + 20 * block)).kv > by_share
    with pytest.raises(UserError, match=r"engine\.kv_cache_memory_bytes: 4096 blocks take 8\.0 GiB, but only"):
        plan_memory(model, gpu, 1, EngineSpec(kv_cache_memory_bytes=4096 * block))
    with pytest.raises(UserError, match="are less than two blocks"):
        plan_memory(model, gpu, 1, EngineSpec(kv_cache_memory_bytes=block + 1))
    with pytest.raises(ValueError, match="num_gpu_blocks says this; give one of the two"):
        EngineSpec(kv_cache_memory_bytes=1000 * block, num_gpu_blocks=900)


def test_a_step_that_is_too_large_is_not_blamed_on_the_weights() -> None:
    """Of 7 GiB, 2.3 GiB of weights leave enough; it is the activations of a quarter of a million tokens that do not."""
    engine = EngineSpec(max_num_batched_tokens=262_144, gpu_memory_utilization=0.3)
    with pytest.raises(UserError, match="max_num_batched_tokens"):
        plan_memory(load_model("llama-3.2-1b"), find_gpu("rtx-4090"), 1, engine)
