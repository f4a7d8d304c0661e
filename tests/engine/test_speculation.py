"""Speculative decoding: what a verify step and its drafts take, what they hold, and the limits that must hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steelyard.cost import (
    CompiledCost,
    HostTerms,
    RankBatch,
    Roofline,
    SpeculativeCost,
    StepTime,
    compile_cost,
    compile_speculative,
    find_draft,
    graph_plan,
    plan_memory,
)
from steelyard.cost.host import NO_HOST
from steelyard.cost.source import RowOperator
from steelyard.cost.speculation import NGRAM_TOKEN_SECONDS, eagle_head, mtp_layers
from steelyard.engine import Engine, Limits, Request
from steelyard.errors import UserError
from steelyard.hardware import find_gpu
from steelyard.model import (
    AttentionOperator,
    Gemm,
    ModelSpec,
    Recurrence,
    head_operators,
    load_model,
    operators,
    parameters,
    weight_bytes,
)
from steelyard.scenario import EngineSpec, load_scenario, scenario_from_dict
from steelyard.sim import simulate
from steelyard.sim.setup import set_up
from support.known import known
from support.paths import EXAMPLES

EXAMPLE = EXAMPLES / "speculative.yaml"
LLAMA = load_model("llama-3.1-8b")
H100 = find_gpu("h100")
DRAFTS = 3
WIDTH = 1 + DRAFTS


def engine(method: str = "free", tokens: int = DRAFTS, **more: Any) -> EngineSpec:
    spec = {"method": method, "num_tokens": tokens}
    if method == "draft":
        spec["draft_model"] = "llama-3.2-1b"
    return EngineSpec.model_validate({"max_num_batched_tokens": 2048, **more, "speculative": spec})


def cost_of(settings: EngineSpec, model: ModelSpec = LLAMA, terms: HostTerms = NO_HOST) -> SpeculativeCost:
    source = Roofline(H100)
    plain = compile_cost(model, 1, settings, source, terms=terms)
    draft = find_draft(settings, model, Path())
    return compile_speculative(plain, settings, draft, 1, source, terms=terms)


def written(speculative: dict[str, Any] | None, **workload: Any) -> Any:
    asked = {"arrivals": {"kind": "burst"}, "requests": 8, "prompt": 100, "output": 60, **workload}
    settings = {} if speculative is None else {"speculative": speculative}
    return {"model": "llama-3.1-8b", "fleet": {"gpu": "h100"}, "engine": settings, "workload": asked}


# -- limits -------------------------------------------------------------------------------------------------------


class Unpaid:
    """Times of an engine whose drafts cost nothing to make or to verify: a request with drafts is a plain decode."""

    def __init__(self, cost: CompiledCost) -> None:
        self.cost = cost
        self.decode_line, self.decode_host = cost.decode_line, cost.decode_host

    def mixed(self, n: int, kv: int, longest: int, chunks: list[tuple[int, int]]) -> StepTime:
        lengths = [before + 1 for tokens, before in chunks if tokens == WIDTH and before]
        prompts = [(tokens, before) for tokens, before in chunks if tokens != WIDTH or not before]
        n, kv, longest = n + len(lengths), kv + sum(lengths), max(longest, *lengths, 0)
        if prompts:
            return self.cost.mixed(n, kv, longest, prompts)
        a, b, _ = self.cost.decode_line(n, kv, longest)
        return StepTime(a + b * kv, *self.cost.decode_host(n))


def timeline(drafts: int, asynchronous: bool) -> tuple[list[float], list[tuple[int, int, Any]]]:
    """Ends of all steps; of each request the first and last that brought it tokens, and those skipped between."""
    plain = compile_cost(LLAMA, 1, EngineSpec(), Roofline(H100))
    limits = Limits(4000, 8192, async_scheduling=asynchronous, speculative_tokens=drafts)
    ran = Engine(limits, Unpaid(plain) if drafts else plain)
    asked = [Request(i, 0.0, 100 + 37 * i, 20 + 11 * i, accept=(0,) if drafts else None) for i in range(12)]
    for r in asked:
        ran.submit(r, 0.0)
    ran.advance(float("inf"))
    return list(ran.log.ends), [(r.first, r.last, r.breaks) for r in asked]


def test_drafts_that_cost_nothing_and_are_never_accepted_change_nothing() -> None:
    """To the bit: no step more or less, and none at another time."""
    assert timeline(DRAFTS, asynchronous=False) == timeline(0, asynchronous=False)


def test_nor_do_they_where_the_next_step_is_scheduled_ahead() -> None:
    """The same steps; but drafts whose fate is not known yet count as cached, so attention takes a little longer."""
    (ends, tokens), (plain_ends, plain_tokens) = timeline(DRAFTS, True), timeline(0, True)
    assert tokens == plain_tokens
    assert ends == pytest.approx(plain_ends, rel=1e-3)


def test_no_drafts_is_no_speculation() -> None:
    scenario = scenario_from_dict(written(None))
    assert isinstance(set_up(scenario).pools[0].cost, CompiledCost)


def test_accepted_tokens_by_hand() -> None:
    """The prompt's step gives one token. Verify steps then give 1 + 2, 1 + 0, 1 + 3 and again 1 + 2: twelve in all."""
    ran = simulate(
        scenario_from_dict(
            written({"method": "ngram", "num_tokens": 3, "acceptance": [2, 0, 3]}, requests=1, output=12)
        )
    )
    assert ran.summary.steps == 5


