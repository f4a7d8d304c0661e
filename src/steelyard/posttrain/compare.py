"""Compares ways to run post-training: tunes what contenders leave open, runs all, and those close to the best again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from steelyard.errors import UserError
from steelyard.posttrain.ceiling import ceiling
from steelyard.posttrain.compare_cases import Case, Cases
from steelyard.posttrain.compare_choices import Contender
from steelyard.posttrain.compare_outcomes import Comparison, Outcome
from steelyard.posttrain.compare_plans import Plans
from steelyard.posttrain.compare_results import CompareResults
from steelyard.posttrain.compare_runs import ComparedRuns, Progress, digest_of
from steelyard.posttrain.compare_tuning import Tuning, split_case
from steelyard.scenario.posttrain import PosttrainScenario


def compare(
    scenarios: Sequence[PosttrainScenario],
    contenders: Sequence[Contender],
    folder: Path,
    workers: int = 1,
    progress: Progress | None = None,
    seeds: int = 1,
) -> list[Comparison]:
    """Run every contender on every scenario, and those close to the best with more seeds. What a contender leaves open
    is tuned for each scenario first. Results of the same code in ``folder`` are used again. A scenario on which our
    choice cannot be run is not compared."""
    with closing(CompareResults(folder)) as results:
        runs = ComparedRuns(results, workers, progress)
        found = [_Compared(scenario, runs) for scenario in scenarios]
        for each in found:
            each.run_ours(contenders)
        for each in found:
            each.tune(contenders)
            each.run()
            each.run_again(seeds)
        return [each.comparison() for each in found]


@dataclass
class _Compared:
    """A scenario, its contenders, and their cases by seed."""

    scenario: PosttrainScenario
    runs: ComparedRuns
    firsts: Cases | None = None  # of the first seed
    cases: dict[Contender, list[Case]] = field(default_factory=dict)
    ways: dict[str, str] = field(default_factory=dict)  # the ways of chosen cases
    limit: float | None = None

    def run_ours(self, contenders: Sequence[Contender]) -> None:
        """Run our first row, which every comparison needs."""
        for each in [each for each in contenders if each.kind == "ours"][:1]:
            cases = dict(self._cases(self.scenario, [each]))
            self.runs.run(_runnable(cases.values()))
            if refused := self._outcome(each, [cases[each]]).refused:
                raise UserError(*refused.splitlines())

    def tune(self, contenders: Sequence[Contender]) -> None:
        """Find what is best for all that contenders leave open."""
        runs = self.runs
        runs.search(_runnable(case for _, case in self._cases(self.scenario, contenders)))
        tuning = Tuning(self.scenario, contenders, self._plans)
        runs.run(_runnable(case for cases in tuning.first().values() for case in cases))
        runs.run(_runnable(case for cases in tuning.second(runs.figures).values() for case in cases))
        tuned = tuning.tuned(runs.figures)
        self.cases = {each: [split_case(case, each, self._plans)] for each, case in self._cases(self.scenario, tuned)}

    def run(self) -> None:
        """Run all contenders."""
        self.runs.run(_runnable(case for cases in self.cases.values() for case in cases))
        if self.limit is None:
            self.limit = ceiling(self.scenario)

    def run_again(self, seeds: int) -> None:
        """Run those that are close with other seeds, on the splits of the first one."""
        close = self.comparison().close if seeds > 1 else []
        for seed in range(self.scenario.seed + 1, self.scenario.seed + seeds):
            for each, case in self._cases(self.scenario.replace(seed=seed), close):
                self.cases[each].append(split_case(case, each, self._plans))
        self.run()

    def comparison(self) -> Comparison:
        """All outcomes."""
        return Comparison(self.scenario, [self._outcome(*each) for each in self.cases.items()], self.limit)

    def _cases(self, scenario: PosttrainScenario, contenders: Iterable[Contender]) -> Iterator[tuple[Contender, Case]]:
        """The scenario of each contender, in the way that is chosen if it has an objective."""
        cases = Cases(scenario)
        for each in contenders:
            try:
                case = cases.of(each.choice)
                if case.objective is not None:
                    way, case = self.runs.chosen(case, self.scenario.seed)
                    self.ways[digest_of(case)] = way
                yield each, case
            except UserError as error:
                yield each, error

    def _plans(self, contender: Contender) -> Plans:
        """The fixed splits of a contender: those for the trajectories of the first seed, also with others."""
        if self.firsts is None:
            self.firsts = Cases(self.scenario)
        return self.runs.plans(self.firsts.of(contender.choice))

    def _outcome(self, contender: Contender, cases: Sequence[Case]) -> Outcome:
        runs = []
        for case in cases:
            found = {"refused": str(case)} if isinstance(case, UserError) else self.runs.figures(case)
            if "refused" in found:
                return Outcome(contender, (), found["refused"])
            if contender.choice.objective is not None and isinstance(case, PosttrainScenario):
                found = {**found, "way": self.ways[digest_of(case)]}
            runs.append(found)
        first = next(_runnable(cases)).model_dump(mode="json", exclude_unset=True)
        return Outcome(contender, runs, scenario=first)


def _runnable(cases: Iterable[Case]) -> Iterator[PosttrainScenario]:
    return (case for case in cases if isinstance(case, PosttrainScenario))
