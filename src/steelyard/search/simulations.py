"""The work of a search: kinds of engines made, a few of them simulated alone, whole fleets simulated.

Processes of a crew do it, and a journal keeps what was simulated, so a search that was stopped repeats nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from steelyard.records.jsontext import plain
from steelyard.scenario import SloSpec
from steelyard.scenario.search import SearchScenario
from steelyard.search.alone import AloneTask, rate_alone
from steelyard.search.crew import Alone, Crew
from steelyard.search.journal import SearchJournal, point_key
from steelyard.search.kinds import Fate, Kind, KindRecipe, as_scenario
from steelyard.search.loads import Load
from steelyard.search.outcome import LoadOutcome, observe
from steelyard.search.rating import Rater
from steelyard.sim.setup import set_up

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is (0 if not known)."""


@dataclass(frozen=True)
class FleetPoint:
    """What one simulation of a search is about."""

    fleet: dict[str, Any]
    quantization: str | None
    rate: float
    requests: int


class Simulations:
    """Does the work of a search."""

    def __init__(self, scenario: SearchScenario, progress: Progress | None) -> None:
        self.scenario, self._progress = scenario, progress
        self.crew: Crew = Alone(partial(work_on, scenario))
        self.book: SearchJournal | None = None
        self.done = 0  # simulations of fleets in this search

    def made(self, rater: Rater, recipes: Sequence[KindRecipe]) -> list[Kind | tuple[Fate, int]]:
        """Kinds of engines, in the order of their recipes."""
        found: list[Kind | tuple[Fate, int]] = [("refused", 0)] * len(recipes)
        for done, (place, made) in enumerate(self.crew.work([(rater, recipe) for recipe in recipes]), 1):
            found[place] = made
            self._tell("preparing engines", done, len(recipes))
        return found

    def alone(self, tasks: Sequence[AloneTask]) -> list[tuple[float, ...]]:
        """What engines carry alone, by level."""
        keys = [point_key(self.scenario, *task.key()) for task in tasks]
        rows = self._rows(keys, tasks, lambda rates: {"rates": rates}, lambda done, of: ("engines alone", done, of))
        return [tuple(row["rates"]) for row in rows]

    def outcomes(self, architecture: str, points: Sequence[FleetPoint]) -> list[LoadOutcome]:
        """The outcomes of fleets."""
        keys = [point_key(self.scenario, point, "outcome") for point in points]
        before = self.done

        def count(done: int, _: int) -> tuple[str, int, int]:
            self.done = before + done
            return f"{architecture}: simulations", self.done, 0

        return [LoadOutcome.from_row(row) for row in self._rows(keys, points, LoadOutcome.to_row, count)]

    def _rows(
        self,
        keys: Sequence[str],
        tasks: Sequence[object],
        to_row: Callable[[Any], dict[str, Any]],
        told: Callable[[int, int], tuple[str, int, int]],
    ) -> list[dict[str, Any]]:
        """What the journal keeps of tasks. Those that it does not know are done now."""
        found = {} if self.book is None else {i: row for i, key in enumerate(keys) if (row := self.book.get(key))}
        missing = [i for i in range(len(tasks)) if i not in found]
        for done, (place, made) in enumerate(self.crew.work([tasks[i] for i in missing]), 1):
            i, row = missing[place], to_row(made)
            found[i] = plain(row) if self.book is None else self.book.put(keys[i], row)
            self._tell(*told(done, len(missing)))
        return [found[i] for i in range(len(tasks))]

    def _tell(self, what: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(what, done, total)


def work_on(
    scenario: SearchScenario, task: FleetPoint | AloneTask | tuple[Rater, KindRecipe]
) -> LoadOutcome | list[float] | Kind | tuple[Fate, int]:
    """What a process of a search does: make a kind of engine, simulate some of it alone, or simulate a fleet."""
    if isinstance(task, FleetPoint):
        return simulate_point(scenario, task)
    if isinstance(task, AloneTask):
        return rate_alone(scenario, task)
    rater, recipe = task
    return recipe.made(scenario, partial(rater, recipe.role))


def simulate_point(scenario: SearchScenario, point: FleetPoint) -> LoadOutcome:
    """The outcome of a fleet at a rate. The run ends when the loosest level is out of reach."""
    loosest = next(iter(levels_of(scenario).values()))
    base = as_scenario(scenario, point.fleet, point.quantization).replace(slo=loosest)
    stop = loosest if scenario.search.good is None else None
    return observe(set_up(base), Load(base).at(point.rate, point.requests), stop=stop)


def levels_of(scenario: SearchScenario) -> dict[str, SloSpec]:
    """The limits at each level, loosest first; one without a name if there are no levels."""
    if not scenario.search.levels:
        return {"": scenario.slo}
    ((name, values),) = scenario.search.levels.items()
    written = scenario.slo.model_dump(exclude_unset=True)
    return {
        f"{name} <= {value:g} s": SloSpec(**{**written, name: value}) for value in sorted(set(values), reverse=True)
    }
