"""Scenario files: short and long forms, defaults, schema."""

from __future__ import annotations

import json
from math import exp
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from steelyard.errors import UserError
from steelyard.scenario import (
    AcceptSpec,
    EngineSpec,
    FixedTokens,
    Lognormal,
    PoissonArrivals,
    PosttrainScenario,
    Scenario,
    TraceArrivals,
    json_schema,
    load_posttrain,
    load_scenario,
    posttrain_from_dict,
    posttrain_schema,
    scenario_from_dict,
)
from support.paths import EXAMPLES


def written(**changes: Any) -> dict[str, Any]:
    """A small valid scenario, with changes."""
    return {
        "model": "llama-3.1-8b",
        "fleet": {"gpu": "h100", "replicas": 2},
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 10},
            "requests": 100,
            "prompt": 512,
            "output": 64,
        },
        **changes,
    }


def test_short_forms_become_the_long_ones() -> None:
    scenario = scenario_from_dict(written(fleet={"gpu": "h200", "tp": 2, "router": "sticky"}))
    assert scenario.model.config == "llama-3.1-8b"
    assert scenario.fleet.pools[0].gpu == "h200"
    assert (scenario.fleet.pools[0].tp, scenario.fleet.pools[0].replicas) == (2, 1)
    assert scenario.fleet.router == "sticky"
    (workload,) = scenario.workload.workloads()
    assert workload.prompt == FixedTokens(kind="fixed", tokens=512)
    assert workload.arrivals == PoissonArrivals(kind="poisson", rate=10)


def test_short_and_long_forms_are_equal() -> None:
    short = written()
    long = written(
        model={"config": "llama-3.1-8b"},
        fleet={"pools": [{"name": "serve", "role": "serve", "gpu": "h100", "replicas": 2}]},
        workload={"mix": [{**short["workload"], "prompt": {"kind": "fixed", "tokens": 512}}]},
    )
    assert scenario_from_dict(short) == scenario_from_dict(long)
    assert scenario_from_dict(written(workload=[short["workload"]])) == scenario_from_dict(short)


def test_defaults_are_vllms() -> None:
    engine = scenario_from_dict(written()).engine
    assert (engine.max_num_seqs, engine.max_num_batched_tokens, engine.block_size) == (256, 8192, 16)
    assert engine.gpu_memory_utilization == 0.92
    assert engine.enable_prefix_caching and engine.enable_chunked_prefill and engine.async_scheduling
    assert engine.num_gpu_blocks is None and engine.max_model_len is None


def test_yaml_and_json_files_read_alike(tmp_path: Path) -> None:
    as_json = tmp_path / "same.json"
    as_json.write_text(json.dumps(written()))
    as_yaml = tmp_path / "same.yaml"
    as_yaml.write_text(
        "model: llama-3.1-8b\nfleet: {gpu: h100, replicas: 2}\n"
        "workload:\n  arrivals: {kind: poisson, rate: 1e1}\n  requests: 1e2\n  prompt: 512\n  output: 64\n"
    )
    assert load_scenario(as_json).model_dump() == load_scenario(as_yaml).model_dump()
    assert load_scenario(as_yaml).name == "same"
    assert load_scenario(as_yaml).base_dir == tmp_path


def test_yaml_merge_keys_are_not_duplicates(tmp_path: Path) -> None:
    path = tmp_path / "merge.yaml"
    path.write_text(
        "model: m\nfleet: {gpu: h100}\nworkload:\n"
        "  - &base {name: a, arrivals: {kind: burst}, requests: 3, prompt: 4, output: 5}\n"
        "  - {<<: *base, name: b, prompt: 9}\n"
    )
    first, second = load_scenario(path).workload.workloads()
    assert (first.prompt, second.prompt) == (
        FixedTokens(kind="fixed", tokens=4),
        FixedTokens(kind="fixed", tokens=9),
    )
    assert first.output == second.output


