"""The answer of `steelyard plan --steps-per-day`, in words and as JSON. The first line is the answer."""

from __future__ import annotations

from steelyard.search.steps_per_day import DailySteps, StepsAnswer
from steelyard.words import plural, significant


def steps_lines(answer: StepsAnswer) -> list[str]:
    """The number of GPUs and its plan, and what the size below makes."""
    wanted, less = significant(answer.wanted), answer.less
    if answer.found is None:
        most = "" if less is None else f": {plural(less.gpus, 'GPU')} make {significant(less.steps)} (simulated)"
        return [
            f"no number of GPUs makes {wanted} steps a day{most}, and more would be no faster by the planner's model"
        ]
    found = answer.found
    made = f"{significant(found.steps)} (simulated) with {found.plan}"
    first = f"{plural(found.gpus, 'GPU')} for {wanted} steps a day: {made}"
    if less is None:
        return [first, "it is the smallest there is"]
    told = f"cannot run it: {less.refused}" if less.refused else f"make {significant(less.steps)} with {less.plan}"
    return [first, f"one size less, {plural(less.gpus, 'GPU')}: {told}"]


def steps_figures(answer: StepsAnswer) -> dict[str, object]:
    """All figures of the answer."""
    return {"wanted": answer.wanted, "found": _figures(answer.found), "less": _figures(answer.less)}


def _figures(size: DailySteps | None) -> dict[str, object] | None:
    if size is None:
        return None
    plan = size.plan
    if plan is None:
        return {"gpus": size.gpus, "steps_per_day": 0.0, "refused": size.refused}
    return {
        "gpus": size.gpus,
        "steps_per_day": size.steps,
        "training": {"gpus": plan.training.gpus, "layout": plan.training.name},
        "rollout": [{"tp": tp, "replicas": replicas} for tp, replicas in plan.replicas.items()],
    }
