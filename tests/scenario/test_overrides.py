"""``--set key.path=value``."""

from __future__ import annotations

from pathlib import Path

import pytest

from steelyard.errors import UserError
from steelyard.scenario import (
    ClosedArrivals,
    FixedSeconds,
    FixedTokens,
    PoissonArrivals,
    Scenario,
    UniformTokens,
    load_scenario,
    scenario_from_dict,
)

BASE = """\
model: llama-3.1-8b
fleet: {gpu: h100, replicas: 2}
workload:
  arrivals: {kind: poisson, rate: 10}
  requests: 100
  prompt: 512
  output: 192
"""


def with_sets(tmp_path: Path, *sets: str, text: str = BASE) -> Scenario:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    return load_scenario(path, sets)


def test_values_are_read_as_yaml(tmp_path: Path) -> None:
    scenario = with_sets(
        tmp_path,
        "engine.max_num_seqs=64",
        "engine.enable_prefix_caching=false",
        "fleet.gpu=h200",
        "workload.requests=1e3",
        "workload.prompt={kind: uniform, min: 1, max: 9}",
        "engine.max_model_len=null",
        "name=other",
    )
    assert scenario.engine.max_num_seqs == 64
    assert scenario.engine.enable_prefix_caching is False
    assert scenario.fleet.pools[0].gpu == "h200"
    (workload,) = scenario.workload.workloads()
    assert workload.requests == 1000
    assert workload.prompt == UniformTokens(kind="uniform", min=1, max=9)
    assert scenario.name == "other"


def test_paths_lead_into_short_forms_as_if_they_were_long(tmp_path: Path) -> None:
    scenario = with_sets(
        tmp_path,
        "fleet.pools[0].tp=4",
        "workload.mix.0.output.tokens=7",
        "model.dtype=fp8",
    )
    assert (scenario.fleet.pools[0].tp, scenario.fleet.pools[0].replicas) == (4, 2)
    (workload,) = scenario.workload.workloads()
    assert workload.output == FixedTokens(kind="fixed", tokens=7)
    assert (scenario.model.config, scenario.model.dtype) == ("llama-3.1-8b", "fp8")


def test_paths_lead_into_lists(tmp_path: Path) -> None:
    two = """\
model: m
fleet: {pools: [{gpu: h100}]}
workload:
  - {name: a, arrivals: {kind: burst}, requests: 1, prompt: 1, output: 1}
  - {name: b, arrivals: {kind: burst}, requests: 1, prompt: 1, output: 1}
"""
    scenario = with_sets(
        tmp_path, "workload.1.requests=5", "workload[0].requests=3", "fleet.pools[0].gpu=b200", text=two
    )
    assert [each.requests for each in scenario.workload.workloads()] == [3, 5]
    assert scenario.fleet.pools[0].gpu == "b200"


def test_later_sets_win_and_build_on_earlier_ones(tmp_path: Path) -> None:
    scenario = with_sets(
        tmp_path,
        "workload.arrivals={kind: closed, users: 3, think: 1}",
        "workload.arrivals.users=5",
        "workload.arrivals.think.seconds=2",
    )
    (workload,) = scenario.workload.workloads()
    assert workload.arrivals == ClosedArrivals(
        kind="closed", users=5, think=FixedSeconds(kind="fixed", seconds=2.0), ramp=0.0
    )


def test_the_given_data_stays_as_it_was() -> None:
    data = {
        "model": "m",
        "fleet": {"gpu": "h100"},
        "workload": {"arrivals": {"kind": "poisson", "rate": 1}, "requests": 1, "prompt": 1, "output": 1},
    }
    changed = scenario_from_dict(data, overrides=["workload.arrivals.rate=9"])
    assert changed.workload.mix[0].arrivals == PoissonArrivals(kind="poisson", rate=9)
    assert data["workload"]["arrivals"] == {"kind": "poisson", "rate": 1}  # type: ignore[index]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("engine.max_num_seq=64", "engine.max_num_seq: unknown key; did you mean 'max_num_seqs'"),
        ("engin.block_size=3", "engin: unknown key; did you mean 'engine'?"),
        ("workload.arrivals.rate=-1", "workload.arrivals.rate: must be at least 1e-06 (found -1)"),
        (
            "workload.arrivals.kind=gama",
            "workload.arrivals.kind: not a choice; did you mean 'gamma'? (found 'gama')",
        ),
        ("workload.arrivals.cv=2", "workload.arrivals.cv: unknown key"),
        ("fleet.replicas=none", "fleet.replicas: must be a whole number (found 'none')"),
        ("seed.x=3", "seed: must be a whole number"),
    ],
)
def test_a_wrong_override_names_file_and_itself(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        with_sets(tmp_path, override)
    found = str(caught.value)
    assert found.startswith(str(tmp_path / "a.yaml"))
    assert f"with --set {override}: {message}" in found


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("workload.mix[3].share=1", "workload.mix has 1 entries, so [3] does not exist"),
        ("fleet.pools.x=3", "fleet.pools is a list; follow it by an index, such as fleet.pools[0]"),
        ("workload.requests.x=3", "workload.requests is 100, so it has no key 'x'"),
        ("fleet[0].gpu=3", "fleet is not a list, so [0] does not exist"),
        ("workload.prompt=[1", "not valid YAML"),
        ("engine.max_num_seqs", "must read KEY.PATH=VALUE"),
        ("a..b=3", "must read KEY.PATH=VALUE"),
        ("=3", "must read KEY.PATH=VALUE"),
    ],
)
def test_a_path_that_leads_nowhere(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        with_sets(tmp_path, override)
    assert str(caught.value).startswith(f"--set {override}: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\u00b2=1", "unknown key"),
        ("\u0663=1", "unknown key"),
        ("seed.\u00b2=1", "has no key"),
        ("workload.mix[\u00b2].share=1", "must read KEY.PATH=VALUE"),
        (f"workload.mix[{'9' * 5000}].share=1", "is a list"),
        (f"{'a.' * 3000}a=1", "must read KEY.PATH=VALUE"),
        (f"{'a' * 5000}", "must read KEY.PATH=VALUE"),
        ("fleet={gpu: h100, gpu: h200}", "key 'gpu' is given twice"),
        ("seed=0100", "write 100, or quote it"),
        ("seed=1:30", "or quote it"),
        (f"seed={'9' * 5000}", "a number of 5,000 digits"),
        (f"seed={'[' * 500}", "levels deep"),
        ("seed=!!int 3", "a tag"),
        ("seed='\udcff'", "not valid YAML"),
    ],
)
def test_hostile_keys_and_values(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "model: llama-3.1-8b\nfleet: {gpu: h100}\nseed: 3\n"
        "workload: {mix: [{arrivals: {kind: burst}, requests: 3, prompt: 4, output: 5}]}\n"
    )
    with pytest.raises(UserError) as refused:
        load_scenario(path, [text])
    assert message in str(refused.value) and len(str(refused.value)) < 700
    assert "\n" not in str(refused.value)
