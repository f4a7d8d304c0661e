"""The whole answer to a search: the best fleets, what binds them, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from steelyard.scenario.search import SearchScenario
from steelyard.search.confidence import Sureness, sureness
from steelyard.search.journal import SearchJournal
from steelyard.search.outcome import observe
from steelyard.search.rates import RATIO
from steelyard.search.search import FleetChoice, Level, SearchResult, find_fleets, journal_name
from steelyard.search.simulations import Progress
from steelyard.sim.setup import set_up


@dataclass(frozen=True)
class LevelAnswer:
    """The answer at one level of the limits."""

    level: Level
    binds: str  # what is missed at the next higher rate
    other: FleetChoice | None  # the next best
    sure: Sureness | None


@dataclass(frozen=True)
class Answer:
    """What a search found, level by level."""

    found: SearchResult
    levels: tuple[LevelAnswer, ...]


def answer_search(
    scenario: SearchScenario,
    *,
    journal: Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    sure: bool = True,
    progress: Progress | None = None,
) -> Answer:
    """Search, and say how sure the answer is. ``sure`` can be left out: it takes some dozens of runs a level."""
    found = find_fleets(scenario, journal=journal, workers=workers, ray=ray, progress=progress)
    levels = []
    for level in found.levels:
        best, other = (*level.choices[:2], None, None)[:2]
        judged = None
        if sure and best is not None and other is not None:
            with SearchJournal.opened(journal, journal_name(scenario)) as book:
                judged = sureness(
                    *(scenario, best, other, found.requests_of(best)),
                    book=book,
                    workers=workers,
                    ray=ray,
                    progress=progress,
                )
        levels.append(LevelAnswer(level, "" if best is None else _binds(found, best), other, judged))
    return Answer(found, tuple(levels))


def _binds(found: SearchResult, best: FleetChoice) -> str:
    """The limit that is missed first above the rate that is carried."""
    scenario = found.scenario_of(best, rate=best.rate * RATIO)
    outcome = observe(set_up(scenario), scenario)
    if outcome.overloaded and outcome.meets_limits(scenario.slo):
        return "requests pile up"
    return outcome.worst(scenario.slo) or "the share of good requests"
