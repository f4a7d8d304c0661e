"""The readers on real traces and captures, where those are at hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from steelyard.workload import Workload, read_trace
from steelyard.workload.columns import in_order
from support.paths import SHARED

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not there")


def read(name: str) -> Workload:
    work = in_order(read_trace(SHARED / name))
    work.validate()
    return work


def covered(work: Workload) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    assert work.content is not None
    return np.array([sum(length for _, length in content) for content in work.content])


@pytest.mark.parametrize("name", ["conv", "code"])
def test_azure(name: str) -> None:
    path = SHARED / f"traces/AzureLLMInferenceTrace_{name}.csv"
    work = read(str(path.relative_to(SHARED)))
    cells = [line.split(",") for line in path.read_text().splitlines()[1:]]
    stamps = np.array([stamp for stamp, _, _ in cells], dtype="datetime64[ns]")
    assert np.array_equal(work.at, (stamps - stamps[0]).astype(np.int64) / 1e9)
    assert work.prompt.tolist() == [int(prompt) for _, prompt, _ in cells]
    assert work.output.tolist() == [int(output) for _, _, output in cells]
    assert work.content is None and work.notes == []


def test_mooncake() -> None:
    path = SHARED / "traces/mooncake_conversation.jsonl"
    work = read("traces/mooncake_conversation.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert work.prompt.tolist() == [row["input_length"] for row in rows]
    users: dict[int, int] = {}
    for row in rows:
        for block in row["hash_ids"]:
            users[block] = users.get(block, 0) + 1
    shared = [sum(users[block] > 1 for block in row["hash_ids"]) * 512 for row in rows]
    assert covered(work).tolist() == np.minimum(shared, work.prompt).tolist()


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_token_ids(name: str) -> None:
    path = SHARED / f"llmservingsim/workloads/sharegpt-{name}-300-sps10.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    work = read(str(path.relative_to(SHARED)))
    assert work.prompt.tolist() == [row["input_toks"] for row in rows]
    assert work.at.tolist() == pytest.approx([row["arrival_time_ns"] / 1e9 for row in rows])
    # a prompt's content reaches exactly as far as it agrees with some earlier prompt and output
    ids = [np.array(row["input_tok_ids"] + row["output_tok_ids"]) for row in rows]
    for i in range(0, 300, 7):
        best = 0
        for j in range(i):
            n = min(len(ids[j]), int(work.prompt[i]))
            parted = np.flatnonzero(ids[j][:n] != ids[i][:n])
            best = max(best, int(parted[0]) if len(parted) else n)
        assert covered(work)[i] == best


def test_captures() -> None:
    for path in sorted(SHARED.glob("h200-vllm-0.26/*/*.workload.json")):
        rows = json.loads(path.read_text())["requests"]
        work = read(str(path.relative_to(SHARED)))
        assert len(work) == len(rows)
        assert (work.content is not None) == any("prefix" in row for row in rows)
    burst = read("h200-vllm-0.26/llama-3.1-8b/rollout-burst.workload.json")
    assert burst.streams == 48
    assert (covered(burst) == burst.prompt - 1).all()
