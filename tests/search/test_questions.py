"""Further questions of capacity: the best split, the break-even price, and what the answer depends on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from steelyard.cli import app
from steelyard.errors import UserError
from steelyard.hardware import find_gpu
from steelyard.report.questions import break_even_lines, ratio_lines
from steelyard.report.tornado import tornado_lines, tornado_page
from steelyard.scenario import Scenario, scenario_from_dict
from steelyard.search.assumptions import assumptions
from steelyard.search.breakeven import break_even
from steelyard.search.capacity import largest_rate
from steelyard.search.loads import Load
from steelyard.search.ratio import best_ratio
from steelyard.search.tornado import tornado
from steelyard.sim.setup import set_up
from support.paths import EXAMPLES
from support.sizing import APART, SMALL, small, small_load


def apart(prefill: int = 2, decode: int = 2, **more: Any) -> Scenario:
    pools = [
        {"role": "prefill", "gpu": "h100", "replicas": prefill},
        {"role": "decode", "gpu": "h100", "replicas": decode},
    ]
    return scenario_from_dict({**APART, "fleet": {"pools": pools}, **more}, "apart.yaml")


def rate_of(scenario: Scenario) -> float:
    return largest_rate(set_up(scenario), Load(scenario)).rate


# -- the best split ----------------------------------------------------------------------------------------------------


def test_every_split_of_the_same_gpus_is_tried_and_the_best_comes_first() -> None:
    found = best_ratio(apart())
    assert found.gpus == 4 and found.pools == ("prefill", "decode")
    by_split = {each.replicas: each.rate for each in found.splits}
    assert by_split == {(p, 4 - p): rate_of(apart(p, 4 - p)) for p in (1, 2, 3)}
    assert found.best.rate == max(by_split.values())
    lines = ratio_lines(found)
    assert f"{found.best.replicas[0]} x prefill + {found.best.replicas[1]} x decode carries" in lines[0]
    assert lines[1].startswith("next: ") and len(lines) == 5
    assert best_ratio(apart(), workers=2) == found


def test_engines_keep_their_layouts() -> None:
    pools = [{"role": "prefill", "gpu": "h100", "tp": 2, "replicas": 2}, {"role": "decode", "gpu": "h100", "tp": 4}]
    found = best_ratio(scenario_from_dict({**APART, "fleet": {"pools": pools}}))
    assert found.gpus == 8 and {each.replicas for each in found.splits} == {(2, 1)}


def test_attention_and_ffn_are_split_by_units() -> None:
    written = yaml.safe_load((EXAMPLES / "afd.yaml").read_text())
    written["fleet"]["afd"]["units"] = 2
    written["workload"]["requests"] = 40
    found = best_ratio(scenario_from_dict(written))
    assert found.gpus == 16 and {each.replicas for each in found.splits} == {(a, 16 - a) for a in range(2, 16, 2)}
    refused = {each.replicas: each.refused for each in found.splits if each.refused}
    assert "FFN weights" in refused[(14, 2)] and not found.best.refused


@pytest.mark.parametrize(
    ("fleet", "told"),
    [
        ({"gpu": "h100"}, "needs one pool of each role"),
        (
            {
                "pools": [
                    {"name": n, "role": r, "gpu": "h100"}
                    for n, r in (("a", "prefill"), ("b", "prefill"), ("c", "decode"))
                ]
            },
            "found prefill, prefill, decode",
        ),
        ({"pools": [{"role": r, "gpu": "h100", "replicas": 300} for r in ("prefill", "decode")]}, "599 splits"),
    ],
)
def test_fleets_that_cannot_be_split(fleet: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        best_ratio(small(fleet=fleet))


def test_no_split_can_work() -> None:
    with pytest.raises(UserError, match="no split of the GPUs can work; the first of 3"):
        best_ratio(apart(model="llama-3.1-70b"))


# -- the break-even price ----------------------------------------------------------------------------------------------


def test_at_the_break_even_price_tokens_per_dollar_are_equal() -> None:
    scenario = apart()
    found = break_even(scenario, "decode=h20")
    assert found.price is not None and found.gpus == 2
    pools = [
        {"role": "prefill", "gpu": "h100", "replicas": 2},
        {"role": "decode", "gpu": "h20", "tp": found.tp, "replicas": 2 // found.tp, "price_per_hour": found.price},
    ]
    other = scenario_from_dict({**APART, "fleet": {"pools": pools}})
    fleets = [set_up(each) for each in (scenario, other)]
    usd = [sum(pool.gpus * pool.price_per_hour for pool in fleet.pools) for fleet in fleets]
    assert rate_of(other) / usd[1] == pytest.approx(rate_of(scenario) / usd[0], rel=1e-9)
    assert break_even_lines(found)[0].startswith("h20 in decode breaks even at $")


def test_the_same_gpu_breaks_even_at_its_own_price() -> None:
    found = break_even(small(), "serve=h100")
    assert found.price == pytest.approx(find_gpu("h100").price_per_hour) and found.other_rate == found.own_rate


def test_a_type_that_needs_another_layout_gets_one() -> None:
    """70B in BF16 does not fit on one H200's worth of A100s, but on more of them."""
    scenario = small(model="llama-3.1-70b", fleet={"gpu": "h200", "tp": 2, "replicas": 2}, slo={"tpot_p95": 0.2})
    found = break_even(scenario, "serve=l40s")
    assert found.refused or found.tp == 4


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("h20", "must read POOL=GPU, such as serve=h20"),
        ("=h20", "must read POOL=GPU"),
        ("decode=h20", "no pool is called decode"),
        ("serve=h2000", "--break-even serve=h2000: .*h2000"),
    ],
)
def test_questions_that_make_no_sense(asked: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        break_even(small(), asked)


def test_no_price_without_a_rate() -> None:
    with pytest.raises(UserError, match="carries no rate within its limits"):
        break_even(small(slo={"tpot_p95": 0.0001}), "serve=h200")
    slower = break_even(small(slo={"tpot_p95": 0.009}), "serve=l40s")
    assert slower.price is None and break_even_lines(slower)[0].startswith("no price: ")


# -- what the answer depends on ----------------------------------------------------------------------------------------


def test_every_assumption_is_moved_both_ways_and_the_widest_comes_first() -> None:
    scenario = small()
    found = tornado(scenario)
    assert found.rate == rate_of(scenario)
    names = {swing.name for swing in found.swings}
    assert {"step times", "host times", "prompt lengths", "output lengths", "burstiness of arrivals"} <= names
    assert {"limit ttft_p95", "limit tpot_p95", "gpu_memory_utilization"} <= names
    effects = [swing.effect(found.rate) for swing in found.swings]
    assert effects == sorted(effects, reverse=True) and effects[0] > 0.05
    assert all(len(swing.rates) == 2 for swing in found.swings)
    prompt = dict(next(swing.rates for swing in found.swings if swing.name == "prompt lengths"))
    assert prompt["-20%"] > found.rate > prompt["+20%"]
    assert tornado(scenario, workers=2) == found
    page = tornado_page(found, scenario.name)
    assert all(f">{name}: " in page for name in names)
    assert len(tornado_lines(found)) == 1 + len(names)


def moved(scenario: Scenario) -> dict[str, list[Scenario]]:
    found = assumptions(scenario, set_up(scenario))
    return {each.name: [move.scenario for move in each.moves] for each in found}


@pytest.mark.parametrize(
    ("written", "longer"),
    [
        (100, {"kind": "fixed", "tokens": 120}),
        ({"kind": "uniform", "min": 10, "max": 20}, {"kind": "uniform", "min": 12, "max": 24}),
        ({"kind": "zipf", "min": 10, "max": 20}, {"kind": "zipf", "min": 12, "max": 24}),
        ({"kind": "lognormal", "median": 10, "p95": 20}, {"kind": "lognormal", "median": 12.0, "p95": 24.0}),
        ({"kind": "empirical", "values": [10, 1]}, {"kind": "empirical", "values": (12, 1)}),
        ({"kind": "empirical", "histogram": [[10, 20, 1]]}, {"kind": "empirical", "histogram": ((12, 24, 1.0),)}),
    ],
)
def test_lengths_of_every_kind_are_scaled(written: Any, longer: dict[str, Any]) -> None:
    found = moved(small_load(output=written))["output lengths"][1].workload.mix[0].output
    assert found is not None and found.model_dump(exclude_unset=True) == longer


def test_lengths_from_a_file_and_traces_are_left_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("5\n6\n")
    workload = {**SMALL["workload"], "output": {"kind": "empirical", "file": "lengths.txt"}}
    found = moved(scenario_from_dict({**SMALL, "workload": workload}, base_dir=tmp_path))
    assert "output lengths" not in found and "prompt lengths" in found


@pytest.mark.parametrize(
    ("arrivals", "cvs"),
    [
        ({"kind": "poisson", "rate": 4}, [0.5, 2.0]),
        ({"kind": "gamma", "rate": 4, "cv": 3}, [1.5, 6.0]),
        ({"kind": "constant", "rate": 4}, [1.0]),
        ({"kind": "varying", "profile": [[0, 4]]}, None),
    ],
)
def test_burstiness(arrivals: dict[str, Any], cvs: list[float] | None) -> None:
    found = moved(small_load(arrivals=arrivals)).get("burstiness of arrivals")
    got = None if found is None else [each.workload.mix[0].arrivals.cv for each in found]  # type: ignore[union-attr]
    assert got == cvs


def test_what_is_shared_is_moved_where_there_is_something() -> None:
    assert not {"shared prefix", "prefix-cache hits"} & moved(small()).keys()
    found = moved(small_load(prefix=100))
    assert [each.workload.mix[0].prefix.tokens for each in found["shared prefix"]] == [80, 120]  # type: ignore[union-attr]
    assert [each.engine.enable_prefix_caching for each in found["prefix-cache hits"]] == [False]
    assert "prefix-cache hits" not in moved(small_load(prefix=100).replace(engine={"enable_prefix_caching": False}))


def test_moves_that_make_no_sense_are_left_out() -> None:
    """Tiers need the prefix cache that one move would turn off."""
    scenario = small_load(prefix=100).replace(engine={"tiers": [{"kind": "host", "size": "32GB", "bandwidth": "50GB"}]})
    assert "prefix-cache hits" not in moved(scenario) and "shared prefix" in moved(scenario)


def test_pools_with_settings_of_their_own_are_moved_too() -> None:
    pools = [{"gpu": "h100", "engine": {"gpu_memory_utilization": 0.7}}]
    low, high = moved(small(fleet={"pools": pools}))["gpu_memory_utilization"]
    found = [each.engine_of(each.fleet.pools[0]).gpu_memory_utilization for each in (low, high)]
    assert found == pytest.approx([0.87, 0.97])


def test_an_answer_of_nothing_cannot_be_compared() -> None:
    with pytest.raises(UserError, match="carries no rate within its limits"):
        tornado(small(slo={"tpot_p95": 0.0001}))


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(APART))
    return path


def test_each_question_has_an_answer_in_a_line_and_as_json(file: Path) -> None:
    page = file.parent / "new" / "t.html"
    for words, key in (
        ((), "rate"),
        (("--rate", "30"), "pools"),
        (("--ratio",), "splits"),
        (("--break-even", "decode=h20"), "price_per_hour"),
        (("--tornado", "--page", str(page)), "swings"),
    ):
        told = CliRunner().invoke(app, ["capacity", str(file), *words])
        assert told.exit_code == 0 and told.output.splitlines()[0], told.output
        assert key in json.loads(CliRunner().invoke(app, ["capacity", str(file), *words, "--json"]).output)
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--ratio", "--tornado"], "--ratio and --tornado are different questions"),
        (["--rate", "5", "--break-even", "decode=h20"], "--rate and --break-even are different questions"),
        (["--page", "x.html"], "only --tornado has a chart"),
        (["--tornado", "--page", "s.yaml"], "is an input of this command"),
    ],
)
def test_one_question_at_a_time(file: Path, words: list[str], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    with pytest.raises(UserError, match=told):
        CliRunner().invoke(app, ["capacity", "s.yaml", *words], catch_exceptions=False)
