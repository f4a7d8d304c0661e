"""The expected demand of a trajectory: its remaining tokens as a few equally likely lengths, and the prompts and tools
that come with them.

The errors of estimators are about constant in square roots of tokens. So the root of the length is taken as normally
distributed, with the given mean and p90. A mean alone is not enough: trajectories that turn out long decide when a
rollout ends.
"""

from __future__ import annotations

from math import isfinite, sqrt

import numpy as np
import numpy.typing as npt

from steelyard.balance.estimate import History, Left
from steelyard.balance.portable import Z90
from steelyard.balance.rollouts import Running

Array = npt.NDArray[np.float64]

LENGTHS = 8  # equally likely lengths that represent a distribution
_MIDDLES = (0.1573106846101707, 0.4887764111146695, 0.8871465590188759, 1.5341205443525463)
"""The standard normal distribution's quantiles in the middle of each upper eighth."""
_BESIDE = [quantile - Z90 for quantile in (*(-each for each in reversed(_MIDDLES)), *_MIDDLES)]
_ONWARD = [LENGTHS / (LENGTHS - number - 0.5) - 1.0 for number in range(LENGTHS)]
_OCTAVES = [float(128 << number) for number in range(LENGTHS)]  # 128 to 16,384 tokens
_MEMORY = 0.998  # what remains of a trajectory's weight when the next one ends: half after 350 of them


class Demand:
    """Tokens to generate, tool time and returned tokens per generated token, and the context to begin with."""

    __slots__ = ("cached", "context", "expected", "likely", "new", "returned", "tools", "usual_context")

    def __init__(self, likely: list[float], tools: float, returned: float, cached: int, new: int) -> None:
        self.likely = likely  # equally likely lengths, rising
        self.expected = _mean(likely)
        self.tools = tools  # seconds of tools per generated token
        self.returned = returned  # tokens that tools return per generated token
        self.cached = cached
        self.new = new
        self.context = cached + new
        self.usual_context = self.context + (1.0 + returned) * self.expected / 2  # mean over the remaining tokens


def lengths(left: Left) -> list[float]:
    """Equally likely lengths by an estimate. For so few, a list is faster than an array."""
    return _lengths(left.mean, left.p90)


def _lengths(mean: float, p90: float) -> list[float]:
    if mean >= p90:
        return [max(1.0, mean)] * LENGTHS
    high, inner = sqrt(p90), (Z90 * Z90 + 1.0) * mean - p90
    spread = (Z90 * high - sqrt(max(0.0, inner))) / (Z90 * Z90 + 1.0)
    return [root * root if (root := high + spread * each) > 1.0 else 1.0 for each in _BESIDE]


def _mean(likely: list[float]) -> float:
    a, b, c, d, e, f, g, h = likely
    return (((a + b) + (c + d)) + ((e + f) + (g + h))) / LENGTHS


def unknown(had: int) -> list[float]:
    """The same without an estimate: with an unknown scale, a trajectory has at least as many tokens left as it ``had``
    in half of all cases. Before the first turn all octaves are equally likely."""
    return [had * each for each in _ONWARD] if had else _OCTAVES


class DemandModel:
    """Statistics of ended trajectories: returned tokens and tool seconds per token, and turns left after each turn."""

    def __init__(self) -> None:
        self._ended = 0
        self._count = self._turns = self._tokens = self._returned = self._seconds = 0.0
        self.tools = 0.0  # seconds per generated token
        self.returned = 0.0  # tokens per generated token
        self._usual = 0.0  # mean generated tokens of a trajectory
        self._a_turn = 0.0  # mean generated tokens of a turn
        # The last demand before a first turn, and its inputs.
        self._first: tuple[tuple[float, ...], Demand] | None = None
        # By turn: weight of the trajectories that had more turns, and their turns left.
        self._later: list[tuple[float, float]] = []

    def learn(self, done: History) -> None:
        """Learn from a trajectory that has ended."""
        self._ended += 1
        self._count = _MEMORY * self._count + 1.0
        self._turns = _MEMORY * self._turns + len(done.turns)
        self._tokens = _MEMORY * self._tokens + done.generated
        self._returned = _MEMORY * self._returned + done.returned
        self._seconds = _MEMORY * self._seconds + done.tool_seconds
        self._usual, self._a_turn = self._tokens / self._count, self._tokens / self._turns
        if self._tokens:
            self.tools, self.returned = self._seconds / self._tokens, self._returned / self._tokens
        self._later += [(0.0, 0.0)] * (len(done.turns) - 1 - len(self._later))
        for turn in range(len(done.turns) - 1):
            count, left = self._later[turn]
            self._later[turn] = _MEMORY * count + 1.0, _MEMORY * left + len(done.turns) - 1 - turn

    def demand(self, trajectory: Running, under_way: int) -> Demand:
        """The demand of a trajectory, from its own statistics with those of one average trajectory added.

        While fewer trajectories have ended than are running, estimators have learnt from short ones, which end first.
        So the estimate has the weight of the share that has ended; for the rest, the lengths of `unknown` are used
        where they are longer.

        The last object is returned if nothing has changed, as for trajectories of one prompt that begin together.
        """
        if trajectory.history.turns:
            return self._demand(trajectory, under_way)
        mean, p90 = trajectory.left.mean, trajectory.left.p90
        few = under_way if self._ended < under_way and isfinite(p90) else 0
        inputs = mean, p90, trajectory.context, trajectory.cache == "drop", self._ended, few
        if self._first is None or self._first[0] != inputs:
            self._first = inputs, self._demand(trajectory, under_way)
        return self._first[1]

    def _demand(self, trajectory: Running, under_way: int) -> Demand:
        history = trajectory.history
        usual = self._usual
        tokens = history.generated + usual
        tools = (history.tool_seconds + usual * self.tools) / tokens if tokens else 0.0
        returned = (history.returned + usual * self.returned) / tokens if tokens else 0.0
        new = history.turns[-1].returned if history.turns else 0
        context = trajectory.context
        if trajectory.cache == "drop":
            new = context
        likely = self._lengths(trajectory, under_way)
        return Demand(likely, tools, returned, context - new, new)

    def _lengths(self, trajectory: Running, under_way: int) -> list[float]:
        """By the estimate, or by the trajectory's own tokens per turn if that is longer: estimators predict too little
        for the few very long trajectories, which end the rollout."""
        left, history = trajectory.left, trajectory.history
        if not isfinite(left.p90):
            return unknown(history.generated)
        if left.mean >= left.p90:
            return lengths(left)
        more = max(1.0, self._at_its_pace(history) / max(1.0, left.mean))
        given = _lengths(left.mean * more, left.p90 * more)
        if self._ended < under_way:
            doubt, some = 1.0 - self._ended / under_way, unknown(history.generated)
            both = zip(given, some, strict=True)
            return [each + doubt * (other - each) if other > each else each for each, other in both]
        return given

    def _at_its_pace(self, history: History) -> float:
        """The usual number of remaining turns times the mean tokens of its turns, one average turn included."""
        turns = len(history.turns)
        if not turns or not self._later:
            return 0.0
        count, left = self._later[min(turns, len(self._later)) - 1]
        return left / count * (history.generated + self._a_turn) / (turns + 1)
