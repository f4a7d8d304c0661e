"""Tables are made for a bounded number of tokens, and large ones do not pile up in memory."""

from __future__ import annotations

from typing import Any

import pytest

from steelyard.errors import UserError
from steelyard.scenario import scenario_from_dict
from steelyard.sim import set_up
from steelyard.sim.cache import Cache

WORKLOAD: dict[str, Any] = {"arrivals": {"kind": "burst"}, "requests": 1, "prompt": 8, "output": 2}


@pytest.mark.parametrize(
    ("fleet", "place"),
    [
        ({"gpu": "h200", "dp": 8, "expert_parallel": True}, "fleet.dp"),
        (
            {
                "pools": [
                    {"role": "attention", "gpu": "h800", "replicas": 8},
                    {"role": "ffn", "gpu": "h800", "replicas": 8},
                ]
            },
            "fleet.pools: attention.replicas",
        ),
    ],
)
def test_ranks_with_too_many_tokens_are_refused(fleet: dict[str, Any], place: str) -> None:
    engine = {"max_num_batched_tokens": 65_536}
    scenario = scenario_from_dict({"model": "qwen3-30b-a3b", "fleet": fleet, "engine": engine, "workload": WORKLOAD})
    with pytest.raises(UserError, match=rf"{place}: 8 ranks .* 524,288 tokens a step.* to 49,152"):
        set_up(scenario)


def test_heavy_entries_leave_memory_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEELYARD_CACHE", "")
    cache: Cache[int] = Cache("numbers", weigh=lambda number: number)
    made: list[int] = []

    def get(number: int) -> None:
        cache.get(str(number), lambda: made.append(number) or number)  # type: ignore[func-returns-value]

    for number in (10, 20, 30, 10):
        get(number)
    assert made == [10, 20, 30]  # 60 in all
    get(40)
    get(30)
    assert made == [10, 20, 30, 40, 30]
    get(100)  # more than all may weigh: it is kept alone
    get(100)
    assert made[-1:] == [100] and made.count(100) == 1
