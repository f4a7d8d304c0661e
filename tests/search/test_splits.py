"""Fleets of fixed shares keep to them, leave no engine's room unused, and are searched as well as all others."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

import pytest

from steelyard.errors import UserError
from steelyard.scenario.checking import checked
from steelyard.scenario.search import SearchScenario, SearchSpec
from steelyard.search.search import find_fleets
from steelyard.search.splits import splits

SHARES = [Fraction(1, 2), Fraction(1, 4), Fraction(1, 3), Fraction(3, 10), Fraction(29, 100), Fraction(2, 3)]


def spec(**keys: Any) -> SearchSpec:
    return SearchSpec.model_validate({"prefill": {"gpu": "h100"}, "decode": {"gpu": "h100"}, **keys})


def rows(asked: SearchSpec, one: int, other: int) -> set[tuple[int, int]]:
    found = [(int(a), int(b)) for a, b in splits(asked, one, other)]
    assert len(set(found)) == len(found)
    return set(found)


@pytest.mark.parametrize("seed", range(100))
def test_each_side_has_all_engines_that_its_share_has_room_for(seed: int) -> None:
    random = Random(seed)
    shares = random.sample(SHARES, random.randint(1, 3))
    gpus, one, other = random.randint(1, 300), random.randint(1, 16), random.randint(1, 16)
    told = {"prefill_share": [float(share) for share in shares]}
    exact = {(share * gpus // one, (1 - share) * gpus // other) for share in shares}
    assert rows(spec(gpus=gpus, **told), one, other) == {pair for pair in exact if min(pair) > 0}
    sizes = {(share * all_ // one, (1 - share) * all_ // other) for share in shares for all_ in range(1, gpus + 1)}
    assert rows(spec(gpus=gpus, objective="cost", **told), one, other) == {pair for pair in sizes if min(pair) > 0}


@pytest.mark.parametrize("seed", range(30))
def test_without_shares_every_number_of_both_is_there(seed: int) -> None:
    random = Random(seed)
    gpus, one, other = random.randint(1, 60), random.randint(1, 9), random.randint(1, 9)
    fitting = {(a, b) for a in range(1, 61) for b in range(1, 61) if a * one + b * other <= gpus}
    assert rows(spec(gpus=gpus, objective="cost"), one, other) == fitting
    fullest = {(a, b) for a, b in fitting if (a, b + 1) not in fitting}
    assert rows(spec(gpus=gpus), one, other) == fullest


SMALL: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "engine": {"max_model_len": 4096},
    "workload": {"arrivals": {"kind": "poisson", "rate": 20}, "requests": 200, "prompt": 700, "output": 40},
    "slo": {"ttft_p95": 0.5, "tpot_p95": 0.03},
    "seed": 3,
    "search": {
        "gpus": 8,
        "seconds": 1,
        "requests": 40,
        "prefill": {"gpu": "h100", "tp": [1, 2]},
        "decode": {"gpu": ["h100", "h20"], "tp": 1},
    },
}


def asked(**search_keys: Any) -> SearchScenario:
    return checked(SearchScenario, {**SMALL, "search": {**SMALL["search"], **search_keys}}, lambda _: "small")


@pytest.mark.parametrize("objective", ["throughput", "per-dollar", "cost"])
def test_a_search_of_shares_finds_what_exhaustive_simulation_finds(objective: str) -> None:
    scenario = asked(objective=objective, prefill_share=[0.25, 0.5])
    found, everything = find_fleets(scenario, workers=1), find_fleets(scenario, workers=1, exhaustive=True)
    assert found.levels[0].best is not None and everything.levels[0].best is not None
    if objective == "cost":
        assert found.levels[0].best.usd_per_hour == everything.levels[0].best.usd_per_hour
    else:
        assert [(each.name, each.score) for each in found.levels[0].choices] == [
            (each.name, each.score) for each in everything.levels[0].choices
        ]
        assert found.simulations < everything.simulations
    for choice in found.levels[0].choices:
        prefill, decode = (pool["tp"] * pool["replicas"] for pool in choice.fleet["pools"])
        assert prefill == decode or 3 * prefill == decode


def test_a_free_search_is_no_worse_than_one_of_shares() -> None:
    free, fixed = (find_fleets(asked(**keys), workers=1).levels[0].best for keys in ({}, {"prefill_share": 0.5}))
    assert free is not None and fixed is not None and free.score >= fixed.score


@pytest.mark.parametrize("share", [0, 1, 1.5, -0.5, "half", []])
def test_shares_that_are_none_are_refused(share: Any) -> None:
    with pytest.raises(UserError, match="prefill_share"):
        asked(prefill_share=share)


def test_shares_without_prefill_engines_are_refused() -> None:
    with pytest.raises(UserError, match="no fleet has engines that only prefill"):
        asked(prefill_share=0.5, prefill=None, decode=None, serve={"gpu": "h100"})
