"""Makes the scenario of a choice, co-located if the choice is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from steelyard.errors import UserError
from steelyard.posttrain.colocated import colocated
from steelyard.posttrain.compare_choices import Choice
from steelyard.scenario.posttrain import USUAL_STALENESS, PosttrainScenario
from steelyard.scenario.posttrain_loading import posttrain_from_dict
from steelyard.scenario.tails import CARRYING

Case = PosttrainScenario | UserError
"""The scenario of a choice, or why there is none."""


class Cases:
    """Scenarios of choices, from one base scenario. The co-located layout is searched once."""

    def __init__(self, scenario: PosttrainScenario) -> None:
        self._scenario = scenario
        self._colocated: PosttrainScenario | None = None

    def of(self, choice: Choice) -> PosttrainScenario:
        """The scenario with this choice; refuses combinations that cannot be run or do not fit."""
        base = self._scenario
        if choice.objective is not None:
            return base.replace(objective=choice.objective)
        base = base.replace(objective=None)
        if choice.mode == "colocated":
            base = base.replace(training=base.training.replace(generates=False))
            base = self._colocated = self._colocated or colocated(base)
        policies, asked = asdict(choice), base.trajectories
        weighed = {"weighed": policies.pop("weighed")}
        del policies["objective"]
        batches = policies.pop("concurrency")
        at_once = None if batches is None else max(1, int(batches * asked.prompts)) * asked.group
        settings = dict(policies.pop("settings"))
        admission = {"late": policies.pop("late"), "concurrency": at_once}
        data = {**base.model_dump(mode="json"), **policies, "staleness": _bound(base, choice), "admission": admission}
        data["training"] |= weighed
        data["training"]["generates"] &= choice.mode in ("one-step-off", "asynchronous")
        for key, value in settings.items():
            _set(data, key.split("."), value)
        return posttrain_from_dict(data, base.source).based_in(base.base_dir, base.source)


def _set(data: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    """Set a key of a scenario; a policy that is given by its name gets its settings beside it."""
    key, *rest = keys
    if not rest:
        data[key] = value
        return
    inner = data.get(key)
    data[key] = {"kind": inner} if isinstance(inner, str) else dict(inner or {})
    _set(data[key], rest, value)


def _bound(base: PosttrainScenario, choice: Choice) -> int | None:
    """The staleness bound: the same for all choices with stale samples, so that none gains throughput by staler ones.
    Synchronous choices have such samples if their tail policy carries them over."""
    if choice.mode != "asynchronous" and (choice.mode == "one-step-off" or choice.tail not in CARRYING):
        return None
    usual = USUAL_STALENESS["asynchronous"]
    return base.staleness if base.mode == "asynchronous" and base.staleness is not None else usual
