"""What must hold in the log of any live run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from steelyard.balance.log import read_header, replay
from steelyard.live.store import log_rows

SCENARIO: dict[str, Any] = {
    "model": "qwen2.5-0.5b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 2, "group": 4},
    "mode": "asynchronous",
    "rollout": [{"tp": 1, "replicas": 2}],
    "training": {"dp": 1},
    "steps": 3,
    "seed": 3,
}
"""A small run, of eight trajectories a step."""


def check_replay(store: Path) -> None:
    """The log's events lead to the same commands again."""
    rows = log_rows(store)
    where, header = next(rows)
    events = 0
    for each in replay(rows, read_header(header, where).settings.core()):
        assert each.logged == each.decided, each.event
        events += 1
    assert events > 0


def check(store: Path, steps: int, batch: int, whole: bool) -> list[dict[str, Any]]:
    """No sample is trained on twice, none without having ended, and steps are whole unless groups may be late."""
    rows = [row for _, row in log_rows(store)][1:]
    events = [row for row in rows if "id" in row]
    ended = Counter(row["trajectory"] for row in events if row["kind"] == "Ended")
    trained = [name for row in rows if row["kind"] == "TrainOn" for name in row["trajectories"]]
    assert len(trained) == len(set(trained)) <= steps * batch
    assert not whole or len(trained) == steps * batch
    assert set(trained) <= set(ended)
    begun = {row["trajectory"] for row in events if row["kind"] == "Begun"}
    assert set(ended) <= begun
    times = [row["at"] for row in events]
    assert times == sorted(times)
    published = [row["version"] for row in events if row["kind"] == "WeightsPublished"]
    assert published == list(range(steps + 1))
    return events
