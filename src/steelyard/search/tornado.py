"""How the largest rate of a fleet changes with each assumption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from steelyard.errors import UserError
from steelyard.scenario import Scenario
from steelyard.search.assumptions import Variant, assumptions
from steelyard.search.capacity import largest_rate
from steelyard.search.limits import check_limits
from steelyard.search.loads import Load
from steelyard.sim.setup import set_up
from steelyard.sim.workers import as_completed


@dataclass(frozen=True)
class Swing:
    """The answers when one assumption is moved, by what was moved in words; 0 if the fleet then carries nothing."""

    name: str
    rates: tuple[tuple[str, float], ...]

    def effect(self, rate: float) -> float:
        """The largest change of the answer, as a share of it."""
        return max(abs(moved / rate - 1) for _, moved in self.rates)


@dataclass(frozen=True)
class Tornado:
    """The answer, and how it swings with each assumption, the widest swing first."""

    rate: float
    gpus: int
    swings: tuple[Swing, ...]


def tornado(scenario: Scenario, workers: int = 0, progress: Callable[[int, int], None] | None = None) -> Tornado:
    """The largest rate with each assumption moved down and up."""
    check_limits(scenario)
    setup = set_up(scenario)
    rate = largest_rate(setup, Load(scenario)).rate
    if not rate:
        raise UserError(f"{scenario.source}: the fleet carries no rate within its limits, so nothing can be compared")
    known = [each for each in assumptions(scenario, setup) if each.moves]
    tasks = [move for each in known for move in each.moves]
    found: dict[int, float] = {}
    ends = as_completed(_moved, tasks, workers) if workers else enumerate(map(_moved, tasks))
    for done, (place, moved) in enumerate(ends, 1):
        found[place] = moved
        if progress is not None:
            progress(done, len(tasks))
    answers = iter(found[i] for i in range(len(tasks)))
    swings = [Swing(each.name, tuple((move.said, next(answers)) for move in each.moves)) for each in known]
    return Tornado(rate, setup.gpus, tuple(sorted(swings, key=lambda each: -each.effect(rate))))


def _moved(move: Variant) -> float:
    """The largest rate with one assumption moved, by the same search, so that what changes nothing shows nothing."""
    try:
        setup = set_up(move.scenario, move.host, move.factors)
        return largest_rate(setup, Load(move.scenario)).rate
    except UserError:
        return 0.0