def test_expected_tokens_per_step() -> None:
    """With shares 0.8, 0.6 and 0.4 a verify step gives 1 + 0.8 + 0.6 + 0.4 = 2.8 tokens.

    One request at a time: a step for its prompt, and 200 for 560 further tokens; the last gives about one too many.
    """
    spec = {"method": "ngram", "num_tokens": 3, "acceptance": [0.8, 0.6, 0.4]}
    asked = written(spec, requests=200, output=1 + 560)
    asked["engine"]["max_num_seqs"] = 1
    steps = simulate(scenario_from_dict(asked)).summary.steps
    assert steps / 200 - 1 == pytest.approx(200, rel=0.01)


# -- time ---------------------------------------------------------------------------------------------------------


def by_hand(
    model: ModelSpec, tokens: int, rows: int, head: int, kv: int, queries: int, first: RowOperator | None
) -> float:
    """GPU seconds of requests with so many query tokens each, every operator of every layer asked for by itself."""
    source = Roofline(H100)

    def one(operator: RowOperator, count: int) -> float:
        return float(source.rows(operator, np.array([float(count)])).seconds[0])

    seconds = 0.0 if first is None else one(first, rows)
    for layer in model.layers:
        for operator in operators(model, layer):
            if isinstance(operator, AttentionOperator):
                # Keys are read once for all queries of a request; each of those takes the arithmetic of a decode.
                curve = source.decode_attention(operator, 2).curve(1)
                read = operator.kv_elements * 2 * kv / (H100.memory_bandwidth * 0.80)
                pairs = queries * operator.decode.flops_per_pair * kv / (H100.peak("bf16") * 0.60)
                seconds += layer.count * (curve.seconds[0] + max(read, pairs))
            elif not isinstance(operator, Recurrence):
                seconds += layer.count * one(operator, rows)
    for operator in head_operators(model):
        assert not isinstance(operator, AttentionOperator | Recurrence)
        sampled = getattr(operator, "per") == "sequence"  # noqa: B009
        seconds += one(operator, head if sampled else rows)
    return seconds


def test_a_verify_step_is_a_wide_decode() -> None:
    """9 requests of 4 tokens run as one graph of 40 rows; the head sees all 36 tokens; keys are read once."""
    cost = cost_of(engine())
    time = cost.mixed(0, 0, 0, [(WIDTH, 1000)] * 9)
    assert time.gpu == pytest.approx(by_hand(LLAMA, 36, 40, 36, 9 * 1004, WIDTH, None), rel=1e-12)


def test_a_verify_step_is_hardly_slower_than_a_decode() -> None:
    cost = cost_of(engine())
    decode = cost.target.decode_line(32, 32 * 2000, 2000)
    verify = cost.mixed(0, 0, 0, [(WIDTH, 2000)] * 32).gpu
    assert decode[0] + decode[1] * 64_000 < verify < 1.15 * (decode[0] + decode[1] * 64_000)


def test_verify_steps_replay_a_graph_where_all_requests_bring_their_drafts() -> None:
    terms = HostTerms()
    cost = cost_of(engine(), terms=terms)
    pieces = LLAMA.num_layers * terms.pieces
    assert cost.mixed(0, 0, 0, [(WIDTH, 500)] * 8).launch == terms.sample
    assert cost.mixed(0, 0, 0, [(WIDTH, 500)] * 8 + [(WIDTH - 1, 70)]).launch == pytest.approx(pieces + terms.sample)
    assert cost.mixed(0, 0, 0, [(WIDTH, 500), (WIDTH, 0)]).launch == pytest.approx(pieces + terms.sample)  # a prompt
    assert cost.mixed(0, 0, 0, [(WIDTH, 500)] * 129).launch > pieces + terms.sample  # 516 tokens: nothing that large


def test_captured_sizes_hold_whole_requests() -> None:
    settings = engine(tokens=2, max_num_seqs=10)
    plan = graph_plan(settings)
    assert plan.sizes == (1, 2, 3, 4, 6, 8, 12, 16, 24, 30, 32, 40, 48, 56)
    assert plan.of_width(3, 10).decode_sizes == (3, 6, 9, 12, 18, 24, 30)
    assert plan.of_width(3, 10).padded(21, decode_only=True) == 24
    assert plan.of_width(3, 10).padded(21, decode_only=False) == 24
    assert plan.of_width(1, 10) == plan


