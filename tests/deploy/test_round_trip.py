"""What is emitted and read back is the same fleet with the same settings, but for what a note says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from steelyard.deploy import Deployment, emit, read
from steelyard.model import catalog_name
from steelyard.scenario import (
    EngineSpec,
    PoolSpec,
    PosttrainScenario,
    Scenario,
    posttrain_from_dict,
    scenario_from_dict,
)
from steelyard.scenario.posttrain import TrainingSpec
from steelyard.scenario.rollouts import TrajectorySpec
from support.deployed import post_training, scenarios

_KIND = {"vllm": "vllm-serve", "sglang": "sglang", "dynamo": "dynamo", "kserve": "kserve"}
_SETTINGS = [key for key in EngineSpec.model_fields if key not in ("speculative", "acceptance", "async_scheduling")]
_LAYOUT = ("role", "gpu", "replicas", "tp", "pp", "dp", "dcp", "expert_parallel", "redundant_experts")


def _read_back(made: Deployment) -> Scenario:
    return scenario_from_dict(read(_KIND[made.target], made.files).data)


def _by_kind(scenario: Scenario) -> list[PoolSpec]:
    """Pools in an order that does not depend on their files' names."""
    return sorted(scenario.fleet.pools, key=lambda pool: (pool.role, pool.name))


def _noted(made: Deployment, key: str) -> bool:
    return any(note.key == key or note.key.startswith(f"{key}[") for note in made.notes)


def _drafts(engine: EngineSpec) -> tuple[Any, ...]:
    spec = engine.speculative
    return (None,) if spec is None else (spec.method, spec.num_tokens, spec.draft_model)


def _check(scenario: Scenario, target: str) -> None:
    made = emit(scenario, target)
    found = _read_back(made)
    pools = list(zip(_by_kind(scenario), _by_kind(found), strict=True))
    for before, after in pools:
        for key in _LAYOUT:
            assert getattr(before, key) == getattr(after, key) or _noted(made, f"fleet.pools.{key}"), key
        if not _noted(made, "fleet.pools.all2all"):
            assert before.all2all == after.all2all
        old, new = scenario.model_of(before), found.model_of(after)
        assert catalog_name(old.config) == catalog_name(new.config)
        assert old.dtype == new.dtype
        assert old.quantization == new.quantization or _noted(made, "model.quantization")
        first, second = scenario.engine_of(before), found.engine_of(after)
        for key in _SETTINGS:
            same = getattr(first, key) == getattr(second, key)
            assert same or _noted(made, f"engine.{key}"), (key, getattr(first, key), getattr(second, key))
        free = _noted(made, "engine.speculative.method") and first.speculative and first.speculative.method == "free"
        assert _drafts(first) == _drafts(second) or free
        assert first.schedules_ahead == second.schedules_ahead or free
    assert scenario.fleet.router == found.fleet.router or _noted(made, "fleet.router")
    if scenario.fleet.of_role("prefill"):
        assert scenario.fleet.decode_router == found.fleet.decode_router or _noted(made, "fleet.decode_router")


@pytest.mark.parametrize("target", ["vllm", "dynamo", "kserve"])
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_vllm_settings_come_back(target: str, data: st.DataObject) -> None:
    scenario = data.draw(scenarios())
    if target == "kserve":
        assume(all(pool.tp * pool.pp * pool.dp <= 8 or pool.dp > 1 for pool in scenario.fleet.pools))
    _check(scenario, target)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(scenario=scenarios("sglang"))
def test_sglang_settings_come_back(scenario: Scenario) -> None:
    _check(scenario, "sglang")


def _check_trainer(scenario: PosttrainScenario, target: str) -> None:
    made = emit(scenario, target)
    found = posttrain_from_dict(read(target, made.files).data)
    for key in ("gpu", "mode", "rollout", "router", "sync", "steps", "seed"):
        same = getattr(scenario, key) == getattr(found, key)
        assert same or _noted(made, key) or _noted(made, f"{key}.kind"), key
    assert catalog_name(scenario.model.config) == catalog_name(found.model.config)
    assert scenario.staleness_bound == found.staleness_bound or _noted(made, "staleness") or _noted(made, "tail")
    assert scenario.tail.kind == found.tail.kind or _noted(made, "tail")
    assert scenario.tail.begun == found.tail.begun or _noted(made, "tail")
    for key in TrainingSpec.model_fields:
        same = getattr(scenario.training, key) == getattr(found.training, key)
        assert same or _noted(made, f"training.{key}"), key
    _check_batch(scenario, found, made)
    for key in _SETTINGS:
        same = getattr(scenario.engine, key) == getattr(found.engine, key)
        limit = key == "max_model_len" and found.engine.max_model_len == _context(scenario)
        assert same or limit or _noted(made, f"engine.{key}"), key
    if not (_noted(made, "engine.speculative.method") and scenario.engine.speculative):
        assert _drafts(scenario.engine) == _drafts(found.engine)
        assert scenario.engine.schedules_ahead == found.engine.schedules_ahead


def _context(scenario: PosttrainScenario) -> int:
    assert isinstance(scenario.trajectories, TrajectorySpec)
    return scenario.trajectories.budget.context


def _check_batch(scenario: PosttrainScenario, found: PosttrainScenario, made: Deployment) -> None:
    """Groups of a step, and limits. A response that may be as long as all is no limit."""
    old, new = scenario.trajectories, found.trajectories
    assert isinstance(old, TrajectorySpec)
    assert isinstance(new, TrajectorySpec)
    assert (old.prompts, old.group) == (new.prompts, new.group)
    if not _noted(made, "trajectories.budget.context"):
        assert old.budget.context == new.budget.context
        first, second = (min(each.response or each.context, each.context) for each in (old.budget, new.budget))
        assert first == second
    if made.target == "verl":
        assert old.budget.turns == new.budget.turns


@pytest.mark.parametrize("target", ["verl", "slime"])
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_post_training_comes_back(target: str, data: st.DataObject) -> None:
    _check_trainer(data.draw(post_training(target)), target)
