"""The best fixed split of each kind of way, searched once for all ways of a kind.

A way whose planner is ``static-best`` is run with the best fixed split in hindsight. That split is searched by
simulation, which takes longer than a run. Ways that differ only in who serves a turn, or in which samples begin when,
have the same stages to balance, so they share a search; each is then tried with the best two splits of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from steelyard.posttrain.plan_simulator import best_in_hindsight
from steelyard.posttrain.setup import set_up_posttrain
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.scenario.tails import ReconfigureSpec

_RANKING = ("c-mlfq", "heddle", "cost-aware")  # routers with engines of several degrees, and estimators of their own

Plans = Sequence[Mapping[str, Any]]
"""Layouts of both stages, as keys of a scenario; the best first."""


def of_its_kind(scenario: PosttrainScenario) -> PosttrainScenario:
    """The scenario whose best split serves all ways of a kind."""
    plain: dict[str, Any] = {"admission": {}, "tail": "none", "pool": "none", "queue_cap": 64, "staleness": None}
    plain["switch"] = "difference"
    if isinstance(scenario.tail, ReconfigureSpec):
        del plain["tail"]  # it needs narrow engines that can be merged
    if scenario.router not in _RANKING:
        plain |= {"router": "sticky", "estimator": "blind"}
    if not scenario.synchronous:
        plain["staleness"] = scenario.staleness_bound
    training = scenario.training.replace(generates=False, packing="balanced")
    return scenario.replace(training=training, planner="static-best", **plain)


def fixed_plans(scenario: PosttrainScenario) -> list[dict[str, Any]]:
    """The best fixed split of a kind, and the next best if it is close."""
    setups = best_in_hindsight(set_up_posttrain(scenario))
    return [each.scenario.model_dump(mode="json", include={"rollout", "training"}) for each in setups]


def with_plan(scenario: PosttrainScenario, plan: Mapping[str, Any]) -> PosttrainScenario:
    """The scenario with a fixed split; its own settings of training that are no layout stay."""
    own = scenario.training.model_dump(mode="json", include={"generates", "packing", "weighed"})
    return scenario.replace(planner="given", rollout=plan["rollout"], training={**plan["training"], **own})