def test_an_eagle_step_is_the_sum_of_its_passes() -> None:
    """Verify; the head over the same 8 tokens, sampling 2 rows; then twice over one token of each."""
    cost = cost_of(engine("eagle"))
    head = eagle_head(LLAMA).model
    join = Gemm("join_proj", 2 * 4096, 4096, 2, "bf16")
    expected = by_hand(LLAMA, 8, 8, 8, 2 * 1004, WIDTH, None)
    expected += by_hand(head, 8, 8, 2, 2 * 1004, WIDTH, join)
    expected += by_hand(head, 2, 2, 2, 2 * 1005, 1, join) + by_hand(head, 2, 2, 2, 2 * 1006, 1, join)
    assert cost.mixed(0, 0, 0, [(WIDTH, 1000)] * 2).gpu == pytest.approx(expected, rel=1e-12)


def test_a_draft_model_sees_a_token_more_and_is_launched_in_pieces() -> None:
    terms = HostTerms()
    cost = cost_of(engine("draft"), terms=terms)
    small = load_model("llama-3.2-1b")
    expected = by_hand(LLAMA, 8, 8, 8, 2 * 1004, WIDTH, None) + by_hand(small, 10, 16, 2, 2 * 1004, WIDTH + 1, None)
    expected += sum(by_hand(small, 2, 2, 2, 2 * (1004 + i), 1, None) for i in (1, 2))
    time = cost.mixed(0, 0, 0, [(WIDTH, 1000)] * 2)
    assert time.gpu == pytest.approx(expected, rel=1e-12)
    assert time.launch == pytest.approx(terms.sample + 3 * small.num_layers * terms.pieces)


def test_prompts_pass_through_the_draft_too() -> None:
    free, eagle = cost_of(engine()), cost_of(engine("eagle", tokens=1))
    prompt = [(1000, 0)]
    head = eagle.mixed(0, 0, 0, prompt).gpu - free.mixed(0, 0, 0, prompt).gpu
    assert 1 / 60 < head / free.mixed(0, 0, 0, prompt).gpu < 1 / 15  # one layer of 32 and an output head


def test_ngrams_take_the_host_only() -> None:
    free, ngram = (cost_of(engine(method)).mixed(0, 0, 0, [(WIDTH, 996)] * 10) for method in ("free", "ngram"))
    assert ngram == free._replace(prepare=free.prepare + 10_000 * NGRAM_TOKEN_SECONDS)


def test_one_rank_by_itself_and_ranks_alike_take_the_same() -> None:
    cost = cost_of(engine("eagle"))
    batch = RankBatch(0, 0, 0, [(WIDTH, 700)] * 5)
    assert cost.together([batch, batch]).gpu == pytest.approx(cost.mixed(0, 0, 0, [(WIDTH, 700)] * 5).gpu)
    assert cost.together([batch, None]).gpu == pytest.approx(cost.together([batch, batch]).gpu)


# -- memory -------------------------------------------------------------------------------------------------------


def test_an_eagle_head_and_its_cache_take_their_bytes() -> None:
    matrices = 2 * 4096**2 + 4096 * (4096 + 2 * 1024) + 4096**2 + 3 * 4096 * 14336
    settings = engine("eagle")
    plain, drafted = (plan_memory(LLAMA, H100, 1, settings, draft) for draft in (None, eagle_head(LLAMA)))
    assert drafted.draft == 2 * (matrices + 4096)
    assert drafted.block_bytes - plain.block_bytes == 16 * 2 * 8 * 128 * 2  # keys and values of one layer
    left = plain.usable - plain.weights - plain.activations - plain.runtime
    assert drafted.blocks == (left - drafted.draft) // drafted.block_bytes - 1
    assert drafted.summary()["draft_bytes"] == drafted.draft and "draft_bytes" not in plain.summary()


def test_an_eagle_head_of_experts_is_as_wide_as_what_a_token_passes() -> None:
    assert eagle_head(load_model("qwen3-30b-a3b")).model.layers[0].ffn.intermediate == 6144  # type: ignore[union-attr]


def test_mtp_layers_have_the_bytes_of_their_parameters() -> None:
    model = replace(load_model("deepseek-v3"), quantization=None)
    draft = mtp_layers(model, 1)
    assert draft.weight_bytes(1) == 2 * parameters(model).mtp
    assert draft.kv_bytes_per_token("auto", 8) == 2 * (512 + 64)


