"""Runs that would need more memory or time than there is are refused at once, with what would fit."""

from __future__ import annotations

from typing import Any

import pytest

from steelyard import simulate
from steelyard.errors import UserError
from steelyard.fleet import scaler
from steelyard.posttrain.run import drive
from steelyard.scenario import posttrain_from_dict, scenario_from_dict
from support.numeric_fields import POSTTRAIN, SERVING, TRAJECTORIES

HUGE = 10**9
WORKLOAD = SERVING["workload"]
PROFILE = [[0, 0], [100, 1e6], [200, 0]]
STAGES = [{"output": 5}]


def serve(fleet: Any = None, engine: Any = None, **workload: Any) -> None:
    changed = {key: value for key, value in {**WORKLOAD, **workload}.items() if value is not None}
    written = SERVING | {"workload": changed, "fleet": SERVING["fleet"] | (fleet or {}), "engine": engine or {}}
    simulate(scenario_from_dict(written, "s.yaml"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"requests": HUGE}, "workload.requests: must be at most 10,000,000"),
        ({"fleet": {"replicas": HUGE}}, "fleet.replicas: must be at most 16,384"),
        ({"fleet": {"replicas": 16_000, "dp": 2}}, "fleet.replicas: 32,000 engines in all.* at most 16,384"),
        ({"prefix": {"tokens": 10, "groups": HUGE}}, "workload.prefix.groups: must be at most 1,000,000"),
        (
            {"session": {"turns": 2, "system": {"tokens": 5, "groups": HUGE}}},
            "workload.session.system.groups: must be at most 1,000,000",
        ),
        (
            {"plan": [*STAGES, {"branches": HUGE, "output": 5}]},
            "s.yaml: workload.plan.branches: 1,000,000,000 in a stage",
        ),
        ({"plan": [{"rounds": HUGE, "output": 5}]}, "s.yaml: workload.plan.rounds: 1,000,000,000 in a stage"),
        (
            {"plan": [{"rounds": 10_000, "output": 5}], "requests": 3000},
            "workload.plan.rounds: 30,003,000 rounds for 3,000 requests; at most 20,000,000",
        ),
        ({"duration": 1e308}, r"workload.duration: must be at most 1e\+09"),
        (
            {"duration": 200, "requests": None, "arrivals": {"kind": "varying", "profile": PROFILE}},
            "workload.duration: about 100,000,000 requests; at most 10,000,000",
        ),
        (
            {"duration": 1e4, "requests": None, "session": {"turns": 10_000}},
            r"workload.session.turns: (1,0|99)[\d,]{9,10} requests in .* at most 10,000,000",
        ),
        (
            {"requests": 10_000_000, "arrivals": {"kind": "poisson", "rate": 1e-3}},
            r"workload.arrivals.rate: 10,000,000 requests would come for 1e\+10 s; at most 1e\+09 s",
        ),
        ({"arrivals": {"kind": "burst", "at": 1e308}}, r"workload.arrivals.at: must be at most 1e\+09"),
        ({"engine": {"num_speculative_tokens": HUGE}}, "engine.num_speculative_tokens: must be at most 1,000"),
        ({"engine": {"cudagraph_capture_sizes": [HUGE]}}, r"capture_sizes\[0\]: must be at most 262,144"),
        (
            {"requests": 1_000_000, "output": 100_000},
            r"s.yaml: workload: 1,000,000 requests .* at least 390,625,000 steps; at most 200,000,000",
        ),
        (
            {"requests": 100_000, "prompt": 100_000, "engine": {"max_num_seqs": 1, "max_num_batched_tokens": 8}},
            "so many prompt tokens that engines make at least 1,250,000,000 steps",
        ),
        (
            {"session": {"turns": 4, "think": 1e9}, "requests": 100, "arrivals": {"kind": "closed", "users": 1}},
            r"the run lasts 7\.\d*e\+10 s, and times are exact up to 1e\+10 s",
        ),
    ],
)
def test_serving_runs_that_are_too_large_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        serve(**changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"trajectories": {"tasks": HUGE}}, "trajectories.tasks: must be at most 10,000,000"),
        ({"trajectories": {"group": HUGE}}, "trajectories.group: must be at most 1,000,000"),
        ({"trajectories": {"prompts": 4, "group": 10**6}}, "trajectories.prompts: 12,000,000 trajectories in progress"),
        ({"tail": {"kind": "over-sampling", "factor": 1e308}}, "tail.factor: must be at most 100"),
        ({"tail": {"kind": "tail-batching", "groups": 1e308}}, "tail.groups: must be at most 100"),
        (
            {"tail": {"kind": "tail-batching", "groups": 100, "samples": 100}, "trajectories": {"group": 100}},
            "trajectories.prompts: 12,000,000 trajectories in progress at once",
        ),
        ({"staleness": HUGE}, "staleness: must be at most 1,000"),
        ({"steps": 100_000, "trajectories": {"group": 100}}, "steps: 40,000,000 trajectories in all; .* 50,000 steps"),
        (
            {"trajectories": {"group": 10_000, "budget": {"turns": 10_000, "context": 400}}},
            "trajectories.budget.turns: a step may have 400,000,000 turns; .* 2,500 turns for each of 40,000",
        ),
        (
            {"rollout": [{"tp": 1, "replicas": 16_000}, {"tp": 2, "replicas": 16_000}]},
            "rollout: 32,000 engines in all",
        ),
        ({"sync": {"kind": "disk", "disk_read": 1e-300}}, "sync.disk_read: must be at least 1,000"),
        ({"trajectories": {"learning": {"samples": 1e308}}}, r"learning.samples: must be at most 1e\+15"),
    ],
)
def test_post_training_runs_that_are_too_large_are_refused(changes: dict[str, Any], says: str) -> None:
    trajectories = TRAJECTORIES | changes.pop("trajectories", {})
    with pytest.raises(UserError, match=says):
        drive(posttrain_from_dict(POSTTRAIN | changes | {"trajectories": trajectories}, "p.yaml"))


def test_autoscaling_does_not_decide_for_years_of_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaler, "_MOST_LOOKS", 10_000)
    every = {"autoscale": {"max": 2, "target": 4, "every": 0.01}}
    with pytest.raises(UserError, match=r"s.yaml: autoscale.every: [\d,]+ decisions about 2 replicas by second"):
        serve(fleet=every, plan=[{"output": 4, "tool": 1e9}])


def test_large_fleets_and_workloads_stay_possible() -> None:
    """What clusters have today is far from the limits."""
    scenario_from_dict(
        SERVING | {"fleet": {"gpu": "h100", "replicas": 16_384}, "workload": WORKLOAD | {"requests": 10**7}}
    )
    tasks = {"tasks": 10**6, "prompts": 2048, "group": 16}
    large = {"rollout": [{"tp": 8, "replicas": 1024}], "training": {"tp": 8, "dp": 512}, "steps": 500}
    posttrain_from_dict(POSTTRAIN | large | {"trajectories": TRAJECTORIES | tasks})
