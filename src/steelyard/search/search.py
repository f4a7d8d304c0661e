"""From a question to the fleet to buy: all candidates, the best of each architecture, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.errors import UserError
from steelyard.lazy import late
from steelyard.records import Floats
from steelyard.scenario import Scenario, SloSpec
from steelyard.scenario.search import SearchScenario
from steelyard.search.alone import try_alone
from steelyard.search.candidates import Candidates, Ceiling, Space, enumerate_space
from steelyard.search.cheapest import cheapest
from steelyard.search.contest import Contest, Field, RateTrial, Standing, Tally
from steelyard.search.crew import crew_of
from steelyard.search.demand import ServiceDemand, first_token_demand, whole_demand
from steelyard.search.estimates import MeanRequest
from steelyard.search.journal import SearchJournal, point_key
from steelyard.search.kinds import Key, Kinds, as_scenario
from steelyard.search.limits import check_limits
from steelyard.search.loads import Load
from steelyard.search.outcome import LoadOutcome
from steelyard.search.plots import SearchPlots
from steelyard.search.rates import RateGrid
from steelyard.search.rating import Rater
from steelyard.search.simulations import FleetPoint, Progress, Simulations, levels_of, work_on
from steelyard.workload import build_workload


@dataclass(frozen=True)
class FleetChoice:
    """A fleet that was found, at a level of the limits."""

    architecture: str
    level: str
    name: str
    fleet: dict[str, Any]
    quantization: str | None
    rate: float  # requests per second that it carries
    score: float
    gpus: int
    usd_per_hour: float
    watts: float
    bound: float
    estimate: float
    outcome: LoadOutcome

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens that it generates at this rate."""
        return self.rate * self.outcome.output_tokens


@dataclass(frozen=True)
class Level:
    """The best fleets at one level of the limits: of each architecture, the best first."""

    name: str
    slo: SloSpec
    choices: tuple[FleetChoice, ...]

    @property
    def best(self) -> FleetChoice | None:
        """The best of all architectures."""
        return self.choices[0] if self.choices else None

    def by_architecture(self) -> list[FleetChoice]:
        """The best of each architecture, the best first."""
        found: dict[str, FleetChoice] = {}
        for each in self.choices:
            found.setdefault(each.architecture, each)
        return list(found.values())

    def frontier(self) -> list[FleetChoice]:
        """Choices that no other beats in both price and rate, the cheapest first."""
        ranked = sorted(self.choices, key=lambda each: (each.usd_per_hour, -each.rate, each.name))
        kept: list[FleetChoice] = []
        for each in ranked:
            if not kept or each.rate > kept[-1].rate:
                kept.append(each)
        return kept


@dataclass(frozen=True)
class SearchResult:
    """The answer of a search."""

    scenario: SearchScenario
    space: Space
    levels: tuple[Level, ...]
    tallies: dict[str, Tally]  # by architecture
    simulations: int  # of which this search and those before it needed
    everyone: dict[str, dict[str, float]] = field(
        default_factory=dict
    )  # of an exhaustive search: scores by level and name

    @property
    def plot(self) -> SearchPlots:
        """Charts of the search, such as ``found.plot.frontier()``."""
        return SearchPlots(self)

    def _repr_html_(self) -> str:
        return late("steelyard.report.notebook", "search_html")(self)

    @property
    def considered(self) -> int:
        """Candidates, with those that cannot work."""
        return self.space.considered

    def scenario_of(self, choice: FleetChoice, rate: float | None = None) -> Scenario:
        """The serving scenario of a choice, at the rate that it carries or another."""
        level = next(each for each in self.levels if each.name == choice.level)
        scenario = as_scenario(self.scenario, choice.fleet, choice.quantization).replace(slo=level.slo)
        return Load(scenario).at(choice.rate if rate is None else rate, self.requests_of(choice))

    def requests_of(self, choice: FleetChoice) -> int:
        """Requests of a whole simulation of a choice."""
        return max(self.scenario.search.requests, round(choice.rate * self.scenario.search.seconds))


def find_fleets(
    scenario: SearchScenario,
    *,
    journal: Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    exhaustive: bool = False,
    progress: Progress | None = None,
) -> SearchResult:
    """Find the best fleets of a search.

    ``journal`` is a file that keeps every simulation: with it, a search that was stopped goes on. ``exhaustive``
    simulates every candidate, to check what the search leaves out.
    """
    return _Search(scenario, exhaustive, progress).run(journal, workers, ray)


def space_of(scenario: SearchScenario, *, workers: int | None = None, progress: Progress | None = None) -> Space:
    """All candidates of a search, with bounds and estimates. Nothing is simulated."""
    preparing = _Search(scenario, True, progress)
    with crew_of(partial(work_on, scenario), workers, None) as preparing.simulations.crew:
        return preparing.prepared()


