"""A scenario as files that run its fleet."""

from __future__ import annotations

from collections.abc import Callable

from steelyard.deploy.dynamo import dynamo
from steelyard.deploy.kserve import kserve
from steelyard.deploy.parts import Deployment
from steelyard.deploy.sglang import sglang
from steelyard.deploy.slime import slime
from steelyard.deploy.verl import verl
from steelyard.deploy.vllm import vllm
from steelyard.errors import UserError, did_you_mean
from steelyard.scenario import Scenario
from steelyard.scenario.posttrain import PosttrainScenario

SERVING: dict[str, Callable[[Scenario], Deployment]] = {
    "vllm": vllm,
    "sglang": sglang,
    "dynamo": dynamo,
    "kserve": kserve,
}
POSTTRAIN: dict[str, Callable[[PosttrainScenario], Deployment]] = {"verl": verl, "slime": slime}
TARGETS = (*SERVING, *POSTTRAIN)


def check_target_name(target: str) -> None:
    """Raise UserError unless there is such a target."""
    if target not in TARGETS:
        raise UserError(f"{target!r} is not a target; {did_you_mean(target, TARGETS)}")


def emit(scenario: Scenario | PosttrainScenario, target: str) -> Deployment:
    """The files that run a scenario's fleet with a target, and notes on what they cannot say.

    Raises UserError for fleets that the target cannot run at all.
    """
    check_target_name(target)
    if isinstance(scenario, Scenario):
        if target in SERVING:
            return SERVING[target](scenario)
        raise UserError(f"{target} runs post-training; for a serving scenario choose one of {', '.join(SERVING)}")
    if target in POSTTRAIN:
        return POSTTRAIN[target](scenario)
    raise UserError(f"{target} serves; for a post-training scenario choose one of {', '.join(POSTTRAIN)}")
