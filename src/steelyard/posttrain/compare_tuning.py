"""Tuning for each scenario of what other systems leave open, and of fixed splits: short runs with all values, on
trajectories of another seed; for each objective the best is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from steelyard.errors import UserError
from steelyard.posttrain.compare_cases import Case, Cases
from steelyard.posttrain.compare_choices import Contender
from steelyard.posttrain.compare_outcomes import REWARD, THROUGHPUT, Metric
from steelyard.posttrain.compare_plans import Plans, with_plan
from steelyard.posttrain.compare_profiles import combinations
from steelyard.scenario.posttrain import PosttrainScenario

TRIAL_STEPS = 9
"""Steps of a trial: past the first batches, which begin on idle engines. The scenario's own if it has fewer."""
_ELSEWHERE = 100  # added to the seed, so that nothing is tuned on the trajectories that it is judged by

PlansOf = Callable[[Contender], Plans]
"""The fixed splits to try for a contender with planner ``static-best``."""


class Tuning:
    """Tries of all contenders on a scenario."""

    def __init__(self, scenario: PosttrainScenario, contenders: Sequence[Contender], plans: PlansOf) -> None:
        short = scenario.replace(steps=min(scenario.steps, TRIAL_STEPS), seed=scenario.seed + _ELSEWHERE)
        self._cases, self._plans, self._contenders = Cases(short), plans, contenders

    def first(self) -> dict[Contender, list[Case]]:
        """Open settings are tried first, each combination with the best split."""
        return {each: list(self._tried(each)) for each in self._contenders if each.open}

    def second(self, figures: Callable[[PosttrainScenario], Mapping[str, Any]]) -> dict[Contender, list[Case]]:
        """Then splits, with the best settings."""
        tuned = [each for one in self._contenders for each in self._settled(one, figures)]
        return {each: cases for each in tuned if len(cases := list(self._splits(each))) > 1}

    def tuned(self, figures: Callable[[PosttrainScenario], Mapping[str, Any]]) -> list[Contender]:
        """The contenders with the values that were best in their tries; of equal ones the first."""
        found: list[Contender] = []
        splits = self.second(figures)
        for one in self._contenders:
            for each in self._settled(one, figures):
                tries = splits.get(each)
                found.append(each if tries is None else replace(each, split=_best(tries, figures, _metric(each))))
        return found

    def _settled(
        self, contender: Contender, figures: Callable[[PosttrainScenario], Mapping[str, Any]]
    ) -> list[Contender]:
        """The contender with its best values; twice if they differ by objective."""
        if not contender.open:
            return [contender]
        tries, values = list(self._tried(contender)), combinations(contender.open)
        fastest, soonest = (_best(tries, figures, metric) for metric in (THROUGHPUT, REWARD))
        found = [contender.tuned(values[fastest])]
        if soonest != fastest:
            found.append(replace(contender.tuned(values[soonest]), name=f"{contender.name}{FOR_REWARD}"))
        return found

    def _tried(self, contender: Contender) -> Iterator[Case]:
        for values in combinations(contender.open):
            yield self._case(contender.tuned(values))

    def _splits(self, contender: Contender) -> Iterator[Case]:
        if contender.choice.planner != "static-best" or contender.choice.objective is not None:
            return
        try:
            case = self._cases.of(contender.choice)
        except UserError:
            return
        for plan in self._plans(contender):
            yield _planned(case, plan)

    def _case(self, contender: Contender) -> Case:
        try:
            case = self._cases.of(contender.choice)
        except UserError as error:
            return error
        return split_case(case, contender, self._plans)


FOR_REWARD = ", for reward"
"""Ends the name of a system's second row, with the values that are best for reward."""


def split_case(case: Case, contender: Contender, plans: PlansOf) -> Case:
    """The case with the contender's fixed split, if it has one."""
    if isinstance(case, UserError) or case.planner != "static-best":
        return case
    known = plans(contender)
    return _planned(case, known[contender.split]) if known else case


def _planned(case: PosttrainScenario, plan: Mapping[str, Any]) -> Case:
    try:
        return with_plan(case, plan)
    except UserError as error:
        return error


def _metric(contender: Contender) -> Metric:
    return REWARD if contender.name.endswith(FOR_REWARD) else THROUGHPUT


def _best(tries: Sequence[Case], figures: Callable[[PosttrainScenario], Mapping[str, Any]], metric: Metric) -> int:
    """The place of the best try; refused ones are the worst."""
    speeds = [0.0 if isinstance(case, UserError) else metric.speed(figures(case)) or 0.0 for case in tries]
    return speeds.index(max(speeds))