class _Search:
    def __init__(self, scenario: SearchScenario, exhaustive: bool, progress: Progress | None) -> None:
        self.scenario, self.exhaustive = scenario, exhaustive
        self.levels = levels_of(scenario)
        self.loosest = next(iter(self.levels.values()))
        self.grid = RateGrid.of(scenario, Load(self._base()))
        self.simulations = Simulations(scenario, progress)

    def prepared(self) -> Space:
        """All candidates, with bounds and estimates."""
        self.space = self._space()
        return self.space

    def run(self, journal: Path | None, workers: int | None, ray: str | None) -> SearchResult:
        scenario, spec = self.scenario, self.scenario.search
        for slo in self.levels.values():
            if spec.good is None:
                check_limits(scenario.replace(slo=slo))
            elif not slo.per_request():
                raise UserError(f"{scenario.source}: slo: search.good counts requests within limits; give some")
        with SearchJournal.opened(journal, journal_name(scenario)) as self.simulations.book:
            tallies: dict[str, Tally] = {}
            found: dict[str, list[FleetChoice]] = {level: [] for level in self.levels}
            everyone: dict[str, dict[str, float]] = {level: {} for level in self.levels}
            with crew_of(partial(work_on, scenario), workers, ray) as self.simulations.crew:
                self.prepared()
                for architecture in spec.chosen():
                    contest = self._contest(architecture)
                    tallies[architecture] = contest.tally
                    for level, standings in contest.best.items():
                        found[level] += [self._choice(architecture, level, each) for each in standings]
                        everyone[level] |= {
                            self.space.groups[entry.group].name(entry.row): score
                            for entry, score in contest.everyone[level].items()
                        }
        ranked = tuple(
            Level(name, slo, tuple(sorted(found[name], key=lambda each: (-each.score, each.name))))
            for name, slo in self.levels.items()
        )
        return SearchResult(
            scenario, self.space, ranked, tallies, self.simulations.done, everyone if self.exhaustive else {}
        )

    def _base(self) -> Scenario:
        """A serving scenario with any fleet, for what does not depend on the fleet."""
        spec = self.scenario.search
        choices = next(each for each in (spec.serve, spec.prefill, spec.attention) if each is not None)
        return as_scenario(self.scenario, {"gpu": choices.gpu[0]}).replace(slo=self.loosest)

    def _space(self) -> Space:
        scenario = self.grid.load.scenario
        workload = build_workload(scenario.workload, scenario.seed, scenario.base_dir)
        demands: tuple[ServiceDemand | None, ServiceDemand | None] = (None, None)
        if self.scenario.search.good is None:
            demands = first_token_demand(scenario, workload), whole_demand(scenario, workload)
        ceilings = tuple(Ceiling(demand, self.grid.rates, self.grid.needs(demand)) for demand in demands)
        tpots = [limit.seconds for limit in self.loosest.on_run() if limit.metric == "tpot"]
        per_token = self.loosest.per_request().get("tpot")
        tpot = min([*tpots, *([per_token] if per_token is not None else [])], default=inf)
        rater = Rater(MeanRequest.of(workload), tpot, *demands)
        first, whole = ceilings
        make = partial(self.simulations.made, rater)
        return enumerate_space(self.scenario, make, self._try_alone, (first, whole), len(self.levels))

    def _try_alone(self, kinds: dict[Key, Kinds]) -> None:
        if not self.exhaustive:  # which simulates every fleet, so it needs no better estimates
            try_alone(kinds, tuple(self.levels.values()), self.scenario.search.gpus, self.simulations.alone)

    def _contest(self, architecture: str) -> Contest:
        groups = [(i, group) for i, group in enumerate(self.space.groups) if group.architecture == architecture]
        contest = Contest(self.grid, self.levels, self.scenario.search.good, self.exhaustive)
        if not any(len(group) for _, group in groups):
            contest.best = {level: [] for level in self.levels}
            contest.everyone = {level: {} for level in self.levels}
            return contest
        entrants = Field([group for _, group in groups], [i for i, _ in groups], self._weight)
        if self.scenario.search.objective == "cost":
            cheapest(contest, entrants, self.grid.at_least(self.grid.load.own), self._simulate)
        else:
            contest.run(entrants, partial(self._simulate, architecture))
        return contest

    def _weight(self, group: Candidates) -> Floats:
        objective = self.scenario.search.objective
        divisor = {"per-gpu": group.gpus, "per-dollar": group.usd_per_hour, "per-watt": group.watts}.get(objective)
        return np.ones(len(group)) if divisor is None else 1 / np.maximum(divisor, 1e-9)

    def _simulate(self, architecture: str, trials: Sequence[RateTrial]) -> list[LoadOutcome]:
        return self.simulations.outcomes(architecture, [self.point(trial) for trial in trials])

    def point(self, trial: RateTrial) -> FleetPoint:
        """What a trial simulates."""
        group = self.space.groups[trial.entry.group]
        fleet = group.fleet(trial.entry.row, self.scenario.search)
        rate = float(self.grid.rates[trial.place])
        return FleetPoint(fleet, group.quantization, rate, self.grid.requests(trial.place, trial.short))

    def _choice(self, architecture: str, level: str, standing: Standing) -> FleetChoice:
        group, row = self.space.groups[standing.entry.group], standing.entry.row
        return FleetChoice(
            architecture=architecture,
            level=level,
            name=group.name(row),
            fleet=group.fleet(row, self.scenario.search),
            quantization=group.quantization,
            rate=float(self.grid.rates[standing.place]),
            score=standing.score,
            gpus=int(group.gpus[row]),
            usd_per_hour=float(group.usd_per_hour[row]),
            watts=float(group.watts[row]),
            bound=float(group.bound[row]),
            estimate=float(group.estimate[row]),
            outcome=standing.outcome,
        )


def journal_name(scenario: SearchScenario) -> str:
    """The name of a search in its journal: other choices, limits or code are another search."""
    return f"search of {scenario.name} {point_key(scenario)}"
