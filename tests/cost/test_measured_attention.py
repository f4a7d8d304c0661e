"""How attention batches are shared out: worked by hand where it can be, and against the profile where not."""

from __future__ import annotations

import csv
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from steelyard.cost import MeasuredSource, shipped_bundle
from steelyard.cost.measured.readers import all_read
from steelyard.cost.measured.tiles import HeadShape, batch_load, even_decodes, tile_costs
from steelyard.cost.measured.uneven import draw_batch, unevenness
from steelyard.hardware import find_gpu
from support.paths import SHARED

CONVERSATIONS = SHARED / "traces/AzureLLMInferenceTrace_conv.csv"
SMS = 132
LLAMA = HeadShape(32, 8, 128)
COSTS = tile_costs(128)
shapes = st.sampled_from(
    [LLAMA, HeadShape(32, 4, 128), HeadShape(64, 8, 64), HeadShape(16, 8, 256), HeadShape(7, 1, 128)]
)


def decodes(*keys: int) -> float:
    return batch_load(LLAMA, [1] * len(keys), keys, SMS).microseconds(COSTS)


def test_one_wave_by_hand() -> None:
    """16 requests of 8 blocks for 8 key heads: 128 tiles on 132 multiprocessors, none of them worth splitting."""
    load = batch_load(LLAMA, [1] * 16, [1024] * 16, SMS)
    block = COSTS.lone_block + (COSTS.streamed_block - COSTS.lone_block) * 128 / 132
    assert load.last == pytest.approx(COSTS.small_tile + 8 * block)
    assert load.mean == pytest.approx((COSTS.small_tile + 8 * COSTS.streamed_block) * 128 / 132)
    assert load.combining == 0


def test_readers_by_hand() -> None:
    """Two multiprocessors; a tile alone is read in half the time, and so is what is left of the longer of two."""
    assert all_read([4.0], 1.0, 0.5, 2) == pytest.approx(1 + 4 * 0.75)
    assert all_read([4.0, 4.0], 1.0, 0.5, 2) == pytest.approx(1 + 4)
    assert all_read([4.0, 6.0], 1.0, 0.5, 2) == pytest.approx(1 + 4 + 2 * 0.75)
    assert all_read([4.0, 4.0, 4.0], 1.0, 0.5, 2) == pytest.approx(1 + 4 + 1 + 4 * 0.75)


def test_what_tiles_of_different_lengths_begin_with_is_made_up_for() -> None:
    """Not so with one length: all begin at once, and nobody reads meanwhile."""
    even = all_read([8.0] * 120, 2.0, 0.5, 12)
    assert even == pytest.approx(10 * (2 + 8))
    uneven = all_read([5.0, 9.0, 7.0, 11.0, 8.0] * 24, 2.0, 0.5, 12)
    assert 10 * 8 < uneven < 0.97 * even


def test_one_request_more_begins_another_wave() -> None:
    assert decodes(*[1024] * 15) == pytest.approx(decodes(*[1024] * 16), rel=0.08)
    assert decodes(*[1024] * 17) > 1.25 * decodes(*[1024] * 16)
    assert decodes(*[1024] * 24) == pytest.approx(decodes(*[1024] * 17), rel=0.2)


def test_a_long_request_is_split_and_no_worse_than_its_bytes() -> None:
    load = batch_load(LLAMA, [1], [32768], SMS)
    assert load.combining > 0
    assert load.last < 1.4 * 32768 * COSTS.streamed_token * 8 / SMS


def test_a_long_request_that_comes_last_holds_all_up() -> None:
    short = [300] * 100
    assert decodes(*short, 4000) > 1.2 * decodes(4000, *short)


def test_prompts_in_large_steps_are_not_split() -> None:
    """512 new tokens fit a captured graph and can be split over their keys; 16 more cannot, and take two waves."""
    small, large = (batch_load(LLAMA, [new], [new + 8192], SMS) for new in (512, 528))
    assert large.last > 1.6 * small.last and large.combining == 0


