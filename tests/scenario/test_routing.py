"""Routing of experts as a scenario names it: in all costs, from files, and with its mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steelyard import load_scenario, scenario_from_dict, simulate
from steelyard.errors import UserError
from steelyard.model import MoeFfn, Routing, load_model
from steelyard.scenario import json_schema
from steelyard.sim import set_up
from steelyard.sim.setup import Setup

MODEL = "qwen3-30b-a3b"
EXPERTS = 128
ZIPF = {"kind": "zipf", "exponent": 0.8}
ENGINE = {"max_num_batched_tokens": 4096, "max_num_seqs": 64}
WORKLOAD = {"arrivals": {"kind": "poisson", "rate": 20}, "requests": 40, "prompt": 200, "output": 20}
PARALLEL: dict[str, Any] = {"gpu": "h100", "dp": 4, "expert_parallel": True}
APART: dict[str, Any] = {
    "pools": [
        {"role": "attention", "gpu": "h800", "replicas": 8},
        {"role": "ffn", "gpu": "h800", "replicas": 4},
    ]
}


def scenario(routing: Any = None, fleet: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    model = {"config": MODEL} if routing is None else {"config": MODEL, "routing": routing}
    cost = {"source": "analytic"}
    return {"model": model, "fleet": fleet or PARALLEL, "engine": ENGINE, "workload": WORKLOAD, "cost": cost} | more


def pool(data: dict[str, Any], base_dir: Path | None = None) -> Setup:
    return set_up(scenario_from_dict(data, base_dir=base_dir)).pools[0]


def seconds(data: dict[str, Any], base_dir: Path | None = None) -> float:
    """Of a step with prompts so long that arithmetic counts, and not which experts have to be read."""
    found = pool(data, base_dir)
    return found.step_cost.mixed(0, 0, 0, [(4096, 0)] * found.spread).gpu


@pytest.mark.parametrize("fleet", [PARALLEL, APART, {"gpu": "h100", "tp": 2, "expert_parallel": True}])
def test_skew_slows_the_busiest_rank_and_an_even_law_is_no_law(fleet: dict[str, Any]) -> None:
    plain = seconds(scenario(fleet=fleet))
    for even in ({"kind": "uniform"}, {"kind": "zipf", "exponent": 0}):
        assert seconds(scenario(even, fleet)) == plain
    assert plain < seconds(scenario(ZIPF, fleet)) < seconds(scenario({"kind": "zipf", "exponent": 1.2}, fleet))


def test_a_uniform_law_changes_no_bit_of_a_run() -> None:
    one, other = (simulate(scenario_from_dict(scenario(routing))) for routing in (None, {"kind": "uniform"}))
    assert one.summary == other.summary
    for name, column in one.requests.items():
        np.testing.assert_array_equal(column, other.requests[name])


def test_one_gpu_reads_fewer_weights_where_few_experts_are_popular() -> None:
    """Without ranks nobody waits for anybody: a few tokens that choose the same experts are served sooner."""

    def decode(routing: Any) -> float:
        a, b, _ = pool(scenario(routing, {"gpu": "h100"})).step_cost.decode_line(8, 800, 100)
        return a + b * 800

    assert decode({"kind": "zipf", "exponent": 1.2}) < decode(None)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("loads.json", json.dumps),
        ("loads.csv", lambda loads: "\n".join(map(repr, loads))),
        ("named.csv", lambda loads: "load, tokens\n" + "\n".join(f"{load!r}, 1" for load in loads)),
        (
            "numbered.csv",
            lambda loads: "expert,load\n" + "\n".join(f"{i},{loads[i]!r}" for i in reversed(range(EXPERTS))),
        ),
    ],
)
def test_loads_of_a_file_are_the_law_they_were_counted_from(tmp_path: Path, name: str, write: Any) -> None:
    shares = Routing(exponent=0.8).shares(EXPERTS).tolist()
    (tmp_path / name).write_text(write([share * 2.0**20 for share in shares]))  # a power of two keeps all bits
    counted = seconds(scenario({"kind": "file", "path": name}), tmp_path)
    assert counted == pytest.approx(seconds(scenario(ZIPF)), rel=1e-12)
    (tmp_path / name).write_text(write([1.0] * EXPERTS))
    assert seconds(scenario({"kind": "file", "path": name}), tmp_path) == pytest.approx(seconds(scenario()), rel=1e-9)


@pytest.mark.parametrize("fleet", [PARALLEL, APART])
def test_copies_of_busy_experts_help(fleet: dict[str, Any]) -> None:
    def with_copies(copies: int, routing: Any) -> float:
        pools = [dict(each) for each in fleet.get("pools", [fleet])]
        pools[-1]["redundant_experts"] = copies
        return seconds(scenario(routing, {"pools": pools} if "pools" in fleet else pools[0]))

    assert with_copies(8, ZIPF) < 0.98 * with_copies(0, ZIPF)
    assert with_copies(8, ZIPF) == pytest.approx(with_copies(8, None), rel=0.05)  # EPLB's copies even it out


def test_layers_that_draft_are_routed_alike_and_draft_models_are_not(tmp_path: Path) -> None:
    (tmp_path / "loads.json").write_text(json.dumps([1.0] * 63 + [40.0]))
    assert isinstance(load_model("deepseek-v2-lite").layers[-1].ffn, MoeFfn)
    drafted = {"method": "draft", "num_tokens": 2, "draft_model": "deepseek-v2-lite", "acceptance": [1]}
    data = scenario(None, {"gpu": "h100", "tp": 2}, engine=ENGINE | {"speculative": drafted})
    data["model"] = {"config": "deepseek-v2-lite", "routing": {"kind": "file", "path": "loads.json"}}
    skewed = pool(data, tmp_path).cost
    data["model"] = "deepseek-v2-lite"
    even = pool(data).cost
    steps = [cost.draft.mixed(0, 0, 0, [(4096, 0)]) for cost in (skewed, even)]  # type: ignore[union-attr]
    assert steps[0] == steps[1]


def test_it_can_be_set_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "moe.yaml"
    path.write_text(json.dumps(scenario()))
    changed = load_scenario(path, ["model.routing={kind: zipf, exponent: 0.8}"])
    assert changed.model.model_dump()["routing"] == ZIPF
    step = set_up(changed).pools[0].step_cost.mixed(0, 0, 0, [(4096, 0)])
    assert step.gpu == seconds(scenario(ZIPF))
    again = load_scenario(path, ["model.routing={kind: zipf, exponent: 0.8}", "model.routing.exponent=0"])
    assert set_up(again).pools[0].step_cost.mixed(0, 0, 0, [(4096, 0)]).gpu == seconds(scenario())


def test_the_schema_tells_of_it() -> None:
    defined = json_schema()["$defs"]
    assert "routing" in defined["ModelRef"]["properties"]
    assert {"UniformRouting", "ZipfRouting", "FileRouting"} <= set(defined)


MISTAKES = [
    ({"kind": "zip"}, None, "moe.yaml: model.routing.kind: not a choice; did you mean 'zipf'? (found 'zip')"),
    ({"exponent": 1}, None, "moe.yaml: model.routing.kind: missing; choose one of uniform, zipf, file"),
    ({"kind": "zipf", "exponent": -1}, None, "moe.yaml: model.routing.exponent"),
    ("zipf", None, "moe.yaml: model.routing: must be a mapping whose `kind` is one of uniform, zipf, file"),
    ({"kind": "file", "path": "none.json"}, None, "moe.yaml: model.routing.path: {}/none.json: no such file"),
    ({"kind": "file", "path": "a.json"}, "[1, 2]", "a.json: expert loads must be 128 numbers"),
    ({"kind": "file", "path": "a.json"}, "[1, -2]", "{}/a.json: expert 1: -2 is no number of at least 0"),
    ({"kind": "file", "path": "a.json"}, "[1,\n x]", "{}/a.json:2: not valid JSON"),
    ({"kind": "file", "path": "a.json"}, '{"a": 1}', "{}/a.json: holds no list"),
    ({"kind": "file", "path": "a.json"}, json.dumps([0] * 128), "{}/a.json: no expert has a load above 0"),
    ({"kind": "file", "path": "a.json"}, json.dumps([1, 1] + [0] * 126), "a token chooses 8 experts, but fewer"),
    ({"kind": "file", "path": "a.csv"}, "1\n\nx\n", "{}/a.csv:3: 'x' is no number"),
    ({"kind": "file", "path": "a.csv"}, "1,2\n", "{}/a.csv:1: 2 columns without names"),
    ({"kind": "file", "path": "a.csv"}, "expert,load\n0,1\n1\n", "{}/a.csv:3: 1 columns where the first line names 2"),
    ({"kind": "file", "path": "a.csv"}, "expert,load\n0,1\n0,1\n", "{}/a.csv:3: expert '0'; give each of 0 to 1 once"),
    ({"kind": "file", "path": "a.csv"}, "expert,load\n0,1\n2,1\n", "{}/a.csv:3: expert '2'; give each of 0 to 1 once"),
]


@pytest.mark.parametrize(("routing", "text", "message"), MISTAKES)
def test_mistakes(tmp_path: Path, routing: Any, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / routing["path"]).write_text(text)
    with pytest.raises(UserError) as caught:
        set_up(scenario_from_dict(scenario(routing), "moe.yaml", base_dir=tmp_path))
    assert message.format(tmp_path) in str(caught.value)
    assert str(caught.value).startswith("moe.yaml: model")


def test_a_model_without_experts_has_no_routing() -> None:
    data = scenario(None, {"gpu": "h100"})
    data["model"] = {"config": "llama-3.1-8b", "routing": {"kind": "uniform"}}
    with pytest.raises(UserError, match=r"model\.routing: llama-3\.1-8b has no routed experts; leave it out"):
        set_up(scenario_from_dict(data))
