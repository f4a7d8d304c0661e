"""Changing a scenario from Python: the same rules as in a file, and nothing else of it changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from steelyard import PosttrainScenario, Scenario, UserError, load_posttrain, load_scenario, scenario_from_dict

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVING = sorted(EXAMPLES.glob("*.yaml"))
POSTTRAIN = sorted((EXAMPLES / "posttrain").glob("*.yaml"))


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_may_be_text(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    found = load_scenario(kind("quickstart.yaml"))
    assert found.model_dump() == load_scenario(EXAMPLES / "quickstart.yaml").model_dump()
    assert (found.source, found.base_dir, found.name) == ("quickstart.yaml", Path(), "quickstart")
    assert load_posttrain(kind("posttrain/search-48.yaml")).base_dir == Path("posttrain")


@pytest.mark.parametrize("path", [*SERVING, *POSTTRAIN], ids=lambda path: path.stem)
def test_replacing_nothing_or_one_key_keeps_the_rest(path: Path) -> None:
    before: Scenario | PosttrainScenario = load_posttrain(path) if path in POSTTRAIN else load_scenario(path)
    assert before.replace() == before
    after = before.replace(seed=before.seed + 1)
    assert after.seed == before.seed + 1 and after.replace(seed=before.seed) == before
    assert (after.source, after.base_dir) == (before.source, before.base_dir)


def test_short_forms_and_parts_of_scenarios_will_do() -> None:
    before = load_scenario(EXAMPLES / "quickstart.yaml")
    after = before.replace(fleet={"gpu": "h200", "replicas": 2}, engine=before.engine)
    assert [(pool.gpu, pool.replicas) for pool in after.fleet.pools] == [("h200", 2)]
    assert after.engine == before.engine and after.workload == before.workload
    assert after.replace(fleet=before.fleet) == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fleet": {"gpu": "h100", "replicas": 0}}, "fleet.replicas: must be at least 1 (found 0)"),
        ({"engine": {"max_num_seq": 3}}, "engine.max_num_seq: unknown key; did you mean 'max_num_seqs'"),
        ({"fleets": {}}, "fleets: unknown key; did you mean 'fleet'?"),
        ({"slo": {}, "fleet": {"gpu": "h100", "router": "slo-aware"}}, "fleet.router: slo-aware needs a limit"),
    ],
)
def test_a_mistake_is_told_as_in_a_file(changes: dict[str, Any], said: str) -> None:
    path = EXAMPLES / "quickstart.yaml"
    scenario = load_scenario(path)
    key = said.partition(":")[0].partition(".")[0]
    with pytest.raises(UserError) as caught:
        scenario.replace(**changes)
    assert str(caught.value).startswith(f"{path} with {key} replaced: {said}")
    with pytest.raises(UserError) as from_data:
        scenario_from_dict({**scenario.model_dump(exclude_unset=True), **changes}, source="here")
    assert str(from_data.value).removeprefix("here: ") == str(caught.value).partition(" replaced: ")[2]


def test_post_training_is_checked_too() -> None:
    scenario = load_posttrain(POSTTRAIN[0])
    with pytest.raises(UserError, match=r"with mode replaced: mode: not a choice; did you mean 'split'"):
        scenario.replace(mode="splt")
    assert scenario.replace(steps=3).steps == 3


@pytest.mark.parametrize("path", [*SERVING, *POSTTRAIN], ids=lambda path: path.stem)
def test_a_part_of_a_scenario_is_replaced_by_the_same_rules(path: Path) -> None:
    engine = (load_posttrain(path) if path in POSTTRAIN else load_scenario(path)).engine
    assert engine.replace() == engine and engine.replace().model_fields_set == engine.model_fields_set
    fewer = engine.replace(max_num_seqs=8)
    assert fewer == engine.model_copy(update={"max_num_seqs": 8})
    with pytest.raises(UserError, match=r"^EngineSpec with max_num_seqs replaced: max_num_seqs: must be at least 1"):
        engine.replace(max_num_seqs=0)
    with pytest.raises(UserError, match=r"unknown key; did you mean 'max_num_seqs'"):
        engine.replace(max_num_seq=8)
