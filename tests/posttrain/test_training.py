"""The training stage: limits that follow from arithmetic, memory that adds up, and times that never go wrong."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from steelyard.cost import MeasuredSource, shipped_bundle
from steelyard.errors import UserError
from steelyard.hardware import Topology, find_gpu, topology_of
from steelyard.model import load_model, parameters
from steelyard.posttrain.training import (
    Packing,
    TrainingCost,
    TrainingJobs,
    TrainLayout,
    TrainSettings,
    compile_training,
    pack,
    training_memory,
)
from steelyard.posttrain.training.layout import Recompute
from steelyard.posttrain.training.memory import saved_bytes
from steelyard.posttrain.training.packing import differencing
from steelyard.posttrain.training.pipeline import forward_only, one_forward_one_backward
from tools.published_training import CASES, FOUNDRY, MEGATRON, gpt

A800 = find_gpu("a800")
NODE = topology_of(A800)
ALONE = TrainSettings(old_log_probs=False)
SHORT = np.full(64, 128)


def refusal(model: str, layout: TrainLayout, settings: TrainSettings = ALONE) -> str | None:
    return TrainingJobs(load_model(model), A800, NODE).refusal(layout, settings)


@cache
def job(model: str, layout: TrainLayout, how: TrainSettings = ALONE, topology: Topology = NODE) -> TrainingCost:
    return compile_training(load_model(model), topology.gpu, topology, layout, how)


def small(**degrees: Any) -> TrainLayout:
    return TrainLayout(**{"micro_batch_tokens": 4096, **degrees})


# -- pipelines ----------------------------------------------------------------------------------------------------


def by_events(forward: list[list[float]], backward: list[list[float]], send: list[float]) -> float:
    """One-forward-one-backward as plain as can be: every stage walks its own list and waits for what it needs."""
    stages, count = len(forward), len(send)
    lists = []
    for stage in range(stages):
        ahead = min(count, stages - 1 - stage)
        order = [("f", j) for j in range(ahead)]
        for j in range(count - ahead):
            order += [("f", ahead + j), ("b", j)]
        lists.append(order + [("b", j) for j in range(count - ahead, count)])
    done: dict[tuple[str, int, int], float] = {}
    free, at = [0.0] * stages, [0] * stages
    while any(at[s] < len(lists[s]) for s in range(stages)):
        for stage in range(stages):
            if at[stage] == len(lists[stage]):
                continue
            kind, j = lists[stage][at[stage]]
            source = stage - 1 if kind == "f" else stage + 1
            if kind == "b" and stage == stages - 1:
                ready: float | None = done[("f", stage, j)]
            elif not 0 <= source < stages:
                ready = 0.0
            else:
                ready = done.get((kind, source, j))
                ready = None if ready is None else ready + send[j]
            if ready is not None:
                took = (forward if kind == "f" else backward)[stage][j]
                free[stage] = done[(kind, stage, j)] = max(free[stage], ready) + took
                at[stage] += 1
    return max(free)


@given(stages=st.integers(1, 6), count=st.integers(1, 9), data=st.data())
@settings(max_examples=150)
def test_the_closed_form_of_a_pipeline_is_what_events_give(stages: int, count: int, data: st.DataObject) -> None:
    times = arrays.arrays(np.float64, (2, stages, count), elements=st.floats(0.0, 5.0))
    forward, backward = data.draw(times)
    send = data.draw(arrays.arrays(np.float64, count, elements=st.floats(0.0, 2.0)))
    found = one_forward_one_backward(forward[None], backward[None], send[None])[0]
    assert found == pytest.approx(by_events(forward.tolist(), backward.tolist(), send.tolist()))


def test_cases_of_a_pipeline_do_not_touch_each_other() -> None:
    rng = np.random.default_rng(1)
    forward, backward, send = rng.random((3, 4, 5)), rng.random((3, 4, 5)), rng.random((3, 5))
    together = one_forward_one_backward(forward, backward, send)
    for case in range(3):
        part = slice(case, case + 1)
        assert together[case] == one_forward_one_backward(forward[part], backward[part], send[part])[0]


@given(stages=st.integers(1, 5), count=st.integers(1, 8), data=st.data())
@settings(max_examples=60)
def test_forward_passes_flow_through_stages(stages: int, count: int, data: st.DataObject) -> None:
    forward = data.draw(arrays.arrays(np.float64, (stages, count), elements=st.floats(0.0, 5.0)))
    send = data.draw(arrays.arrays(np.float64, count, elements=st.floats(0.0, 2.0)))
    done = np.zeros((stages, count))
    for stage in range(stages):
        for j in range(count):
            came = done[stage - 1, j] + send[j] if stage else 0.0
            done[stage, j] = max(came, done[stage, j - 1] if j else 0.0) + forward[stage, j]
    assert forward_only(forward[None], send[None])[0] == pytest.approx(done[-1, -1])


@pytest.mark.parametrize(("stages", "count"), [(1, 4), (2, 8), (4, 4), (8, 3)])
def test_equal_micro_batches_leave_the_known_bubble(stages: int, count: int) -> None:
    ones = np.ones((1, stages, count))
    whole = one_forward_one_backward(ones, 2 * ones, np.zeros((1, count)))[0]
    assert 1 - 3 * count / whole == pytest.approx((stages - 1) / (count + stages - 1))


# -- packing ------------------------------------------------------------------------------------------------------

lengths_of = arrays.arrays(np.int64, st.integers(1, 60), elements=st.integers(1, 1000))


@given(lengths_of, st.integers(1, 6), st.integers(1, 3), st.sampled_from(["balanced", "best-fit"]))
@settings(max_examples=80)
def test_every_sequence_is_packed_once_and_no_micro_batch_is_too_full(
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]], ranks: int, updates: int, packing: Packing
) -> None:
    found = pack(lengths, ranks, 1000, updates=updates, packing=packing)
    assert found.cell is not None and len(found.cell) == len(lengths)
    assert found.tokens.shape[:2] == (updates, ranks)
    assert found.tokens.sum() == lengths.sum()
    assert found.tokens.max() <= 1000


def test_differencing_beats_dealing_out_in_turns_and_keeps_numbers_equal() -> None:
    weights = np.random.default_rng(3).lognormal(7, 0.5, 96).tolist()
    parts = differencing(weights, list(range(96)), 8, equal=True)
    sums = [sum(weights[i] for i in part) for part in parts]
    turns = [sum(sorted(weights)[i::8]) for i in range(8)]
    assert {len(part) for part in parts} == {12}
    assert sorted(i for part in parts for i in part) == list(range(96))
    assert max(sums) - min(sums) < 0.5 * (max(turns) - min(turns))


def test_differencing_finds_the_textbook_partition() -> None:
    """Karmarkar and Karp's own example: 4, 5, 6, 7 and 8 differ by two in the end."""
    parts = differencing([4.0, 5.0, 6.0, 7.0, 8.0], list(range(5)), 2, equal=False)
    assert sorted(sum((4, 5, 6, 7, 8)[i] for i in part) for part in parts) == [14, 16]


