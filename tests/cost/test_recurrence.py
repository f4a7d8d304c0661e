"""Times of recurrent, sparse and chunked layers: what they depend on, and what they add up to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.cost import CompiledCost, Roofline
from steelyard.cost.errors import operator_errors
from steelyard.cost.local import ChunkedPrefill, cut
from steelyard.cost.scaled import Scaled
from steelyard.cost.source import ANALYTIC, Decodes, FirstOf
from steelyard.hardware import find_gpu
from steelyard.model import AttentionOperator, Recurrence, load_model, operators
from steelyard.sim.prepared import prepare

H200 = find_gpu("h200")
SOURCE = Roofline(H200)


def recurrence(name: str, tp: int = 1) -> Recurrence:
    model = load_model(name)
    return next(op for layer in model.layers for op in operators(model, layer, tp) if isinstance(op, Recurrence))


def attention(name: str, kind: str, tp: int = 8) -> AttentionOperator:
    model = load_model(name)
    found = (op for op in operators(model, model.layers[0], tp) if isinstance(op, AttentionOperator))
    return next(op for op in found if op.attention == kind)


BOTH = pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "nemotron-nano-9b-v2"])


# --- recurrent state -------------------------------------------------------------------------------------------------


@BOTH
def test_a_decode_moves_its_state_whatever_the_length(name: str) -> None:
    operator = recurrence(name)
    curve = SOURCE.decode_recurrence(operator).curve(64)
    assert set(curve.at(np.array([1.0, 1e3, 1e6]))) == set(curve.seconds)
    assert curve.provenance == ANALYTIC
    moved = 64 * (2 * operator.state_bytes + operator.token_bytes)
    assert curve.seconds[0] == pytest.approx(moved / (0.75 * H200.memory_bandwidth), abs=3e-6)


@BOTH
def test_prompts_take_longer_with_tokens_and_not_with_context(name: str) -> None:
    prefill = SOURCE.prefill_recurrence(recurrence(name))
    times = [prefill.seconds([(tokens, 0)]) for tokens in (1, 100, 1000, 10_000, 100_000)]
    assert times == sorted(times) and times[-1] > 50 * times[1]
    assert prefill.seconds([(1000, 50_000)]) == prefill.seconds([(1000, 0)])


@BOTH
def test_a_prompt_takes_at_least_its_arithmetic_at_the_peak(name: str) -> None:
    """Every token updates each state by a product with its value, and reads it by another."""
    operator = recurrence(name)
    least = 8192 * operator.heads * 4 * operator.head_dim * operator.state_dim / H200.peak("bf16")
    assert least < SOURCE.prefill_recurrence(operator).seconds([(8192, 0)]) < 40 * least


def test_chunks_of_a_gated_delta_net_follow_each_other() -> None:
    """Eight requests keep more multiprocessors busy than one with as many tokens; of Mamba-2 all chunks are at once."""
    for name, faster in (("qwen3-next-80b-a3b", True), ("nemotron-nano-9b-v2", False)):
        prefill = SOURCE.prefill_recurrence(recurrence(name, 4))
        one, eight = prefill.seconds([(8192, 0)]), prefill.seconds([(1024, 0)] * 8)
        assert (eight < 0.95 * one) == faster, name


@BOTH
def test_decodes_beside_a_prompt_have_kernels_of_their_own(name: str) -> None:
    operator = recurrence(name)
    prefill, decode = SOURCE.prefill_recurrence(operator), SOURCE.decode_recurrence(operator)
    both = prefill.together([(500, 0)], Decodes(32, 32_000, 1000))
    assert both == prefill.seconds([(500, 0)]) + decode.curve(32).seconds[0]


def test_times_are_scaled_as_a_family_of_their_own() -> None:
    operator = recurrence("qwen3-next-80b-a3b")
    twice = FirstOf((Scaled(SOURCE, {"recurrence": 2.0, "attention": 3.0}),))
    assert twice.decode_recurrence(operator).curve(8).seconds[0] == 2 * SOURCE.decode_recurrence(operator).seconds(8)
    chunks = [(512, 0)]
    assert twice.prefill_recurrence(operator).seconds(chunks) == 2 * SOURCE.prefill_recurrence(operator).seconds(chunks)


def test_a_step_of_a_hybrid_is_analytic_in_its_recurrent_layers_only() -> None:
    prepared = prepare("qwen3-next-80b-a3b", "h200", 2)
    assert prepared.cost.families["recurrence"] == {"roofline"}
    assert prepared.cost.families["attention"] == {"profile of NVIDIA H200"}


def test_longer_requests_cost_a_hybrid_what_its_few_attention_layers_read() -> None:
    hybrid, plain = prepare("qwen3-next-80b-a3b", "h200", 2).cost, prepare("qwen3-30b-a3b", "h200", 2).cost

    def more(cost: object) -> float:
        line = getattr(cost, "decode_line")  # noqa: B009
        (a, b, _), (c, d, _) = line(32, 32 * 1000, 1000), line(32, 32 * 9000, 9000)
        return float(c + d * 32 * 9000 - a - b * 32 * 1000)

    per_token = 12 * 2 * 256 / (48 * 2 * 2 * 128)  # values per GPU, with a copy of the only KV head of each
    assert more(hybrid) / more(plain) == pytest.approx(per_token, rel=0.5)


# --- sparse attention ------------------------------------------------------------------------------------------------


def test_sparse_decodes_cost_no_more_beyond_the_best_tokens_but_their_scores_do() -> None:
    cost = prepare("deepseek-v3.2", "h200", 8).cost
    dense = prepare("deepseek-v3", "h200", 8, cost={"source": "analytic"}).cost

    def step(of: object, length: int) -> float:
        a, b, _ = getattr(of, "decode_line")(16, 16 * length, length)  # noqa: B009
        return float(a + b * 16 * length)

    indexer = attention("deepseek-v3.2", "indexer")
    key = max(132 / (0.80 * H200.memory_bandwidth), indexer.decode.flops_per_pair / (0.60 * H200.peak("fp8"))) + 8 / (
        0.75 * H200.memory_bandwidth
    )
    assert step(cost, 32_768) - step(cost, 16_384) == pytest.approx(61 * 16 * 16_384 * key, rel=1e-6)
    assert step(cost, 65_536) - step(cost, 2048) < 0.5 * (step(dense, 65_536) - step(dense, 2048))


def test_sparse_kernels_work_on_whole_groups_of_heads() -> None:
    """64 heads take as long as 16; Blackwell's kernels are padded to 128."""

    def prompt(gpu: str, tp: int) -> float:
        source = Roofline(find_gpu(gpu))
        return source.prefill_attention(attention("deepseek-v3.2", "sparse", tp), 2.0).seconds([(4096, 50_000)])

    assert prompt("h200", 8) == prompt("h200", 2) == pytest.approx(prompt("h200", 1) / 2, rel=1e-3)
    assert prompt("b200", 8) == prompt("b200", 1)


