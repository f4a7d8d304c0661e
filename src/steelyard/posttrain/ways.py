"""Ways to run a scenario, of which one is chosen for the user's objective (`choosing.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from steelyard.errors import UserError
from steelyard.posttrain.colocated import colocated
from steelyard.scenario.posttrain import USUAL_STALENESS, Mode, PosttrainScenario
from steelyard.scenario.posttrain_loading import posttrain_from_dict

_OURS: Mapping[str, Any] = {
    "router": "cost-aware",
    "estimator": "suffix",
    "pool": "none",
    "tail": "none",
    "admission": {},
    "objective": None,
}
"""Policies of all ways, unless they change them."""
_OVER = {"kind": "over-sampling", "factor": 1.5}


@dataclass(frozen=True)
class Way:
    """How steps follow each other, and which samples they take. What all ways share is in `written`."""

    name: str
    mode: Mode
    settings: Mapping[str, Any] = field(default_factory=dict)  # other keys of the scenario
    staleness: int = 0  # versions that it needs at least

    @property
    def shared(self) -> bool:
        """Whether both stages have all GPUs."""
        return self.mode == "colocated"


WAYS = (
    Way("asynchronous", "asynchronous", staleness=2),
    Way("asynchronous, late samples too", "asynchronous", {"admission": {"late": "train"}}, staleness=2),
    Way("one step off", "one-step-off", staleness=1),
    Way("co-located", "colocated"),
    Way("asynchronous, over-sampling", "asynchronous", {"tail": _OVER}, staleness=2),
    Way("co-located, over-sampling", "colocated", {"tail": _OVER}, staleness=1),
)
"""A short list: one for each reason to win. Stale samples hide the longest ones, fresh ones teach more, shared GPUs are
never idle for want of a split, and over-sampling does not wait for the last."""


def written(scenario: PosttrainScenario, way: Way) -> PosttrainScenario:
    """The scenario run in this way, with our policies. It plans its split itself. Refuses what the scenario does not
    allow."""
    most = USUAL_STALENESS["asynchronous"] if scenario.staleness is None else scenario.staleness
    if way.staleness > most:
        raise UserError(f"{scenario.source}: {way.name} has samples of {way.staleness} versions; {most} are allowed")
    fixed = {
        **_OURS,
        "mode": way.mode,
        "streaming": not way.shared and scenario.training.minibatches == 1,
        "planner": "static-best" if way.shared else "simulated",
        "staleness": most if way.mode == "asynchronous" or (way.shared and way.staleness) else None,
    }
    data = scenario.model_dump(mode="json")
    data |= {**fixed, **way.settings}
    own = scenario.training.generates and not way.shared  # shared GPUs are never left to engines alone
    data["training"] = {**data["training"], "weighed": True, "generates": own}
    if way.shared:  # its layouts are those of a split until all GPUs are shared
        apart = posttrain_from_dict({**data, "mode": "split", "tail": "none", "staleness": None}, scenario.source)
        shared = colocated(apart.based_in(scenario.base_dir, scenario.source))
        data |= shared.model_dump(mode="json", include={"rollout", "training"})
    return posttrain_from_dict(data, scenario.source).based_in(scenario.base_dir, scenario.source)