def test_best_fit_fills_micro_batches() -> None:
    found = pack(np.array([6, 5, 5, 4, 3, 3, 2, 2]), 1, 10, packing="best-fit")
    assert found.tokens.tolist() == [[[10.0, 10.0, 10.0]]]


@given(lengths_of, st.integers(1, 6), st.integers(1, 6), st.sampled_from([0.0, 1e-3]))
@settings(max_examples=80)
def test_best_fit_is_the_same_as_one_by_one_for_any_number_of_ranks(
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]], ranks: int, others: int, quadratic: float
) -> None:
    """Micro-batches are filled once for all numbers of ranks, and assigned again for each."""
    pack(lengths, others, 1000, packing="best-fit", quadratic=quadratic)
    found = pack(lengths, ranks, 1000, packing="best-fit", quadratic=quadratic)
    bins: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda each: -int(lengths[each])):
        rooms = [1000 - sum(int(lengths[j]) for j in own) for own in bins]
        fits = [(room, number) for number, room in enumerate(rooms) if room >= lengths[i]]
        if fits:
            bins[min(fits)[1]].append(i)
        else:
            bins.append([i])
    work = [sum(int(lengths[i]) + quadratic * int(lengths[i]) ** 2 for i in own) for own in bins]
    dealt: list[list[list[int]]] = [[] for _ in range(ranks)]
    busy = [0.0] * ranks
    for number in sorted(range(len(bins)), key=lambda each: -work[each]):
        idlest = min(range(ranks), key=lambda each: (busy[each], len(dealt[each])))
        dealt[idlest].append(bins[number])
        busy[idlest] += work[number]
    most = max(map(len, dealt))
    expected = {
        i: rank * most + micro for rank, own in enumerate(dealt) for micro, cell in enumerate(own) for i in cell
    }
    assert found.shape == (1, ranks, most)
    assert found.cell is not None and found.cell.tolist() == [expected[i] for i in range(len(lengths))]


