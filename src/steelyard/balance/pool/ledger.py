"""Every reallocation: its predicted gain, its realised gain, and its cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from steelyard.balance.pool.learnt import Learnt
from steelyard.balance.pool.rules import Side

Outcome = Literal["under way", "done", "rolled back"]
_STEPS = 3  # steps after a move over which its gain is measured


@dataclass(slots=True)
class Reallocation:
    """One replica on its way to the other side. Gains are seconds per step."""

    replica: int
    to: Side
    step: int
    at: float
    before: float  # seconds of the step after which it was decided
    predicted: float  # gain of all replicas that were sent together
    outcome: Outcome = "under way"
    ended: float | None = None
    reason: str = ""
    after: list[float] = field(default_factory=list)

    @property
    def realised(self) -> float | None:
        """The measured gain over the first few steps since; None before the first.

        It is the difference of before and after, so a drift of lengths is in it, too.
        """
        return self.before - sum(self.after) / len(self.after) if self.after else None


class Ledger:
    """Reallocations in order, and the seconds that moves to each side have taken."""

    def __init__(self, away: float) -> None:
        self.entries: list[Reallocation] = []
        self.away: dict[Side, Learnt] = {"training": Learnt(away), "rollout": Learnt(away)}
        self._open: dict[int, Reallocation] = {}
        self._watched: list[Reallocation] = []

    def begin(self, entry: Reallocation) -> None:
        """A replica begins to move. From now on, effects of earlier moves cannot be told apart from this one's."""
        self._watched.clear()
        self._open[entry.replica] = entry
        self.entries.append(entry)

    def done(self, replica: int, at: float, away: float) -> None:
        """It has arrived, after ``away`` seconds in neither role."""
        entry = self._close(replica, at, "done")
        if entry is not None:
            self.away[entry.to].take(away)
            self._watched.append(entry)

    def rolled_back(self, replica: int, at: float, reason: str) -> None:
        """It was rolled back. Does nothing if it was not on its way."""
        entry = self._close(replica, at, "rolled back")
        if entry is not None:
            entry.reason = reason

    def dissolved(self, at: float) -> None:
        """The pool ends: replicas under way arrive nowhere."""
        for replica in list(self._open):
            self.rolled_back(replica, at, "the plan changed")
        self._watched.clear()

    def measured(self, seconds: float) -> None:
        """A whole step was run with the current split."""
        for entry in self._watched:
            entry.after.append(seconds)
        self._watched = [entry for entry in self._watched if len(entry.after) < _STEPS]

    def _close(self, replica: int, at: float, outcome: Outcome) -> Reallocation | None:
        entry = self._open.pop(replica, None)
        if entry is not None:
            entry.outcome, entry.ended = outcome, at
        return entry