def test_a_mix_fills_in_what_its_workloads_leave_out() -> None:
    own = {"kind": "constant", "rate": 3}
    mix = scenario_from_dict(
        written(
            workload={
                "arrivals": {"kind": "poisson", "rate": 8},
                "requests": 1000,
                "mix": [
                    {"share": 3, "prompt": 1, "output": 1},
                    {"share": 1, "prompt": 1, "output": 1, "arrivals": own, "duration": 60},
                ],
            }
        )
    ).workload
    first, second = mix.workloads()
    assert mix.shares() == [0.75, 0.25]
    assert (first.arrivals, first.requests) == (PoissonArrivals(kind="poisson", rate=8), 1000)
    assert second.arrivals is not None and second.arrivals.kind == "constant"
    assert (second.requests, second.duration) == (None, 60)


def test_a_trace_keeps_its_own_times_by_default() -> None:
    (workload,) = scenario_from_dict(written(workload={"trace": {"file": "x.csv"}})).workload.workloads()
    assert workload.arrivals == TraceArrivals(kind="trace", scale=1.0)


def test_slo_percentiles_stand_in_for_limits_per_request() -> None:
    slo = scenario_from_dict(written(slo={"ttft_p95": 1.0, "ttft_p50": 0.2, "tpot": 0.04, "tpot_p99": 0.1})).slo
    assert slo.per_request() == {"ttft": 1.0, "tpot": 0.04}
    assert [(limit.name, limit.metric, limit.percentile, limit.seconds) for limit in slo.on_run()] == [
        ("ttft_p95", "ttft", 95, 1.0),
        ("ttft_p50", "ttft", 50, 0.2),
        ("tpot_p99", "tpot", 99, 0.1),
    ]


@pytest.mark.parametrize(
    "shape",
    [{"median": 512, "p95": 2048}, {"median": 512, "sigma": 0.5}, {"mean": 700, "sigma": 0.8}],
)
def test_lognormal_meets_what_it_is_given(shape: dict[str, float]) -> None:
    mu, sigma = Lognormal.model_validate({"kind": "lognormal", **shape}).parameters()
    found = {
        "median": exp(mu),
        "p95": exp(mu + 1.644853627 * sigma),
        "mean": exp(mu + sigma**2 / 2),
        "sigma": sigma,
    }
    assert {name: pytest.approx(found[name]) for name in shape} == shape


def test_acceptance_forms() -> None:
    assert scenario_from_dict(
        written(engine={"num_speculative_tokens": 3, "acceptance": [2, 0, 3]})
    ).engine.acceptance == AcceptSpec(cycle=(2, 0, 3))


def test_a_scenario_survives_being_written_down() -> None:
    for path in sorted(EXAMPLES.glob("*.yaml")):
        scenario = load_scenario(path)
        again = scenario_from_dict(json.loads(scenario.model_dump_json()), str(path), base_dir=path.parent)
        assert again == scenario


def test_examples_load_under_their_own_names() -> None:
    paths = sorted(EXAMPLES.glob("*.yaml"))
    assert [path.stem for path in paths] == [
        "afd",
        "autoscale",
        "azure-like-mix",
        "chat-sessions",
        "closed-loop",
        "faults",
        "moe-ep",
        "pdd-afd",
        "pdd-heterogeneous",
        "pdd",
        "pipeline",
        "quickstart",
        "reasoning-agents",
        "rollout-burst",
        "speculative",
        "tiered-kv",
    ]
    assert [load_scenario(path).name for path in paths] == [path.stem for path in paths]


def _nodes(node: Any) -> list[dict[str, Any]]:
    """Every mapping inside a schema."""
    inner = list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else []
    return ([node] if isinstance(node, dict) else []) + [each for child in inner for each in _nodes(child)]


def test_schema_describes_every_key_and_resolves() -> None:
    schema = json_schema()
    json.dumps(schema)
    for node in _nodes(schema):
        for key, value in node.get("properties", {}).items():
            if isinstance(value, dict):
                assert value.get("description"), f"{key} has no description"
        if "$ref" in node:
            assert node["$ref"].removeprefix("#/$defs/") in schema["$defs"]
    assert set(schema["properties"]) == set(Scenario.model_fields)
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == {"model", "fleet", "workload"}


