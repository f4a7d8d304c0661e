"""How long trajectories are before their first turn, when no tool has returned anything yet.

Estimators answer for tool returns; these answer the same question for an empty history.
"""

from __future__ import annotations

from steelyard.balance.estimate import History, Left
from steelyard.balance.estimate.recent import RecentSamples
from steelyard.records import Trajectory

_WINDOW = 2_000  # trajectories
_PROMPTS = 20_000  # remembered one by one; the least recently seen is forgotten first
_PRIOR = 4  # trajectories that the mean of all prompts counts for beside a prompt's own


class ByPrompt:
    """The mean over trajectories of the same prompt, shrunk towards that of all prompts if there are few."""

    def __init__(self) -> None:
        self._all = RecentSamples(_WINDOW)
        self._prompts: dict[str, tuple[int, float]] = {}  # trajectories, their mean; least recently seen first

    def observe(self, history: History) -> Left:
        """The spread is that of all prompts, scaled."""
        overall = self._all.left()
        count, mean = self._prompts.get(history.prompt, (0, 0.0))
        if not count or not overall.mean:
            return overall
        expected = (count * mean + _PRIOR * overall.mean) / (count + _PRIOR)
        return Left(expected, overall.p90 * expected / overall.mean)

    def learn(self, done: Trajectory) -> None:
        generated = done.generated
        self._all.add(generated)
        count, mean = self._prompts.pop(done.prompt, (0, 0.0))
        self._prompts[done.prompt] = count + 1, mean + (generated - mean) / (count + 1)
        if len(self._prompts) > _PROMPTS:
            del self._prompts[next(iter(self._prompts))]
