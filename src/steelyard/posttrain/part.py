"""Plans for clusters that would take too long to simulate whole: a part of everything is planned for, each GPU having
as much to do, and the plan is made as large again.

A step waits for its longest trajectory, so the part's prompts are not just any: that with the longest trajectory of all
is among them, and the others are spread evenly over prompts from long to short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from steelyard.balance.plan import Plan
from steelyard.errors import UserError
from steelyard.posttrain.compare_cases import scaled
from steelyard.posttrain.foresight import Foresight, best_plan
from steelyard.posttrain.planning import option_of
from steelyard.posttrain.setup import PosttrainSetup, set_up_posttrain
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.workload.trajectories import Trajectory

_ENOUGH = 2048  # trajectories a step that tell plans apart


def recommended(scenario: PosttrainScenario, enough: int = _ENOUGH) -> Plan:
    """The best split of a scenario's GPUs for the trajectories of its first step, by simulation; of as small a part of
    it as still has trajectories ``enough``."""
    whole = set_up_posttrain(scenario, any_degree=True)
    batch = list(whole.tasks.step(0))
    for times in _parts(scenario, enough):
        part = _part(scenario, times)
        if part is not None:
            foresight = Foresight(part)
            plan = best_plan(foresight, [evenly(batch, scenario.trajectories.group, times)])
            return enlarged(plan, times, foresight, Foresight(whole), batch)
    return best_plan(Foresight(whole), [batch])


def _parts(scenario: PosttrainScenario, enough: int) -> list[int]:
    """Numbers of equal parts, most first, that all there is can be cut into."""
    asked = scenario.trajectories
    counts = [asked.prompts, scenario.training.dp, *(bucket.replicas for bucket in scenario.rollout)]
    found = [2]
    while asked.prompts * asked.group >= found[-1] * enough and all(count % found[-1] == 0 for count in counts):
        found.append(2 * found[-1])
    return found[-2::-1]


def _part(scenario: PosttrainScenario, times: int) -> PosttrainSetup | None:
    """None where training on fewer GPUs lacks the memory: ranks that share an optimiser's state are fewer."""
    try:
        return set_up_posttrain(scaled(scenario, 1 / times), any_degree=True)
    except UserError:
        return None


def evenly(batch: Sequence[Trajectory], group: int, times: int) -> list[Trajectory]:
    """One of so many prompts, in their order: that of the longest trajectory, and then from the middle of as many."""
    groups = [batch[first : first + group] for first in range(0, len(batch), group)]
    order = sorted(range(len(groups)), key=lambda number: -max(each.generated for each in groups[number]))
    chosen = [order[0], *(order[first + times // 2] for first in range(times, len(order), times))]
    return [each for number in sorted(chosen) for each in groups[number]]


def enlarged(plan: Plan, times: int, part: Foresight, whole: Foresight, batch: Sequence[Trajectory]) -> Plan:
    """A part's plan for the whole, and its runner-up; it says so."""
    found, why, other = _larger(plan, times, part, whole, batch), plan.why, plan.runner_up
    if other is not None:
        other = _larger(other, times, part, whole, batch)
        why = why.replace(str(plan.runner_up), str(other))
    return replace(found, why=f"{why}; simulated at 1/{times}", runner_up=other)


def _larger(plan: Plan, times: int, part: Foresight, whole: Foresight, batch: Sequence[Trajectory]) -> Plan:
    """So many times its training ranks and engines. A step takes as long, or what training on the whole batch takes if
    that is longer."""
    layout = part.training.layouts[plan.training]
    larger = replace(layout, dp=times * layout.dp)
    option = option_of(larger)
    whole.training.layouts.setdefault(option, larger)
    buckets = tuple(replace(each, replicas=times * each.replicas) for each in plan.buckets)
    found = replace(plan, training=option, buckets=buckets)
    return replace(found, step=max(plan.step, whole.least_seconds(found, [batch])))
