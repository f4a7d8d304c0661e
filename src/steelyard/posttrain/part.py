"""Scaled-down runs, and plans for clusters that would take too long to simulate as a whole.

A scaled run has a share of the prompts, engines and training replicas, so each GPU has the same load. The plan for it
is scaled up again. A step waits for its longest trajectory, so the prompt with the longest one is always included; the
others are taken evenly from prompts sorted by length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from steelyard.balance.plan import Plan
from steelyard.errors import UserError
from steelyard.posttrain.plan_simulator import PlanSimulator
from steelyard.posttrain.planning import option_of
from steelyard.posttrain.setup import PosttrainSetup, set_up_posttrain
from steelyard.records import Trajectory
from steelyard.scenario.posttrain import PosttrainScenario


def shares(text: str, count: int) -> list[float]:
    """The value of ``--scale`` for ``count`` scenarios: one number for all, or one for each, comma-separated."""
    said = text.split(",")
    try:
        found = [float(each) for each in said]
    except ValueError:
        found = []
    if len(found) not in (1, count) or not all(0 < each <= 1 for each in found):
        raise UserError(f"--scale: {text!r}; give a number above 0 and up to 1, or {count} of them with commas between")
    return found if len(found) == count else found * count


def scaled(scenario: PosttrainScenario, share: float) -> PosttrainScenario:
    """A share of prompts, engines of each degree and training replicas, so that each GPU has the same load.

    Steps get somewhat faster: the longest of fewer trajectories is shorter.
    """
    if share == 1:
        return scenario
    source, asked = scenario.source, scenario.trajectories

    def part(count: int, what: str) -> int:
        found = count * share
        if found < 1 or found != int(found):
            raise UserError(
                f"{source}: cannot be run at a scale of {share:g}: {count} {what} would be {found:g}; "
                f"{_workable(scenario)}"
            )
        return int(found)

    engines = tuple(
        bucket.replace(replicas=part(bucket.replicas, f"engines of TP{bucket.tp}")) for bucket in scenario.rollout
    )
    training = scenario.training.replace(dp=part(scenario.training.dp, "data-parallel ranks"))
    prompts = asked.replace(prompts=part(asked.prompts, "prompts"))
    admission = scenario.admission
    if admission.concurrency is not None:
        admission = admission.replace(concurrency=part(admission.concurrency, "samples at once"))
    return scenario.replace(rollout=engines, training=training, trajectories=prompts, admission=admission)


def _workable(scenario: PosttrainScenario) -> str:
    """The scales that leave whole numbers of everything."""
    counts = [scenario.trajectories.prompts, scenario.training.dp, *(bucket.replicas for bucket in scenario.rollout)]
    most = gcd(*counts)
    if most == 1:
        return "no scale but 1 leaves whole numbers of prompts, engines and data-parallel ranks"
    near = f"the smallest workable scale is 1/{most} ({1 / most:g})"
    return f"{near}; multiples of it work, too"


def parts_of(scenario: PosttrainScenario, enough: int) -> list[int]:
    """Numbers of equal parts that a scenario can be split into, most first."""
    asked = scenario.trajectories
    counts = [asked.prompts, scenario.training.dp, *(bucket.replicas for bucket in scenario.rollout)]
    found = [2]
    while asked.prompts * asked.group >= found[-1] * enough and all(count % found[-1] == 0 for count in counts):
        found.append(2 * found[-1])
    return found[-2::-1]


def part_of(scenario: PosttrainScenario, times: int) -> PosttrainSetup | None:
    """The set-up of a part; None if training does not fit, since fewer ranks shard the optimiser states."""
    try:
        return set_up_posttrain(scaled(scenario, 1 / times), any_degree=True)
    except UserError:
        return None


def evenly(batch: Sequence[Trajectory], group: int, times: int) -> list[Trajectory]:
    """One prompt in ``times``, in batch order: the one with the longest trajectory, then one from each range of
    lengths."""
    groups = [batch[first : first + group] for first in range(0, len(batch), group)]
    order = sorted(range(len(groups)), key=lambda number: -max(each.generated for each in groups[number]))
    chosen = [order[0], *(order[first + times // 2] for first in range(times, len(order), times))]
    return [each for number in sorted(chosen) for each in groups[number]]


def enlarged(plan: Plan, times: int, part: PlanSimulator, whole: PlanSimulator, batch: Sequence[Trajectory]) -> Plan:
    """The plan for the whole, from the plan for a part, and its runner-up. Its ``why`` says so."""
    found, other = _larger(plan, times, part, whole, batch), plan.runner_up
    if other is not None:
        other = _larger(other, times, part, whole, batch)
    return replace(found, why=f"{plan.why}; simulated at 1/{times}", runner_up=other)


def _larger(plan: Plan, times: int, part: PlanSimulator, whole: PlanSimulator, batch: Sequence[Trajectory]) -> Plan:
    """A plan with ``times`` as many training ranks and engines. Its step is that of the part, or training on the whole
    batch if that takes longer."""
    layout = part.training.layouts[plan.training]
    larger = replace(layout, dp=times * layout.dp)
    option = option_of(larger)
    whole.training.layouts.setdefault(option, larger)
    buckets = tuple(replace(each, replicas=times * each.replicas) for each in plan.buckets)
    found = replace(plan, training=option, buckets=buckets)
    return replace(found, step=max(plan.step, whole.least_seconds(found, [batch])))
