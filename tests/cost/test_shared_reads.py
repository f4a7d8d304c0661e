"""What a batch need not read from memory, and that a setup knows when that can be told."""

from __future__ import annotations

import pytest

from steelyard.cost.shared_reads import SharedReads
from steelyard.hardware import find_gpu
from steelyard.scenario import Scenario, scenario_from_dict
from steelyard.sim.setup import set_up


def test_the_cache_holds_what_a_layer_has_read() -> None:
    """Llama-3.1-8B caches 2 * 8 heads * 128 * 2 bytes of a token in each layer, and half of them with two GPUs."""
    held = find_gpu("h200").l2_bytes / 4096
    for tp in (1, 2):
        (pool,) = set_up(scenario(fleet={"gpu": "h200", "tp": tp})).pools
        assert pool.shared_reads is not None
        assert pool.shared_reads.tokens == pytest.approx(held * tp)


def test_engines_of_other_kinds_and_on_gpus_never_measured_read_all_they_hold() -> None:
    drafting = scenario(engine={"speculative": {"method": "ngram", "num_tokens": 2, "acceptance": [1, 0]}})
    parallel = scenario(fleet={"gpu": "h200", "pp": 2})
    unknown = scenario(fleet={"gpu": "h100"})
    for each in (drafting, parallel, unknown):
        assert set_up(each).pools[0].shared_reads is None


def test_two_of_a_prefix_find_it_as_often_as_they_lie_close_together() -> None:
    """Two points on a line are closer than a tenth of it with a probability of 1 - 0.9^2. Half of it is gained."""
    spared = SharedReads(6554.6).spared(65536, several=4000, again=4000)
    assert spared.low == 65536 and spared.high == 65536 + 8191
    assert spared.tokens == pytest.approx(0.48 * 4000 * 0.19, abs=1)


def test_the_more_is_shared_and_the_less_read_the_more_is_spared_up_to_a_third_or_so() -> None:
    reads = SharedReads(5000.0)
    by_again = [reads.spared(50_000, 1000, again).tokens for again in range(500, 8000, 500)]
    assert by_again == sorted(by_again) and by_again[0] < by_again[1]
    assert reads.spared(50_000, 500, 49_000).tokens == int(0.37 * 49152)
    by_kv = [reads.spared(kv, 1000, 2000).tokens for kv in range(30_000, 300_000, 5_000)]
    assert by_kv == sorted(by_kv, reverse=True) and by_kv[0] > by_kv[-1]


@pytest.mark.parametrize("again", [200, 2_000, 200_000])
def test_a_step_at_the_low_end_reads_no_more_than_any_that_follows(again: int) -> None:
    """Which is what an engine says about its next end by."""
    reads = SharedReads(3000.0)
    read = [kv - reads.spared(kv, 150, again).tokens for kv in range(1, 40_000)]
    for kv in range(1, 40_000, 77):
        spared = reads.spared(kv, 150, again)
        assert spared.low <= kv <= spared.high
        assert spared.low - spared.tokens <= min(read[kv - 1 :])


def scenario(**given: object) -> Scenario:
    return scenario_from_dict(
        {
            "model": "llama-3.1-8b",
            "fleet": {"gpu": "h200"},
            "workload": {
                "arrivals": {"kind": "burst"},
                "requests": 2,
                "prompt": {"kind": "fixed", "tokens": 8},
                "output": {"kind": "fixed", "tokens": 8},
            },
            **given,
        }
    )
