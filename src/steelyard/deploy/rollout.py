"""The rollout engines of a post-training scenario as serving fleets, which serving targets run."""

from __future__ import annotations

from steelyard.deploy.emit import SERVING, emit
from steelyard.deploy.parts import Deployment
from steelyard.errors import UserError, did_you_mean
from steelyard.scenario import Scenario
from steelyard.scenario.posttrain import PosttrainScenario

ENGINES = ("vllm", "sglang")
_STAND_IN = {"arrivals": {"kind": "burst"}, "requests": 1, "prompt": 1, "output": 1}  # a deployment has no workload


def emit_engines(scenario: PosttrainScenario, target: str) -> Deployment:
    """The files that start a scenario's rollout engines, in a folder for each tensor-parallel degree."""
    if target not in ENGINES:
        raise UserError(f"{target!r} starts no rollout engines; {did_you_mean(target, ENGINES)}")
    assert target in SERVING
    made = {bucket.tp: emit(_fleet(scenario, bucket.tp, bucket.replicas), target) for bucket in scenario.rollout}
    files = {f"tp{tp}-{name}": text for tp, each in made.items() for name, text in each.files.items()}
    notes = dict.fromkeys(note for each in made.values() for note in each.notes)
    return Deployment(target, files, tuple(notes))


def _fleet(scenario: PosttrainScenario, tp: int, replicas: int) -> Scenario:
    data = {
        "name": f"{scenario.name}-tp{tp}",
        "model": scenario.model,
        "fleet": {"gpu": scenario.gpu, "tp": tp, "replicas": replicas},
        "engine": scenario.engine,
        "workload": _STAND_IN,
    }
    return Scenario.model_validate(data).based_in(scenario.base_dir, scenario.source)