def test_a_sequence_longer_than_the_budget_is_refused() -> None:
    with pytest.raises(UserError, match="5000 tokens does not fit a micro-batch of 4096"):
        job("qwen3-1.7b", small(recompute="full")).step(np.array([10, 5000]))
    with pytest.raises(UserError, match="at least one token"):
        job("qwen3-1.7b", small(recompute="full")).step(np.array([], dtype=np.int64))


# -- time ---------------------------------------------------------------------------------------------------------


def test_parts_add_up_and_one_stage_has_no_bubble() -> None:
    step = job("qwen3-1.7b", small(dp=4, recompute="full"), TrainSettings()).step(SHORT)
    assert sum(step.split.by_part().values()) == pytest.approx(step.seconds)
    assert all(seconds >= 0 for seconds in step.split.by_part().values())
    assert step.split.bubble == pytest.approx(0.0, abs=1e-9)
    assert step.split.tp == step.split.ep == step.split.cp == 0.0
    assert 0.1 < step.mfu < 0.75


def test_stages_wait_for_each_other() -> None:
    step = job("qwen3-1.7b", small(tp=2, pp=4, dp=1, recompute="full", micro_batch_tokens=512)).step(SHORT)
    split = step.split
    busy = split.update - split.bubble - split.dp - split.optimiser - split.imbalance
    least = (4 - 1) / (step.micro_batches + 4 - 1)
    assert split.bubble / (busy + split.bubble) > least  # the last stage has the head besides
    assert split.bubble / (busy + split.bubble) < least + 0.4


def test_equal_loads_leave_no_rank_waiting_and_unequal_ones_do() -> None:
    even = job("qwen3-1.7b", small(dp=4, recompute="full")).step(SHORT)
    assert even.split.imbalance == pytest.approx(0.0, abs=1e-9)
    lengths = np.array([4096, 128, 128, 128])
    uneven = job("qwen3-1.7b", small(dp=4, recompute="full")).step(lengths)
    assert uneven.split.imbalance > 0.5 * uneven.split.forward


def test_ranks_that_meet_in_every_layer_wait_for_the_slowest_micro_batch() -> None:
    lengths = np.random.default_rng(2).integers(100, 4000, 64)
    how = replace(ALONE, packing="best-fit")
    free = job("qwen3-1.7b", small(dp=4, zero=1, recompute="full"), how).step(lengths)
    tied = job("qwen3-1.7b", small(dp=4, zero=3, recompute="full"), how).step(lengths)
    assert tied.split.imbalance > free.split.imbalance


def test_flops_of_short_sequences_are_six_for_each_weight_and_token() -> None:
    for name in ("qwen3-1.7b", "qwen3-30b-a3b"):
        counted = parameters(load_model(name)).active_without_embedding
        layout = small(recompute="full", dp=8, zero=3)
        step = job(name, layout).step(np.full(64, 16))
        assert step.update_flops == pytest.approx(6 * counted * step.tokens, rel=0.01)


def test_long_sequences_add_half_a_square_for_attention() -> None:
    cost = job("qwen3-1.7b", small(recompute="full"))
    attention = load_model("qwen3-1.7b").attentions[0][0]
    each = 4 * attention.heads * attention.head_dim * 28
    extra = cost.flops.forward(np.array([4096.0])) - 4096 * cost.flops.per_token
    assert extra == pytest.approx(each * 4096 * 4097 / 2)


