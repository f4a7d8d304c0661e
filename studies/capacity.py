"""The best fleet of a kind: candidates in the order of what they should carry, simulated while they may win."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from studies.outcome import Book, Outcome, loaded

_STEPS = 32  # of the estimate: how finely a load is found
_MOST_STEPS = 40  # how far above the estimate it is looked for
_RESIDENCES = 4  # that a run lasts at least, so that the fleet fills and stays full
_FEWEST, _MOST = 1000, 24_000  # requests of a run


@dataclass(frozen=True)
class Limit:
    """Limits on p95 latencies, in seconds."""

    ttft: float
    tpot: float


@dataclass(frozen=True)
class Candidate:
    """A fleet, and its estimated capacity in requests per second."""

    name: str
    fleet: dict[str, Any]
    estimate: float


@dataclass(frozen=True)
class Winner:
    """The best of a kind for a limit."""

    candidate: Candidate
    outcome: Outcome


@dataclass
class Contest:
    """Finds the best candidate for each of several limits."""

    template: Path
    changes: Sequence[str]
    limits: Sequence[Limit]
    output: int  # tokens of a request's output
    book: Book
    tried: int = 0
    best: dict[Limit, Winner] = field(default_factory=dict)

    def enter(self, candidates: Sequence[Candidate], most: int, tell: Callable[[str], None]) -> None:
        """Try up to ``most`` candidates, highest estimates first, until no other can win for any limit."""
        self.best = {}
        for candidate in sorted(candidates, key=lambda each: (-each.estimate, each.name))[:most]:
            hoped = candidate.estimate * _MOST_STEPS / _STEPS
            if all(hoped <= self._to_beat(limit) for limit in self.limits):
                return
            tell(candidate.name)
            self.tried += 1
            for limit in self.limits:
                self._compete(candidate, limit)

    def _to_beat(self, limit: Limit) -> float:
        return self.best[limit].outcome.rate if limit in self.best else 0.0

    def _compete(self, candidate: Candidate, limit: Limit) -> None:
        """Find the highest load within a limit, if it is higher than the best so far."""
        low = math.ceil(self._to_beat(limit) / candidate.estimate * _STEPS + 1e-9)
        high = _MOST_STEPS
        if low > high:
            return
        carried: Outcome | None = None
        if low > 0:
            carried = self._carried(candidate, low, limit)
            if carried is None:
                return
        while low < high:
            step = (low + high + 1) // 2
            outcome = self._carried(candidate, step, limit)
            if outcome is None:
                high = step - 1
            else:
                low, carried = step, outcome
        if carried is not None:
            self.best[limit] = Winner(candidate, carried)

    def _carried(self, candidate: Candidate, step: int, limit: Limit) -> Outcome | None:
        outcome = self.measure(candidate, candidate.estimate * step / _STEPS, limit)
        return outcome if outcome.meets(limit.ttft, limit.tpot) else None

    def measure(self, candidate: Candidate, rate: float, limit: Limit) -> Outcome:
        """Simulate a candidate at ``rate`` requests per second, long enough to fill up and stay full."""
        seconds = _RESIDENCES * (self.output * limit.tpot + 0.5)
        requests = min(_MOST, max(_FEWEST, round(rate * seconds)))
        return self.book.look_up(loaded(self.template, candidate.fleet, rate, requests, self.changes))
