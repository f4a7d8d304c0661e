"""A recommended plan of post-training: on the console, as JSON, and as keys of a scenario."""

from __future__ import annotations

from typing import Any

import yaml
from rich.console import Console
from rich.text import Text

from steelyard.balance.plan import Plan
from steelyard.posttrain.advice import CONFIDENCE, Advice
from steelyard.report.posttrain import chosen_lines, times_from


def print_advice(advice: Advice, console: Console) -> None:
    """The recommended plan, its prediction, the runner-up, the method, and keys to paste into the scenario."""
    plan = advice.plan
    if advice.chosen is not None:
        for line in chosen_lines(advice.chosen.as_dict()):
            console.print(line, soft_wrap=True, highlight=False)
    console.print(Text(str(plan), style="bold"), soft_wrap=True)
    stages = f"training {plan.train:,.1f}, rollout {plan.rollout:,.1f}"
    how = f"simulated (model: {stages})" if advice.simulated else f"by a model ({stages})"
    console.print(f"a step: {plan.step:,.1f} s {how}")
    if (expected := advice.predicted) is not None:
        low, high = expected.interval
        seeds = f"on {len(expected.draws)} other seeds: {', '.join(f'{each:,.1f}' for each in expected.draws)}"
        said = f"predicted: {expected.mean:,.1f} s, {low:,.1f} to {high:,.1f} ({CONFIDENCE:.0%} sure; {seeds})"
        console.print(said, soft_wrap=True)
    if plan.runner_up is not None:
        more = plan.runner_up.step / plan.step - 1
        console.print(f"next: {plan.runner_up}: {plan.runner_up.step:,.1f} s, {more:+.1%}", soft_wrap=True)
    console.print(plan.why, soft_wrap=True)
    console.print(f"times from {times_from(**advice.times_from)}", soft_wrap=True, highlight=False)
    console.print(plan_yaml(advice), soft_wrap=True, highlight=False, markup=False, end="")


def plan_yaml(advice: Advice) -> str:
    """The plan as keys of a scenario, in place of those that it has."""
    found = advice.scenario
    engines = [{"tp": bucket.tp, "replicas": bucket.replicas} for bucket in found.rollout]
    written: dict[str, Any] = {"rollout": engines}
    written["training"] = found.training.model_dump(mode="json", exclude_defaults=True)
    if advice.chosen is not None:
        keys = ("mode", "staleness", "streaming", "router", "estimator", "tail", "admission")
        way = found.model_dump(mode="json", include=set(keys))
        written = {key: way[key] for key in keys if way[key] is not None} | written
    text: str = yaml.safe_dump(written, sort_keys=False, default_flow_style=None)
    return text


def advice_data(advice: Advice) -> dict[str, Any]:
    """The advice as plain data for JSON."""
    found = {**_plan_data(advice.plan, advice.simulated), "times_from": advice.times_from}
    if (expected := advice.predicted) is not None:
        low, high = expected.interval
        found["predicted"] = {
            "mean": expected.mean,
            "low": low,
            "high": high,
            "confidence": CONFIDENCE,
            "draws": list(expected.draws),
        }
    if advice.chosen is not None:
        found["chosen"] = advice.chosen.as_dict()
    return {**found, "yaml": plan_yaml(advice)}


def _plan_data(plan: Plan, simulated: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "training": {"gpus": plan.training.gpus, "layout": plan.training.name},
        "rollout": [{"tp": tp, "replicas": replicas} for tp, replicas in plan.replicas.items()],
        "step_seconds": plan.step,
        "simulated": simulated,
        "model": {"training": plan.train, "rollout": plan.rollout},
        "why": plan.why,
    }
    return found if plan.runner_up is None else {**found, "runner_up": _plan_data(plan.runner_up, simulated)}
