"""Decisions of vLLM 0.32's own scheduler, replayed: every step must be the same."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from steelyard.errors import UserError
from steelyard.validate.parity import compare, read_golden
from support.paths import DATA, SHARED

COMMITTED = DATA / "vllm-0.32-decisions.jsonl.gz"
ALL_DEV = SHARED / "vllm-parity" / "dev.jsonl.gz"

GOLDENS = list(read_golden(COMMITTED))
OLDER = list(read_golden(DATA / "vllm-0.28-decisions.jsonl.gz"))


@pytest.mark.parametrize("plain", [False, True], ids=["fast", "plain"])
@pytest.mark.parametrize("golden", GOLDENS, ids=[golden["name"] for golden in GOLDENS])
def test_every_decision_is_the_engines_own(golden: dict[str, Any], plain: bool) -> None:
    assert compare(golden, plain=plain).difference is None


@pytest.mark.parametrize("golden", OLDER, ids=[golden["name"] for golden in OLDER])
def test_an_older_release_decides_so_too(golden: dict[str, Any]) -> None:
    """The first 34 scenarios, run through vLLM 0.28; four of them split a long prompt that is alone."""
    assert golden["vllm"] == "0.28.0" and compare(golden).difference is None


def test_releases_differ_where_a_long_prompt_is_alone() -> None:
    newer = [compare({**golden, "vllm": "0.32.0"}) for golden in OLDER]
    apart = [verdict.name for verdict in newer if verdict.difference is not None]
    assert apart == ["own-2-89", "own-5-11", "own-3-57", "own-3-24"]


def test_the_committed_set_covers_what_it_should() -> None:
    def cases(key: str) -> set[Any]:
        return {golden["config"][key] for golden in GOLDENS}

    assert cases("async_scheduling") == cases("enable_prefix_caching") == {True, False}
    assert cases("enable_chunked_prefill") == cases("scheduler_reserve_full_isl") == {True, False}
    assert cases("policy") == {"fcfs", "priority"}
    assert {0, 3} <= cases("num_speculative_tokens")
    assert any(golden.get("aborts") for golden in GOLDENS)
    assert sum(len(step[3]) for golden in GOLDENS for step in golden["steps"]) > 100  # preemptions


def test_the_whole_dev_set() -> None:
    if not ALL_DEV.exists():
        pytest.skip("the dev set of decisions is not beside this checkout")
    verdicts = [compare(golden) for golden in read_golden(ALL_DEV)]
    assert [verdict for verdict in verdicts if verdict.difference is not None] == []
    assert len(verdicts) == 98


@pytest.mark.parametrize("field", ["scheduled at", "ends at", "scheduled tokens", "preempted", "free blocks"])
def test_a_changed_step_is_found(field: str) -> None:
    golden = copy.deepcopy(GOLDENS[0])
    step = golden["steps"][5]
    if field == "scheduled tokens":
        step[2][next(iter(step[2]))] += 1
    elif field == "preempted":
        step[3] = [golden["requests"][0]["id"]]
    else:
        at = {"scheduled at": 0, "ends at": 1, "free blocks": 4}[field]
        step[at] += 1 if field == "free blocks" else 2e-6
    difference = compare(golden).difference
    assert difference is not None and difference.startswith("step 5: ") and field in difference


@pytest.mark.parametrize("key", ["first_token", "finish", "cached"])
def test_a_changed_request_is_found(key: str) -> None:
    golden = copy.deepcopy(next(golden for golden in GOLDENS if not golden.get("aborts")))
    name = golden["requests"][-1]["id"]
    golden[key][name] += 1
    difference = compare(golden).difference
    assert difference is not None and difference.startswith(f"request {name}: {key}")


def test_missing_steps_are_found_at_either_end() -> None:
    golden = copy.deepcopy(GOLDENS[0])
    golden["steps"].append(golden["steps"][-1])
    assert "ours had ended" in str(compare(golden).difference)
    del golden["steps"][-2:]
    assert "ours goes on" in str(compare(golden).difference)


def test_settings_we_do_not_have_are_refused() -> None:
    golden = copy.deepcopy(GOLDENS[0])
    golden["config"]["sliding_window"] = 128
    with pytest.raises(UserError, match="sliding_window=128"):
        compare(golden)
    del golden["config"]["block_size"], golden["config"]["sliding_window"]
    with pytest.raises(UserError, match="block_size"):
        compare(golden)


def test_an_unreadable_file_is_named_with_its_line(tmp_path: Path) -> None:
    broken = tmp_path / "golden.jsonl"
    broken.write_text("{}\n{not json\n")
    with pytest.raises(UserError, match=r"golden\.jsonl:2"):
        list(read_golden(broken))
    with pytest.raises(UserError, match="absent"):
        list(read_golden(tmp_path / "absent.jsonl.gz"))