def test_full_recomputation_is_the_layers_forward_pass_once_more() -> None:
    full = job("qwen3-1.7b", small(recompute="full")).step(SHORT).split
    none = job("qwen3-1.7b", small(dp=4, recompute="none", zero=3)).step(np.repeat(SHORT, 4)).split
    assert none.recompute == 0.0
    head = full.forward - full.recompute  # embedding, head and loss are not run again
    assert 0 < head < 0.25 * full.forward
    selective = job("qwen3-1.7b", small(dp=4, recompute="selective", zero=3)).step(np.repeat(SHORT, 4)).split
    assert 0 < selective.recompute < 0.4 * full.recompute


def test_backward_is_about_twice_forward() -> None:
    split = job("qwen3-1.7b", small(recompute="full")).step(SHORT).split
    assert 1.8 < split.backward / split.forward < 2.5


def test_log_probabilities_are_forward_passes() -> None:
    layout = small(recompute="full")
    one = job("qwen3-1.7b", layout, TrainSettings()).step(SHORT)
    assert one.split.log_probs == pytest.approx(one.split.forward)
    both = job("qwen3-1.7b", replace(layout, dp=2), TrainSettings(reference="offloaded")).step(np.repeat(SHORT, 2))
    fetched = 2 * parameters(load_model("qwen3-1.7b")).total / (0.8 * A800.pcie_bandwidth)
    assert both.split.log_probs == pytest.approx(2 * one.split.log_probs + fetched, rel=1e-2)
    assert both.log_prob_flops == pytest.approx(2 / 3 * both.update_flops)


def test_updates_and_epochs_repeat_the_optimiser() -> None:
    layout = small(recompute="full", dp=2)
    once = job("qwen3-1.7b", layout).step(SHORT).split
    often = job("qwen3-1.7b", layout, replace(ALONE, minibatches=4, epochs=2)).step(SHORT).split
    assert often.optimiser == pytest.approx(8 * once.optimiser)
    assert often.forward == pytest.approx(2 * once.forward, rel=0.25)


def test_a_critic_is_trained_as_well() -> None:
    layout = small(recompute="full", dp=4, zero=3)
    policy, both = (job("qwen3-1.7b", layout, TrainSettings(critic=critic)) for critic in (False, True))
    assert both.memory.states == pytest.approx(2 * policy.memory.states)
    assert both.step(SHORT).split.update == pytest.approx(2 * policy.step(SHORT).split.update)


def test_without_a_price_for_bytes_only_arithmetic_is_left() -> None:
    """What is left of exchanges are the microseconds that each needs to start."""
    peer, nic = (replace(link, rated=1e18, latency=0.0) for link in (NODE.peer, NODE.nic))
    ideal = replace(NODE, peer=peer, nic=nic)
    for layout in (small(tp=4, dp=2), small(tp=1, dp=8, zero=3), small(tp=2, cp=2, dp=2)):
        layout = replace(layout, recompute="full")
        split = job("qwen3-1.7b", layout, ALONE, ideal).step(np.full(64, 2048)).split
        assert split.tp + split.cp + split.dp < 0.03 * split.update


def test_context_parallel_ranks_share_a_sequence() -> None:
    lengths = np.full(8, 4096)
    one = job("qwen3-1.7b", small(recompute="full")).step(lengths).split
    four = job("qwen3-1.7b", small(recompute="full", cp=4, micro_batch_tokens=1024)).step(lengths).split
    assert four.forward == pytest.approx(one.forward / 4, rel=0.1)
    assert four.total > one.total / 4


def test_both_ways_to_split_sequences_cost_something_across_nodes() -> None:
    """A ring hides behind attention that has enough to do; swapping tokens for heads takes as long for any lengths."""
    layout = small(tp=8, cp=4, recompute="full", micro_batch_tokens=2048)
    short, long = np.full(16, 512), np.full(4, 8192)
    ring, swapped = (job("qwen3-8b", replace(layout, context=how)) for how in ("ring", "ulysses"))
    assert ring.step(short).split.cp > 0
    assert ring.step(long).split.cp / ring.step(long).split.forward < ring.step(short).split.cp / (
        ring.step(short).split.forward
    )
    assert swapped.step(long).split.cp == pytest.approx(swapped.step(np.full(64, 512)).split.cp)
    assert "32 attention heads" in (refusal("qwen3-8b", small(cp=3, dp=8, zero=3, context="ulysses")) or "")


