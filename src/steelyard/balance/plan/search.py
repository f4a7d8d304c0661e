"""The joint search: every training layout with the best rollout on the other GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from steelyard.balance.plan.buckets import ByLength, Frontier
from steelyard.balance.plan.measured import Measured
from steelyard.balance.plan.world import Plan, TrainOption, World, rounded
from steelyard.errors import UserError
from steelyard.records import Ints


@dataclass(frozen=True, slots=True)
class StageFactors:
    """Ratios of measured to predicted stage times."""

    train: float = 1.0
    rollout: float = 1.0


def _any_layout(option: TrainOption, lengths: Ints) -> bool:
    return True


def contexts(measured: Measured) -> Ints:
    """Lengths of the sequences that are trained on."""
    return measured.context


@dataclass
class Search:
    """Tries numbers of training GPUs in rising order and skips those whose rollout alone is too slow.

    ``asked`` counts the training layouts that were timed, ``evaluations`` the makespans.
    """

    world: World
    frontier: Callable[[World, Measured], Frontier] = ByLength
    usable: Callable[[TrainOption, Ints], bool] = _any_layout
    lengths: Callable[[Measured], Ints] = contexts
    asked: int = 0
    evaluations: int = 0

    def plans(self, measured: Measured, keep: int = 2, factors: StageFactors | None = None) -> list[Plan]:
        """The best plans with different numbers of training GPUs, best first; none if nothing fits."""
        world, factors, lengths = self.world, factors or StageFactors(), self.lengths(measured)
        frontier = self.frontier(world, measured)
        found: list[Plan] = []
        for gpus, options in self._by_split(measured, lengths):
            rollout = rounded(frontier.seconds(gpus) * factors.rollout)
            limit = found[keep - 1].step if len(found) >= keep else inf
            if rollout >= limit:
                continue
            train, _, option = min((world.train_seconds(each, lengths), i, each) for i, each in enumerate(options))
            train = rounded(train * factors.train)
            self.asked += len(options)
            if world.together(train, rollout) < limit:
                chosen = frontier.rollout(gpus)
                times = train, rounded(chosen.seconds * factors.rollout)
                found.append(Plan(option, chosen.buckets, *times, world.step_seconds(*times, option, chosen.buckets)))
                found = sorted(found, key=lambda plan: (plan.step, plan.train + plan.rollout))[:keep]
        self.evaluations += frontier.evaluations
        return found

    def _by_split(self, measured: Measured, lengths: Ints) -> list[tuple[int, list[TrainOption]]]:
        """Training layouts by the number of rollout GPUs, most first; only those that fit the longest sequence."""
        longest = int(measured.context.max())
        splits: dict[int, list[TrainOption]] = {}
        for option in self.world.options:
            gpus = self.world.rollout_gpus(option)
            if gpus and option.budget >= longest and self.usable(option, lengths):
                splits.setdefault(gpus, []).append(option)
        return sorted(splits.items(), reverse=True)

    def best(self, measured: Measured, factors: StageFactors | None = None) -> Plan:
        """The best plan, with why and the runner-up."""
        found = self.plans(measured, 2, factors)
        if not found:
            raise nothing_fits(self.world, measured)
        return explained(*found)


def explained(plan: Plan, runner_up: Plan | None = None) -> Plan:
    """A plan that names its longer stage, with the next best."""
    slower = "rollout" if plan.rollout >= plan.train else "training"
    why = f"{slower} is the longer stage ({plan.rollout:.1f} s rollout, {plan.train:.1f} s training)"
    return replace(plan, why=why, runner_up=runner_up)


def nothing_fits(world: World, measured: Measured) -> UserError:
    """The error for a cluster that is too small."""
    return UserError(
        f"planner: none of {len(world.options)} training layouts holds the longest trajectory "
        f"({int(np.max(measured.context))} tokens) and leaves replicas of {world.gpus} GPUs that do"
    )