def test_a_draft_model_takes_its_weights() -> None:
    draft = find_draft(engine("draft"), LLAMA, Path())
    assert draft is not None
    small = load_model("llama-3.2-1b")
    assert [draft.weight_bytes(tp) for tp in (1, 2)] == [weight_bytes(small, tp=tp) for tp in (1, 2)]


def test_what_drafts_ahead_needs_room_ahead() -> None:
    """EAGLE writes keys of drafts before they are verified, and needs the last cached block's hidden states."""
    for method, ahead, drops in (("free", 0, False), ("ngram", 0, False), ("eagle", 3, True), ("draft", 3, False)):
        spec = {"method": method, "num_tokens": 3, "acceptance": [1]}
        if method == "draft":
            spec["draft_model"] = "llama-3.2-1b"
        limits = set_up(scenario_from_dict(written(spec))).pools[0].limits
        assert (limits.speculative_tokens, limits.lookahead, limits.drops_last_hit) == (3, ahead, drops)
        assert limits.async_scheduling == (method != "ngram")


def test_blocks_are_taken_ahead() -> None:
    """A prompt of 62 tokens needs 4 blocks; with 3 tokens of room ahead a fifth."""
    plain = compile_cost(LLAMA, 1, EngineSpec(), Roofline(H100))
    free = []
    for lookahead in (0, 3):
        limits = Limits(100, 1000, async_scheduling=False, speculative_tokens=3, lookahead=lookahead)
        ran = Engine(limits, plain)
        ran.submit(Request(0, 0.0, 62, 5, accept=(0,)), 0.0)
        ran.advance(1e-9)
        free.append(ran.scheduler.kv.free)
    assert free == [96, 95]


# -- what users write ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"speculative": {"method": "draft", "num_tokens": 2, "acceptance": [1]}}, "draft_model: missing"),
        (
            {"speculative": {"method": "mtp", "num_tokens": 2, "acceptance": [1], "draft_model": "x"}},
            "draft_model: method mtp brings its own",
        ),
        ({"speculative": {"method": "eagle", "num_tokens": 2}}, "engine.speculative.acceptance: missing"),
        (
            {"speculative": {"method": "eagle", "num_tokens": 2, "acceptance": [0.9, 0.5, 0.2]}},
            "engine.speculative.acceptance: accepts 3 draft tokens, but engine.speculative.num_tokens is 2",
        ),
        (
            {"speculative": {"method": "eagle", "num_tokens": 2, "acceptance": [1]}, "num_speculative_tokens": 2},
            "engine.num_speculative_tokens: speculative.num_tokens says this",
        ),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        scenario_from_dict({**written(None), "engine": settings})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("speculative", "message"),
    [
        ({"method": "mtp"}, "llama-3.1-8b has no layers of its own to draft with"),
        ({"method": "draft", "draft_model": "qwen3-0.6b"}, "vocabulary of 151936"),
    ],
)
def test_drafts_that_do_not_fit_the_model_are_refused(speculative: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        set_up(scenario_from_dict(written({**speculative, "num_tokens": 2, "acceptance": [1]})))


@pytest.mark.parametrize("method", ["ngram", "eagle", "draft"])
def test_a_scenario_with_drafts_survives_being_written_down(method: str) -> None:
    spec = {"method": method, "num_tokens": 2, "acceptance": [0.5, 0.25]}
    if method == "draft":
        spec["draft_model"] = "llama-3.2-1b"
    scenario = scenario_from_dict(written(spec))
    assert scenario_from_dict(scenario.model_dump(mode="json")) == scenario


def test_the_short_form_is_a_free_draft() -> None:
    short = {"num_speculative_tokens": 2, "acceptance": [1, 0]}
    long = {"speculative": {"method": "free", "num_tokens": 2, "acceptance": [1, 0]}}
    ran = [simulate(scenario_from_dict({**written(None), "engine": settings})).summary for settings in (short, long)]
    assert ran[0].e2e == ran[1].e2e and ran[0].steps == ran[1].steps


def test_a_pool_may_have_drafts_of_its_own() -> None:
    """Acceptance is that of the pool that answers."""
    spec = {"method": "eagle", "num_tokens": 2, "acceptance": [1]}
    pools = [
        {"role": "prefill", "gpu": "h100"},
        {"role": "decode", "gpu": "h100", "engine": {"speculative": spec}},
    ]
    ran = simulate(scenario_from_dict({**written(None, requests=1, output=41), "fleet": {"pools": pools}}))
    assert ran.summary.steps == pytest.approx(2 + 20, abs=1)


def test_the_example_gains_what_its_drafts_are_worth() -> None:
    scenario = load_scenario(EXAMPLE, ["workload.requests=60"])
    plain = load_scenario(EXAMPLE, ["workload.requests=60", "engine.speculative=null"])
    gain = known(simulate(plain).summary.tpot.mean) / known(simulate(scenario).summary.tpot.mean)
    assert 1.3 < gain < 2.8