def test_dealt_out_experts_pay_for_the_way_there_and_back() -> None:
    near = job("qwen3-30b-a3b", small(dp=16, ep=8, recompute="full")).step(SHORT)
    far = job("qwen3-30b-a3b", small(dp=16, ep=16, recompute="full")).step(SHORT)
    assert 0 < near.split.ep < far.split.ep
    hidden = job("qwen3-30b-a3b", small(dp=16, ep=8, recompute="full"), replace(ALONE, ep_overlap=1.0)).step(SHORT)
    assert hidden.split.ep == 0.0


@given(
    lengths=arrays.arrays(np.int64, st.integers(8, 40), elements=st.integers(1, 2000)),
    more=st.integers(1, 2000),
    layout=st.sampled_from(
        [small(tp=2, dp=2, recompute="full"), small(pp=2, dp=2, recompute="full"), small(dp=4, zero=3), small(cp=2)]
    ),
)
@settings(max_examples=40)
def test_more_tokens_are_never_faster(
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]], more: int, layout: TrainLayout
) -> None:
    layout = replace(layout, recompute="full")
    cost = job("qwen3-1.7b", layout, replace(TrainSettings(), packing="even"))
    longer = lengths.copy()
    longer[0] += more
    before, after = cost.step(lengths), cost.step(longer)
    if layout.pp == 1 or before.micro_batches == after.micro_batches:  # one more makes a pipeline's bubble smaller
        assert after.seconds >= before.seconds * (1 - 1e-9)
    packed = job("qwen3-1.7b", layout).pack(np.minimum(lengths, 1000))
    grown = replace(packed, lengths=packed.lengths + np.arange(len(lengths)) % 2)
    if grown.tokens.max() <= layout.budget:
        run = job("qwen3-1.7b", layout).run
        assert run(grown).seconds >= run(packed).seconds * (1 - 1e-9)


@given(
    st.floats(1.0, 8.0),
    st.floats(1.0, 8.0),
    st.sampled_from(["tp", "dp", "cp", "pp"]),
    st.sampled_from(["zero1", "zero3"]),
)
@settings(max_examples=25)
def test_more_bandwidth_is_never_slower(near: float, far: float, degree: str, zero: str) -> None:
    layout = small(recompute="full", zero=3 if zero == "zero3" and degree != "pp" else 1, **{degree: 4})
    layout = replace(layout, dp=4 * layout.dp)
    peer, nic = replace(NODE.peer, rated=near * NODE.peer.rated), replace(NODE.nic, rated=far * NODE.nic.rated)
    lengths = np.random.default_rng(5).integers(50, 3000, 64)
    faster = compile_training(load_model("qwen3-1.7b"), A800, replace(NODE, peer=peer, nic=nic), layout, ALONE)
    assert faster.step(lengths).seconds <= job("qwen3-1.7b", layout).step(lengths).seconds * (1 + 1e-9)


def test_even_packing_bounds_the_others() -> None:
    lengths = np.random.default_rng(7).integers(50, 4000, 256)
    layout = small(dp=4, recompute="full")
    even, balanced, fitted = (
        job("qwen3-1.7b", layout, replace(ALONE, packing=packing)).step(lengths).seconds
        for packing in ("even", "balanced", "best-fit")
    )
    assert even <= 1.001 * min(balanced, fitted)
    assert max(balanced, fitted) < 1.15 * even


# -- memory and refusals ------------------------------------------------------------------------------------------


def test_fsdp_keeps_exactly_its_share_of_states() -> None:
    model = load_model("qwen3-1.7b")
    alone = training_memory(model, A800, TrainLayout(zero=3), ALONE)
    assert alone.states == 16 * sum_of_weights("qwen3-1.7b")
    for ranks in (2, 8, 64):
        shared = training_memory(model, A800, TrainLayout(zero=3, dp=ranks), ALONE)
        assert shared.states == alone.states / ranks


