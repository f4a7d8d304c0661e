"""What a tail policy cost: tokens thrown away, and samples made by the weights of several versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from steelyard.posttrain.loop import Loop


def tail_figures(loop: Loop) -> dict[str, Any]:
    """For the summary, where the scenario has a tail policy or trains on groups as they come."""
    scenario, record = loop.setup.scenario, loop.record
    found: dict[str, Any] = {}
    if scenario.streaming:
        found["parts_per_step"] = sum(len(step.spans) for step in record.steps) / len(record.steps)
    if scenario.tail.kind == "none":
        return found
    trained = [(step, attempt) for step, batch in enumerate(record.batches) for attempt in batch]
    thrown = sum(attempt.generated for attempt in record.thrown)
    kept = sum(attempt.generated for _, attempt in trained)
    found["tail"] = {
        "policy": scenario.tail.kind,
        "thrown_away": {
            "samples": len(record.thrown),
            "tokens": thrown,
            "share": thrown / (thrown + kept),
        },
        "staleness_by_oldest_token": _counted(step - attempt.oldest for step, attempt in trained),
        "versions_per_sample": _counted(len(attempt.versions) for _, attempt in trained),
        "freed_gpu_seconds": loop.stage.replicas.freed_gpu_seconds,
    }
    return found


def _counted(values: Iterable[int]) -> dict[str, int]:
    return {str(value): count for value, count in sorted(Counter(values).items())}
