"""The page of a post-training run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from steelyard.posttrain.result import PosttrainResult
from steelyard.quoting import printable
from steelyard.records.columns import Column
from steelyard.report.details import scenario_yaml
from steelyard.report.frame import Page, made_with_seed
from steelyard.report.markup import chart_boxes, copied, cut_note, text_table
from steelyard.report.posttrain import times_from
from steelyard.words import count, dollars, percent, plural, seconds, significant

_MOST_ROWS = 200


def posttrain_page(result: PosttrainResult) -> str:
    """The whole page."""
    steps, got, plots = result.steps, result.summary, result.plot
    reward = [plots.reward()] if "reward" in got else []
    return Page(
        title=got["name"],
        lede=(_lede(got),),
        top=_verdict(got),
        sections={
            "Step": chart_boxes([plots.step(), plots.steps()], "two"),
            "GPUs": chart_boxes(plots.gantt().charts, "one") + chart_boxes(plots.gpu_time().charts, "two"),
            "Samples": chart_boxes([plots.staleness(), plots.durations(), plots.lengths()], "three"),
            "Changes": _changes(got),
            "Cost": chart_boxes([plots.cost(), *reward], "two"),
            "Steps": _table(steps),
            "Scenario": copied(scenario_yaml(result.scenario)),
        },
        made=made_with_seed(result.scenario.seed),
    ).html()


def _lede(got: dict[str, Any]) -> str:
    split = f"{got['rollout_gpus']:,} roll out, {got['training_gpus']:,} train"
    return f"{plural(got['gpus'], 'GPU')} ({split} in the beginning), {got['mode']}, {plural(got['steps'], 'step')}"


def _verdict(got: dict[str, Any]) -> str:
    first, *rest = posttrain_lines(got)
    items = "".join(f"<li>{escape(printable(line))}</li>" for line in rest)
    return f'<section class="verdict"><p><b>{escape(first)}</b></p><ul class="told">{items}</ul></section>'


def posttrain_lines(got: dict[str, Any]) -> list[str]:
    """What a step takes and costs, and which stage the others wait for."""
    parts, cost, use = got["step_seconds"], got["cost"], got["gpu_time"]
    first = (
        f"A step takes {seconds(parts['total'])} and costs {dollars(cost['usd_per_step'])}: "
        f"{significant(got['tokens_per_second'])} tokens/s trained on, "
        f"{dollars(cost['usd_per_million_tokens'])} a million."
    )
    idle = {role: shares["idle"] for role, shares in use.items()}
    longer = min(idle, key=lambda role: idle[role])
    other = max(idle, key=lambda role: idle[role])
    second = f"Rollout GPUs are idle {percent(idle['rollout'])} of the time, training GPUs {percent(idle['training'])}"
    if longer != other:
        second += f": {longer} is the longer stage"
    told = [second + "."]
    waits = parts["waiting"] / parts["total"]
    told.append(f"Training waits for samples {percent(waits)} of a step.")
    told.append(f"The last tenth of a batch takes {percent(got['tail_share'])} of its rollout.")
    if (target := got.get("time_to_reward")) is not None:
        how = "after" if target["reached"] else "at the rate of the later steps after"
        told.append(f"Reward {target['reward']:g} is reached {how} {seconds(target['seconds'])}.")
    told.append(f"Times from {times_from(**got['times_from'])}.")
    return [first, *told]


def _changes(got: dict[str, Any]) -> str:
    head = ("after step", "change", "outcome", "took", "gain predicted", "realised", "step predicted", "measured")
    rows = [
        (
            str(each["step"]),
            printable(each["what"]),
            each["outcome"],
            *(seconds(each["seconds"]), seconds(each["predicted"]), seconds(each["realised"])),
            *(seconds(each["predicted_step"]), seconds(each["measured_step"])),
        )
        for each in got.get("reallocations", ())
    ]
    return text_table(head, rows)


def _table(steps: dict[str, Column]) -> str:
    names: Sequence[str] = ("seconds", "waiting", "handing_over", "training", "sync")
    head = (
        "step",
        *(name.replace("_", " ") for name in names),
        "samples",
        "tokens",
        "rollout GPUs",
        "training GPUs",
        "cost",
    )
    shown = min(_MOST_ROWS, len(steps["step"]))
    rows = [
        (
            str(steps["step"][i]),
            *(seconds(float(steps[name][i])) for name in names),
            *(count(float(steps[name][i])) for name in ("samples", "tokens", "rollout_gpus", "training_gpus")),
            dollars(float(steps["usd"][i])),
        )
        for i in range(shown)
    ]
    return text_table(head, rows) + cut_note(shown, len(steps["step"]), "steps; steps.parquet has all")
