"""Summaries go to JSON and come back, whatever kind of fleet they are of."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from steelyard import load_scenario, simulate
from steelyard.sim import Summary, with_intervals
from support.paths import EXAMPLES

FEW = {
    "quickstart": 150,
    "faults": 60,
    "pdd": 60,
    "tiered-kv": 30,
    "afd": 8,
    "pipeline": 8,
    "speculative": 20,
    "rollout-burst": 8,
}


def there_and_back(summary: Summary) -> Summary:
    return Summary.from_dict(json.loads(json.dumps(summary.to_dict(), allow_nan=False)))


@pytest.mark.parametrize("name", FEW)
def test_what_was_written_reads_back(name: str) -> None:
    summary = simulate(load_scenario(EXAMPLES / f"{name}.yaml", [f"workload.requests={FEW[name]}"])).summary
    assert there_and_back(summary) == summary
    assert list(summary.to_dict()) == [each.name for each in fields(Summary) if each.name in summary.to_dict()]


def test_intervals_read_back(tmp_path: Path) -> None:
    run = load_scenario(EXAMPLES / "quickstart.yaml", ["workload.requests=40"])
    summary = with_intervals(simulate(run), workers=0).summary
    assert there_and_back(summary) == summary and summary.intervals is not None
