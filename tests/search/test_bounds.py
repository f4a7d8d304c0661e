"""Bounds are sound: no fleet carries a rate above its own in a simulation.

`BOUNDS=10000 pytest tests/search/test_bounds.py` tries candidates of that many random searches, one of each on average.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from steelyard.errors import UserError
from steelyard.scenario.checking import checked
from steelyard.scenario.search import SearchScenario
from steelyard.search.candidates import Space
from steelyard.search.contest import CandidateKey, RateTrial
from steelyard.search.search import _Search
from steelyard.search.simulations import simulate_point

SEARCHES = int(os.environ.get("BOUNDS", "40"))
AT_ONCE = 20  # searches of a test
EACH = 2  # candidates of each group of a search
MOST_REQUESTS = 10_000  # of a simulation

MODELS: list[dict[str, Any]] = [
    {"model": "llama-3.1-8b", "tp": [1, 2, 4]},
    {"model": "qwen3-32b", "tp": [1, 2, 4, 8]},
    {"model": "qwen3-30b-a3b", "tp": [1, 2, 4], "dp": [1, 2, 4], "expert_parallel": [False, True]},
    {"model": {"config": "step3", "quantization": "fp8"}, "tp": [4, 8], "dp": [2, 4], "expert_parallel": [True]},
]


def lengths(random: Random, longest: int) -> Any:
    if random.random() < 0.5:
        return random.choice([16, 128, 700, longest])
    median = random.choice([32, 200, longest // 4])
    return {"kind": "lognormal", "median": median, "p95": 3 * median, "max": 4 * longest}


def drawn_search(seed: int) -> SearchScenario:
    """A search with a few kinds of engines of one architecture."""
    random = Random(seed)
    chosen = dict(random.choice(MODELS))
    model = chosen.pop("model")
    engine = {
        "max_num_seqs": random.choice([8, 64, 256]),
        "max_num_batched_tokens": random.choice([256, 2048, 8192]),
        "max_model_len": 16384,
        "enable_prefix_caching": False,
    }
    gpus = random.choice(["h100", "h200", "h800", "a100", "h20"])
    pool = {"gpu": gpus, **{key: random.choice(values) for key, values in chosen.items()}}
    architecture = random.choice(["co-located", "pdd", "pdd", "afd" if "expert_parallel" in chosen else "co-located"])
    search: dict[str, Any] = {"gpus": 64, "seconds": random.choice([1.0, 5.0]), "requests": random.choice([60, 200])}
    if architecture == "co-located":
        search["serve"] = pool
    elif architecture == "pdd":
        search |= {"prefill": pool, "decode": {**pool, "engine": {"max_num_batched_tokens": 512}}}
        search["transfer"] = {"first_token": random.choice(["prefill", "decode"])}
        engine["max_num_seqs"] = min(512, engine["max_num_seqs"])
    else:
        search["attention"] = {"gpu": gpus, "tp": random.choice([1, 2]), "instances": random.choice([2, 4])}
        search["ffn"] = {"gpu": gpus, "instances": 8}
        if random.random() < 0.5:
            search["prefill"] = {"gpu": gpus, "tp": 8}
    slo = {
        random.choice(["ttft_p95", "ttft_p99", "ttft_p50", "ttft_mean"]): random.choice([0.2, 1.0, 5.0]),
        random.choice(["tpot_p95", "tpot_p90", "tpot_p50"]): random.choice([0.01, 0.03, 0.1]),
    }
    if random.random() < 0.2:
        slo = {"e2e_p95": random.choice([2.0, 10.0])}
    arrivals = random.choice(
        [{"kind": "poisson", "rate": 5}, {"kind": "gamma", "rate": 5, "cv": 2}, {"kind": "constant", "rate": 5}]
    )
    workload = {"arrivals": arrivals, "requests": 500, "prompt": lengths(random, 2000), "output": lengths(random, 400)}
    said = {"model": model, "engine": engine, "workload": workload, "slo": slo, "search": search, "seed": seed}
    return checked(SearchScenario, said, lambda _: f"seed {seed}")


def bounded(scenario: SearchScenario) -> tuple[_Search, Space]:
    """The search's candidates, with their bounds."""
    found = _Search(scenario, exhaustive=True, progress=None)
    return found, found.prepared()


@pytest.mark.parametrize("first", range(0, SEARCHES, AT_ONCE))
def test_no_fleet_carries_more_than_its_bound(first: int, record_property: Callable[[str, object], None]) -> None:
    tried = 0
    for seed in range(first, first + AT_ONCE):
        scenario = drawn_search(seed)
        try:
            search, space = bounded(scenario)
        except UserError:  # no fleet can work
            continue
        random = Random(seed)
        for number, group in enumerate(space.groups):
            for row in random.sample(range(len(group)), min(EACH, len(group))):
                place = search.grid.above(float(group.bound[row]))
                if place >= len(search.grid.rates) or search.grid.requests(place) > MOST_REQUESTS:
                    continue
                tried += 1
                outcome = simulate_point(scenario, search.point(RateTrial(CandidateKey(number, row), place, False)))
                assert not outcome.meets(search.loosest), f"seed {seed}: {group.name(row)} carries more than its bound"
    record_property("candidates", tried)
    assert tried > AT_ONCE // 4