@settings(max_examples=60)
@given(shapes, st.integers(1, 300), st.integers(1, 40_000))
@example(HeadShape(32, 4, 128), 9, 1153)  # three blocks and three blocks and three and one: 144 tiles
def test_even_batches_are_the_same_played_through_or_not(shape: HeadShape, requests: int, length: int) -> None:
    """But where there is little more than one wave of splits, as short ones among the first make room for the rest."""
    played, costs = batch_load(shape, [1] * requests, [length] * requests, SMS), tile_costs(shape.dim)
    even = even_decodes(shape, requests, np.array([float(length)]), SMS)
    waves = played.combining / costs.small_combine
    assert even.whole[0] == pytest.approx(played.microseconds(costs), rel=0.5 if 1 < waves < 1.5 else 0.08)


@settings(max_examples=60)
@given(shapes, st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 20_000)), min_size=1, max_size=20))
def test_no_batch_is_done_before_its_work(shape: HeadShape, requests: list[tuple[int, int]]) -> None:
    queries = [new for new, _ in requests]
    keys = [new + before for new, before in requests]
    load = batch_load(shape, queries, keys, SMS)
    fastest = tile_costs(shape.dim).lone if load.small else 1.0
    assert load.last >= fastest * load.mean > 0 and load.last >= fastest * load.largest
    longer = batch_load(shape, queries, [key + 4096 for key in keys], SMS)
    assert longer.mean > load.mean


def test_uneven_batches_cost_most_around_one_wave() -> None:
    lengths = np.array([1500.0])
    few, one, many = (float(unevenness(LLAMA, n, lengths, SMS)[0]) for n in (2, 16, 200))
    assert one > 1.15 and few < 1.1 and many < 1.05
    assert float(unevenness(LLAMA, 1, lengths, SMS)[0]) == 1.0


def test_the_table_holds_for_batches_of_prompts_and_what_they_generated() -> None:
    """Drawn as a server has them: in the order of what they have generated, and mostly of prompt."""
    dice = random.Random(5)
    for requests in (18, 24, 36, 48, 72, 112):
        ratios = []
        for _ in range(60):
            ages = sorted((dice.random() for _ in range(requests)), reverse=True)
            keys = [1 + int(900 * dice.lognormvariate(0.0, 0.6) + 500 * age) for age in ages]
            mean = np.array([sum(keys) / requests])
            smooth = even_decodes(LLAMA, requests, mean, SMS).smooth[0]
            ratios.append(decodes(*keys) / (smooth * unevenness(LLAMA, requests, mean, SMS)[0]))
        assert np.mean(ratios) == pytest.approx(1.0, abs=0.035)


def test_places_and_lengths_go_together_as_little_as_in_real_conversations() -> None:
    """All decoding at one pace, a request is met as often as it has tokens to generate, anywhere on its way."""
    if not CONVERSATIONS.exists():
        pytest.skip("the trace of conversations is not beside this checkout")
    with CONVERSATIONS.open() as lines:
        asked = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(lines)]
    dice = random.Random(5)
    met = dice.choices(asked, [output for _, output in asked], k=20_000)
    generated = np.array([dice.random() * output for _, output in met])
    lengths = np.array([prompt for prompt, _ in met]) + generated
    together = float(np.corrcoef(generated.argsort().argsort(), np.log(lengths))[0, 1])
    drawn = [np.corrcoef(range(64, 0, -1), np.log(draw_batch(dice, 64, 4096)))[0, 1] for _ in range(300)]
    assert together == pytest.approx(0.36, abs=0.02)
    assert np.mean(drawn) == pytest.approx(together, abs=0.03)


def test_a_shape_left_out_is_predicted_from_the_others() -> None:
    bundle = shipped_bundle("h200")
    assert bundle is not None
    for heads in (HeadShape(40, 8, 128), HeadShape(64, 8, 64)):
        mine = [row for row in bundle.families["attention"] if (row["heads"], row["kv_heads"], row["dim"]) == heads]
        plain = [row for row in mine if not row.keys() & {"window", "kv_bytes", "pool"}]
        rest = [row for row in bundle.families["attention"] if row not in mine]
        without = MeasuredSource(find_gpu("h200"), replace(bundle, families={**bundle.families, "attention": rest}))
        sample = plain[:: max(1, len(plain) // 60)]
        errors = [without.attention.batch(heads, row["queries"], row["keys"]) * 1e6 / row["us"] - 1 for row in sample]
        assert len(sample) > 40 and np.median(np.abs(errors)) < 0.06 and np.percentile(np.abs(errors), 95) < 0.25