def sum_of_weights(name: str) -> float:
    """Weights with the vocabulary as it is padded."""
    model = load_model(name)
    padded = -(-model.vocab // 64) * 64 - model.vocab
    return parameters(model).total + padded * model.hidden * (1 if model.tied_embeddings else 2)


def test_each_zero_stage_shares_out_one_thing_more() -> None:
    model, weights = load_model("qwen3-1.7b"), sum_of_weights("qwen3-1.7b")
    found = [training_memory(model, A800, TrainLayout(zero=zero, dp=4), ALONE) for zero in (0, 1, 2)]
    assert [each.weights / weights for each in found] == [2, 2, 2]
    assert [each.gradients / weights for each in found] == [4, 4, 1]
    assert [each.optimiser / weights for each in found] == [12, 3, 3]


def test_activations_follow_megatrons_formula_without_dropout() -> None:
    """A classic layer keeps 34 bytes per token and hidden value, two of them dropout masks that nobody uses now. A
    gated one of as many weights keeps 16 for its feed-forward block, too; FlashAttention keeps no scores."""
    model = gpt("any", 6144, 4, 48)
    heavy, light = saved_bytes(model, model.layers[0], TrainLayout())
    wide = 8 / 3 * 3 * 2  # gate, up and their product
    assert (heavy + light) / model.hidden == pytest.approx(34 - 2 - 16 + wide, rel=0.01)
    halved = sum(saved_bytes(model, model.layers[0], TrainLayout(tp=2)))
    assert halved == pytest.approx((heavy + light) / 2, rel=0.01)


def test_recomputation_saves_memory_and_stages_hold_micro_batches_in_flight() -> None:
    model = load_model("qwen3-1.7b")
    none, selective, full = (
        training_memory(model, A800, TrainLayout(recompute=how), ALONE).activations
        for how in ("none", "selective", "full")
    )
    assert none > selective > full
    one = training_memory(model, A800, TrainLayout(micro_batch_tokens=2048), ALONE).activations
    four = training_memory(model, A800, TrainLayout(pp=4, micro_batch_tokens=2048), ALONE).activations
    assert four == pytest.approx(one, rel=0.05)  # a quarter of the layers, four micro-batches


@pytest.mark.parametrize(("ranks", "published"), [(8, 82.4), (128, 67.0)])
def test_torchtitans_memory_comes_out(ranks: int, published: float) -> None:
    """Its benchmark page gives GiB for Llama-3.1-8B with FSDP, selective recomputation, two sequences of 8,192."""
    layout = TrainLayout(dp=ranks, zero=3, recompute="selective", micro_batch_tokens=16384)
    found = training_memory(load_model("llama-3.1-8b"), find_gpu("h100"), layout, ALONE)
    assert found.total / 2**30 == pytest.approx(published, rel=0.05)
    assert found.fits == (published < 70)


@pytest.mark.parametrize(
    ("model", "layout", "reason"),
    [
        ("qwen3-14b", TrainLayout(tp=3), "40 attention heads cannot be split 3 ways"),
        ("qwen3-14b", TrainLayout(tp=16), "leaves the node"),
        ("qwen3-14b", TrainLayout(pp=3), "does not divide the 40 layers"),
        ("qwen3-14b", TrainLayout(pp=50), "has only 40 layers"),
        ("qwen3-14b", TrainLayout(ep=2, dp=2), "no routed experts"),
        ("qwen3-30b-a3b", TrainLayout(ep=3, dp=3), "does not divide the 128 experts"),
        ("qwen3-30b-a3b", TrainLayout(ep=8, dp=4), "does not divide the 4 ranks"),
        ("qwen3-30b-a3b", TrainLayout(ep=2, tp=4), "multiple of tp=4"),
        ("qwen3-14b", TrainLayout(zero=2, pp=2, dp=2), "use zero=1"),
        ("qwen3-14b", TrainLayout(zero=4), "choose 0, 1, 2 or 3"),
        ("qwen3-14b", TrainLayout(dp=0), "at least 1"),
        ("qwen3-14b", TrainLayout(), r"lacks \d+\.\d GiB on each NVIDIA A800 SXM 80GB.*optimiser"),
    ],
)
def test_what_cannot_work_is_refused_with_its_reason(model: str, layout: TrainLayout, reason: str) -> None:
    assert refusal(model, layout) is not None
    with pytest.raises(UserError, match=reason):
        compile_training(load_model(model), A800, NODE, layout, ALONE)


def test_batches_that_do_not_divide_are_refused() -> None:
    how = TrainSettings(minibatches=4, batch=1000)
    layout = TrainLayout(dp=16, zero=3, recompute="full", micro_batch_tokens=4096)
    assert "1000 sequences" in (refusal("qwen3-1.7b", layout, how) or "")
    assert refusal("qwen3-1.7b", layout, replace(how, batch=1024)) is None


def test_where_numbers_come_from_is_said() -> None:
    assert job("qwen3-1.7b", small(recompute="full")).provenance == {"analytic": pytest.approx(1.0)}


def test_measured_operators_are_used_where_there_are_some() -> None:
    gpu, bundle = find_gpu("h200"), shipped_bundle("h200")
    assert bundle is not None
    measured = MeasuredSource(gpu, bundle)
    layout = small(recompute="full")
    model, nodes = load_model("qwen3-1.7b"), topology_of(gpu)
    found = compile_training(model, gpu, nodes, layout, ALONE, [measured])
    guessed = compile_training(model, gpu, nodes, layout, ALONE)
    assert found.provenance.get("analytic", 0.0) < 0.05
    assert found.step(SHORT).seconds == pytest.approx(guessed.step(SHORT).seconds, rel=0.3)


@pytest.mark.parametrize("model", ["qwen3-1.7b", "qwen3-30b-a3b"])
def test_layouts_compiled_together_come_to_the_same_as_alone(model: str) -> None:
    spec, lengths = load_model(model), np.array([700, 1500, 90, 2000])
    jobs = TrainingJobs(spec, A800, NODE)
    experts = 8 if model.endswith("a3b") else 1
    micro: tuple[tuple[int, Recompute], ...] = ((4096, "full"), (8192, "full"), (2048, "selective"))
    layouts = [
        TrainLayout(tp=tp, pp=pp, dp=dp, ep=experts, cp=cp, zero=zero, recompute=again, micro_batch_tokens=tokens)
        for tp, pp, zero, cp in ((1, 1, 1, 1), (2, 1, 1, 1), (1, 1, 3, 2), (1, 2, 1, 1))
        for dp in (16, 32)
        for tokens, again in micro
    ]
    packed = replace(ALONE, packing="even")
    for layout in [*layouts, *reversed(layouts)]:
        alone = compile_training(spec, A800, NODE, layout, ALONE)
        shared = jobs.compile(layout, ALONE)
        assert shared.step(lengths) == alone.step(lengths)
        assert (shared.memory, shared.provenance) == (alone.memory, alone.provenance)
        assert (
            jobs.seconds(layout, packed, lengths)
            == compile_training(spec, A800, NODE, layout, packed).step(lengths).seconds
        )


def test_layouts_that_fit_are_those_that_compile() -> None:
    jobs = TrainingJobs(load_model("qwen3-14b"), A800, NODE)
    fitting = []
    for tp, dp, tokens in itertools.product((1, 3, 4), (1, 3, 8), (8192, 49152, 1 << 18)):
        layout = TrainLayout(tp=tp, dp=dp, recompute="full", micro_batch_tokens=tokens)
        settings = replace(ALONE, batch=64)
        try:
            jobs.compile(layout, settings)
        except UserError:
            assert not jobs.fits(layout, settings)
        else:
            assert jobs.fits(layout, settings)
            fitting.append(layout)
    assert 0 < len(fitting) < 27


# -- published speeds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [FOUNDRY, MEGATRON])
def test_published_speeds_of_a100s_come_out(source: str) -> None:
    """Nothing is fitted to them, so the band is wide."""
    cases = [case for case in CASES if case.source == source and case.gpu.name == "a100-80"]
    errors = [case.ours() / case.speed - 1 for case in cases]
    assert len(errors) >= 4
    assert max(abs(error) for error in errors) < 0.2
    assert abs(float(np.mean(errors))) < 0.1
