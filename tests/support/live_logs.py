"""What must hold in the log of any live run."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steelyard.balance.log import read_header, replay
from steelyard.emulate.openai import logprob_of
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
    _check_places(rows)
    published = [row["version"] for row in events if row["kind"] == "WeightsPublished"]
    assert published == list(range(steps + 1))
    return events


def _check_places(rows: list[dict[str, Any]]) -> None:
    """No turn is placed on an engine that is down, and no engine is up twice."""
    up: dict[int, int] = {}
    for row in rows:
        match row["kind"]:
            case "ReplicaUp":
                up[row["replica"]] = max(row["epoch"], up.get(row["replica"], -1))
            case "ReplicaDown":
                if up.get(row["replica"]) == row["epoch"]:
                    del up[row["replica"]]
            case "Place":
                assert row["replica"] in up, row


def check_versions(store: Path, journal: Path) -> None:
    """Every token of a sample that was trained on has a weight version, none newer than its step's. Where the journal
    has log-probs of emulated engines, these are the versions that the tokens were really made with."""
    rows = [row for _, row in log_rows(store)][1:]
    steps = {name: row["step"] for row in rows if row["kind"] == "TrainOn" for name in row["trajectories"]}
    db = sqlite3.connect(journal)
    turns = db.execute("SELECT name, prompt_tokens, generated, answer FROM turns").fetchall()
    db.close()
    assert {name for name, *_ in turns} >= set(steps)
    for name, prompt, generated, line in turns:
        answer = json.loads(line)
        told = {int(version): tokens for version, tokens in answer["weight_versions"].items()}
        assert sum(told.values()) == generated
        assert name not in steps or max(told) <= steps[name]
        choice = answer["choices"][0]
        if choice["logprobs"] is not None:
            assert _made_with(prompt, choice, max(steps.values()) + 1) == told


def _made_with(prompt: int, choice: dict[str, Any], newest: int) -> dict[int, int]:
    """Tokens by the version whose log-prob they have."""
    found: Counter[int] = Counter()
    pairs = zip(choice["token_ids"], choice["logprobs"]["token_logprobs"], strict=True)
    for place, (token, logprob) in enumerate(pairs, prompt):
        found[next(each for each in range(newest + 1) if logprob_of(str(each))(place, token) == logprob)] += 1
    return dict(found)


LENDING: dict[str, Any] = {
    "model": "qwen2.5-3b",
    "gpu": "a800",
    "trajectories": {
        "preset": "search",
        "prompts": 2,
        "group": 4,
        "prompt": {"kind": "uniform", "min": 6000, "max": 8000},
        "budget": {"turns": 2, "context": 12288},
        "drift": None,
    },
    "mode": "one-step-off",
    "rollout": [{"tp": 1, "replicas": 3}],
    "training": {"dp": 1, "micro_batch_tokens": 12288},
    "pool": "payoff",
    "steps": 5,
    "seed": 3,
}
"""A run whose training takes three times as long as its rollout: long prompts, short answers. A pool lends a replica
after the first step, and a step takes half as long once it trains."""


def check_pool(store: Path, engines: Mapping[int, tuple[int, ...]]) -> list[str]:
    """No GPU works for two sides: from `Drained` until training is told to leave, no engine of a replica is up, and no
    replica trains that is not drained. Returns the moves: each command with its replica."""
    up: set[int] = set()
    lent: set[int] = set()
    moves: list[str] = []
    for _, row in [*log_rows(store)][1:]:
        kind, replica = row["kind"], row.get("replica")
        if kind == "ReplicaUp":
            up.add(row["replica"])
        elif kind == "ReplicaDown":
            up.discard(row["replica"])
        elif kind == "Drained":
            lent.add(row["replica"])
        elif kind in ("Leave", "RollBack"):
            lent.discard(row["replica"])
        elif kind in ("Join", "Activate"):
            assert replica in lent
        if kind in ("Drain", "Join", "Activate", "Leave", "RollBack", "Serving"):
            moves.append(f"{kind} {replica}")
        assert not up & {number for each in lent for number in engines[each]}, row
    return moves
