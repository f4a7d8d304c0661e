"""Points with prefill and decode apart: their fleets, what is not said of them, and which had no drafts."""

from __future__ import annotations

from typing import Any

import pytest

from steelyard.validate.silicon import validate_silicon
from steelyard.validate.silicon_apart import drafted, engines_of
from steelyard.validate.silicon_points import scenario_of, why_not
from support.silicon_sample import sample
from support.silicon_tables import NOBODY

__all__ = ["sample"]  # a fixture

APART = {
    "mode": "disagg",
    "backend": "sglang",
    "silicon_data_source": "source_file=2026-04-06.csv; silicon_concurrency=6",
    "batch_size": "",
    **{f"{role}_{size}_size": "1" for role in ("prefill", "decode") for size in ("tp", "pp", "moe_tp", "moe_ep")},
    "prefill_num_workers": "2",
    "decode_num_workers": "1",
    "decode_tp_size": "2",
}
R1 = {"model_path": "deepseek-ai/DeepSeek-R1", "prefill_num_workers": "", "decode_num_workers": ""}
SIDES = {"prefill_tp_size": "8", "decode_tp_size": "8", "isl": "1024", "osl": "1024"}


def test_a_run_has_the_pools_and_the_users_that_the_sample_says(sample: Any) -> None:
    (point,) = sample(APART)
    assert why_not(point) is None and (point.concurrency, point.gpus) == (6, 4)
    scenario = scenario_of(point, "analytic")
    prefill, decode = scenario.fleet.pools
    assert (prefill.role, prefill.replicas, prefill.tp) == ("prefill", 2, 1)
    assert (decode.role, decode.replicas, decode.tp) == ("decode", 1, 2)
    assert scenario.fleet.transfer.first_token == "prefill"  # SGLang's, along with the cache
    (own,) = sample({**APART, "backend": "vllm"})
    assert scenario_of(own, "analytic").fleet.transfer.first_token == "decode"
    (alone,) = sample({})
    assert alone.gpus == 1 and alone.prefill is None


def test_whole_experts_are_on_ranks_of_their_own(sample: Any) -> None:
    more = {
        "model_path": "Qwen/Qwen3-30B-A3B",
        "decode_tp_size": "4",
        "decode_moe_ep_size": "4",
        "decode_moe_tp_size": "1",
    }
    (point,) = sample({**APART, **more})
    decode = scenario_of(point, "analytic").fleet.pools[1]
    assert (decode.tp, decode.dp, decode.expert_parallel) == (1, 4, True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"backend": "trtllm"}, "TensorRT-LLM"),
        ({"prefill_num_workers": ""}, "number of engines"),
        ({"silicon_data_source": "source_file=/own.csv"}, "number of users"),
        ({"prefill_tp_size": "16"}, "two machines"),
    ],
)
def test_what_is_not_said_is_named(sample: Any, change: dict[str, str], reason: str) -> None:
    (point,) = sample({**APART, **change})
    assert reason in str(why_not(point))


def test_inferencex_says_how_many_engines_its_own_runs_had(sample: Any) -> None:
    few, many = (
        "source_file=2026-04-06.csv; silicon_concurrency=8",
        "source_file=2026-04-06.csv; silicon_concurrency=512",
    )
    for users, engines in ((few, (1, 9)), (many, (1, 6))):
        (point,) = sample({**APART, **R1, **SIDES, "silicon_data_source": users})
        assert (point.prefill.workers, point.decode.workers) == engines and not point.engines_said
    assert engines_of("deepseek-ai/DeepSeek-R1", "h200", (1024, 1024), 4096, 1) == (0, 0)
    assert engines_of("deepseek-ai/DeepSeek-R1", "h100", (1024, 1024), 8, 1) == (0, 0)


def test_of_two_measurements_of_a_run_the_slower_had_no_drafts(sample: Any) -> None:
    run = {**APART, **R1, **SIDES}
    points = sample({**run, "silicon_tpot_ms": "7"}, {**run, "silicon_tpot_ms": "9"}, {**APART, "silicon_tpot_ms": "5"})
    assert drafted(points) == {"row0"}
    assert drafted(points[:1]) == {"row0"}  # alone, it may have had them
    assert drafted(points[2:]) == set()  # nobody measured these with drafts
    third = sample({**run, "silicon_tpot_ms": "7"}, {**run, "silicon_tpot_ms": "8"}, {**run, "silicon_tpot_ms": "9"})
    assert drafted(third) == {"row0", "row1", "row2"}


def test_they_are_scored_like_the_rest(sample: Any) -> None:
    sample(APART, {**APART, "backend": "trtllm"}, {})
    found = validate_silicon(source="analytic", rival=NOBODY)
    assert [(each.point.name, each.point.aggregated) for each in found.replays] == [("row0", False), ("row2", True)]
    apart, together = found.replays
    assert 0 < apart.ours[0] < 1 and 0 < apart.ours[1] < 0.1
    assert apart.fitted is None and together.fitted == together.ours  # one model, so no other to fit a host on