def test_sparse_prompts_read_the_best_tokens_of_each_query() -> None:
    prefill = SOURCE.prefill_attention(attention("deepseek-v3.2", "sparse"), 2.0)
    assert prefill.seconds([(4096, 100_000)]) == pytest.approx(prefill.seconds([(4096, 50_000)]), rel=1e-9)
    scores = SOURCE.prefill_attention(attention("deepseek-v3.2", "indexer"), 2.0)
    assert scores.seconds([(4096, 100_000)]) > 1.9 * scores.seconds([(4096, 50_000)])


# --- chunks ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 500)), min_size=1, max_size=4), st.integers(1, 120))
def test_parts_see_what_their_tokens_would(chunks: list[tuple[int, int]], size: int) -> None:
    """Each token sees those before it in its own chunk, and itself."""
    expected = sum(place % size + 1 for tokens, before in chunks for place in range(before, before + tokens))
    parts = cut(chunks, size)
    assert sum(tokens * inside + tokens * (tokens + 1) // 2 for tokens, inside in parts) == expected
    assert sum(tokens for tokens, _ in parts) == sum(tokens for tokens, _ in chunks)
    assert all(inside + tokens <= size for tokens, inside in parts)


class Recorded:
    """Prefill attention that notes what it was asked."""

    provenance = ANALYTIC

    def __init__(self) -> None:
        self.asked: list[object] = []

    def seconds(self, chunks: Sequence[tuple[int, int]]) -> float:
        self.asked.append(list(chunks))
        return 1.0

    def together(self, chunks: Sequence[tuple[int, int]], decodes: Decodes) -> float:
        self.asked.append((list(chunks), decodes))
        return 2.0


def test_decodes_beside_chunks_see_one_chunk_at_most() -> None:
    kernel = Recorded()
    local = ChunkedPrefill(kernel, 100)
    assert local.seconds([(150, 80)]) == 1.0
    assert local.together([(50, 0)], Decodes(4, 1000, 700)) == 2.0
    assert kernel.asked == [[(20, 80), (100, 0), (30, 0)], ([(50, 0)], Decodes(4, 400, 100))]


def test_llama_4_prompts_grow_with_the_square_in_a_quarter_of_the_layers_only() -> None:
    cost = prepare("llama-4-scout", "h200", 8, {"max_model_len": 500_000}).cost
    assert isinstance(cost, CompiledCost)
    near, far = (cost.mixed(0, 0, 0, [(8192, before)]).gpu for before in (0, 262_144))
    whole = [
        part for part in cost.attention if isinstance(part.operator, AttentionOperator) and not part.operator.chunked
    ]
    more = sum(
        part.layers * (part.prefill.seconds([(8192, 262_144)]) - part.prefill.seconds([(8192, 0)])) for part in whole
    )
    assert sum(part.layers for part in whole) == 12
    assert far - near == pytest.approx(more, rel=1e-6)


def test_intervals_allow_for_recurrent_layers_that_were_never_measured() -> None:
    errors = operator_errors(prepare("qwen3-next-80b-a3b", "h200", 2).cost)
    assert errors["recurrence"] > errors["attention"]
    assert "recurrence" not in operator_errors(prepare("llama-3.1-8b", "h200").cost)
