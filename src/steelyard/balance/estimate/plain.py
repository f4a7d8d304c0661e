"""Two baselines: one ignores the trajectory, one counts its turns."""

from __future__ import annotations

from steelyard.balance.estimate.history import History, tool_returns
from steelyard.balance.estimate.protocol import Left
from steelyard.balance.estimate.recent import RecentSamples
from steelyard.records import Trajectory

_WINDOW = 5_000  # samples


class Blind:
    """The same prediction for all: mean and p90 over recent tool returns."""

    def __init__(self) -> None:
        self._recent = RecentSamples(_WINDOW)

    def observe(self, history: History) -> Left:
        return self._recent.left()

    def learn(self, done: Trajectory) -> None:
        for _, left in tool_returns(done):
            self._recent.add(left)


class ByTurn:
    """What trajectories had left after as many turns. Turns later than any known count as the last known one."""

    def __init__(self) -> None:
        self._turns: list[RecentSamples] = []

    def observe(self, history: History) -> Left:
        if not self._turns:
            return RecentSamples().left()
        return self._turns[min(len(history.turns), len(self._turns)) - 1].left()

    def learn(self, done: Trajectory) -> None:
        for history, left in tool_returns(done):
            if len(history.turns) > len(self._turns):
                self._turns.append(RecentSamples())
            self._turns[len(history.turns) - 1].add(left)