def test_the_schema_of_post_training_describes_every_key_and_resolves() -> None:
    schema = posttrain_schema()
    for node in _nodes(schema):
        for key, value in node.get("properties", {}).items():
            assert not isinstance(value, dict) or value.get("description"), f"{key} has no description"
        if "$ref" in node:
            assert node["$ref"].removeprefix("#/$defs/") in schema["$defs"]
    assert set(schema["properties"]) == set(PosttrainScenario.model_fields)
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == {"model", "gpu", "trajectories", "rollout"}


@pytest.mark.parametrize("path", sorted((EXAMPLES / "posttrain").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_schema_of_post_training_takes_the_examples_and_what_they_expand_to(path: Path) -> None:
    valid = jsonschema_rs.validator_for(posttrain_schema())
    valid.validate(yaml.safe_load(path.read_text()))
    valid.validate(json.loads(load_posttrain(path).model_dump_json()))


@pytest.mark.parametrize(
    "change",
    [
        {"trajectories": {"preset": "no-such", "prompts": 4}},
        {"trajectories": {"preset": "search", "prompts_per_step": 4}},
        {"trajectories": {"prompts": 4}},
        {"mode": "colocate"},
        {"rollout": []},
        {"training": {"dp": 0}},
        {"steps": 0},
        {"stepps": 3},
    ],
    ids=str,
)
def test_the_schema_of_post_training_refuses_what_loading_refuses(change: dict[str, Any]) -> None:
    written = yaml.safe_load((EXAMPLES / "posttrain" / "search-48.yaml").read_text()) | change
    assert not jsonschema_rs.is_valid(posttrain_schema(), written)
    with pytest.raises(UserError):
        posttrain_from_dict(written)


def test_schema_documents_both_forms() -> None:
    schema = json_schema()
    fleet = {each["$ref"].split("/")[-1] for each in schema["properties"]["fleet"]["anyOf"]}
    assert fleet == {"ShortFleet", "FleetSpec"}
    assert {"type": "string"} in schema["properties"]["model"]["anyOf"]
    prompt = schema["$defs"]["WorkloadSpec"]["properties"]["prompt"]
    assert any(each.get("type") == "integer" for each in _nodes(prompt))
    assert any(each.get("$ref") == "#/$defs/Lognormal" for each in _nodes(prompt))
    assert any(key.startswith("^(ttft|attft|tpot") for key in schema["$defs"]["SloSpec"]["patternProperties"])


def test_an_eager_engine_says_that_it_has_no_graphs_and_reads_back() -> None:
    engine = EngineSpec(enforce_eager=True)
    assert engine.cudagraph == "none" and EngineSpec.model_validate(engine.model_dump()) == engine
    assert "cudagraph" not in engine.model_dump(exclude_unset=True), "a pool may have some"


def test_a_mix_has_no_more_requests_than_can_be_simulated() -> None:
    one = {"arrivals": {"kind": "poisson", "rate": 1}, "requests": 6_000_000, "prompt": 1, "output": 1}
    with pytest.raises(UserError, match="12,000,000 requests in all; at most 10,000,000"):
        scenario_from_dict({"model": "llama-3.1-8b", "fleet": {"gpu": "h100"}, "workload": [one, one]})


@pytest.mark.parametrize(
    ("key", "value"),
    [("scheduler", "sarathi"), ("tiers", [{"kind": "host", "size": "10GB", "bandwidth": "20GB"}])],
)
def test_post_training_refuses_what_its_engines_would_ignore(key: str, value: Any) -> None:
    written = yaml.safe_load((EXAMPLES / "posttrain" / "search-48.yaml").read_text())
    written["engine"] = {**written.get("engine", {}), key: value}
    with pytest.raises(UserError, match=rf"engine\.{key}: roll"):
        posttrain_from_dict(written)
