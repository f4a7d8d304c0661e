"""Compare serving scenarios and results: the first is the base, every other one is judged against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steelyard.scenario import Scenario
from steelyard.search.compare.costs import Moves, cost_tasks, moves_of, shared_sources, with_costs
from steelyard.search.compare.given import Given
from steelyard.search.compare.judging import CONFIDENCE, RELEVANT, Judged, Pairing, judged
from steelyard.search.compare.notes import column_notes, difference_notes
from steelyard.search.compare.runs import Progress, RunTask, SeedRun, run_each, run_of
from steelyard.search.compare.settings import ChangedKey, changed_keys

_Place = tuple[int, str, int]  # of a run: its column, the changed source of costs or nothing, its seed


@dataclass(frozen=True)
class ComparedColumn:
    """One column: what was given, and its runs."""

    given: Given
    runs: Sequence[SeedRun]
    again: SeedRun | None = None  # a result folder's own run, made again
    moves: Moves | None = None  # what the errors of costs do, if that was asked for

    @property
    def name(self) -> str:
        return self.given.name

    def mean(self, figure: str) -> float | None:
        """A figure's mean over all seeds; None if a run does not have it."""
        values = [run.values[figure] for run in self.runs]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if len(known) == len(values) else None

    def met(self, limit: str) -> int:
        """In how many runs a limit was met."""
        return sum(run.limits[limit].met for run in self.runs if limit in run.limits)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "source": str(self.given.path),
            "seeds": [run.seed for run in self.runs],
            "figures": {name: self.mean(name) for name in self.runs[0].values},
            "by_seed": {name: [run.values[name] for run in self.runs] for name in self.runs[0].values},
            "slo": {name: {"limit": each.limit, "met": self.met(name)} for name, each in self.runs[0].limits.items()},
            "bottleneck": [run.bottleneck for run in self.runs],
            "unsteady": [run.unsteady for run in self.runs],
        }


@dataclass(frozen=True)
class ColumnDifference:
    """One column against the base."""

    column: ComparedColumn
    keys: Sequence[ChangedKey] | None  # that differ; None if a scenario is not known
    pairing: Pairing
    figures: Sequence[Judged]
    notes: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        keys = None if self.keys is None else [{"key": k.key, "base": k.base, "here": k.here} for k in self.keys]
        return {
            "column": self.column.name,
            "settings": keys,
            "pairing": self.pairing,
            "figures": {each.name: each.as_dict() for each in self.figures},
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class ServingComparison:
    """Two or more columns, and each but the first against it."""

    columns: Sequence[ComparedColumn]
    differences: Sequence[ColumnDifference]
    notes: Sequence[str]

    @property
    def base(self) -> ComparedColumn:
        return self.columns[0]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "base": self.base.name,
            "confidence": CONFIDENCE,
            "relevant": RELEVANT,
            "columns": [each.as_dict() for each in self.columns],
            "differences": [each.as_dict() for each in self.differences],
            "notes": list(self.notes),
        }


def compare_serving(
    given: Sequence[Given], seeds: int, workers: int = 1, costs: bool = False, progress: Progress | None = None
) -> ServingComparison:
    """Run everything that has a scenario with the same seeds, from the base's on, and judge the differences.

    ``costs`` asks for intervals with the errors of costs, too: several runs more of each column and seed.
    """
    columns = _columns(given, seeds, workers, costs, progress)
    notes = [note for column in columns for note in column_notes(column.given, column.runs, column.again)]
    return ServingComparison(columns, [_difference(columns[0], each) for each in columns[1:]], notes)


def _columns(
    given: Sequence[Given], seeds: int, workers: int, costs: bool, progress: Progress | None
) -> list[ComparedColumn]:
    first = _seed(given[0])
    common = range(first, first + seeds)
    tasks: dict[_Place, RunTask] = {}
    for place, each in enumerate(given):
        if each.scenario is not None:
            further = () if each.kept is None else (each.kept.summary.seed,)
            tasks |= {(place, "", seed): RunTask(each.scenario, seed) for seed in (*common, *further)}
            changed = cost_tasks(each.scenario, common) if costs and seeds > 1 else {}
            tasks |= {(place, source, task.seed): task for source, runs in changed.items() for task in runs}
    found = dict(zip(tasks, run_each(list(tasks.values()), workers, progress), strict=True))
    return [_column(place, each, common, found) for place, each in enumerate(given)]


def _seed(given: Given) -> int:
    """The first seed: the base's."""
    if given.kept is not None:
        return given.kept.summary.seed
    assert given.scenario is not None
    return given.scenario.seed


def _column(place: int, given: Given, seeds: range, found: Mapping[_Place, SeedRun]) -> ComparedColumn:
    if given.scenario is None:
        assert given.kept is not None
        return ComparedColumn(given, [run_of(given.kept)])
    sources = dict.fromkeys(source for where, source, _ in found if where == place and source)
    runs = [found[place, "", seed] for seed in seeds]
    changed = {source: [found[place, source, seed].values for seed in seeds] for source in sources}
    again = None if given.kept is None else found[place, "", given.kept.summary.seed]
    return ComparedColumn(given, runs, again, moves_of([run.values for run in runs], changed) if changed else None)


def _difference(base: ComparedColumn, here: ComparedColumn) -> ColumnDifference:
    pairing = _pairing(base.runs, here.runs)
    drawn = any(len({run.asked for run in each.runs}) > 1 for each in (base, here))
    values = [[run.values for run in each.runs] for each in (base, here)]
    figures = judged(values[0], values[1], pairing, drawn)
    one, other = base.given.scenario, here.given.scenario
    if one is not None and other is not None and base.moves is not None and here.moves is not None:
        figures = _widened(figures, base.moves, here.moves, one, other)
    keys = None if one is None or other is None else changed_keys(one, other)
    notes = list(difference_notes(base.name, base.runs, here.name, here.runs, pairing))
    return ColumnDifference(here, keys, pairing, figures, notes)


def _pairing(base: Sequence[SeedRun], here: Sequence[SeedRun]) -> Pairing:
    if min(len(base), len(here)) < 2:
        return "single"
    same = all(one.asked == other.asked for one, other in zip(base, here, strict=True))
    return "paired" if same else "unpaired"


def _widened(figures: Sequence[Judged], base: Moves, here: Moves, one: Scenario, other: Scenario) -> list[Judged]:
    shared = shared_sources(one, other, {**base, **here})
    return [with_costs(each, base, here, shared) for each in figures]
