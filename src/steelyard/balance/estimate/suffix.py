"""Our estimator: suffix back-off, and a smooth surface over plain features that takes over as trajectories come in.

The back-off is right early on and where the last signals say much; the surface knows how far, how fast and with
what tools a trajectory goes, which says more once there are some dozens of trajectories to learn from. Both work on
square roots of tokens: the long ones weigh most, as they do in a rollout, without drowning all others.
"""

from __future__ import annotations

import numpy as np

from steelyard.balance.estimate.backoff import Context, SuffixTable, contexts
from steelyard.balance.estimate.features import plain_features, tool_shares
from steelyard.balance.estimate.history import History, tool_returns
from steelyard.balance.estimate.protocol import Left
from steelyard.balance.estimate.spread import Spread
from steelyard.balance.estimate.surface import Array, Surface
from steelyard.workload.trajectories import Trajectory

_BATCH = 16  # samples that the surface is taught at once: one costs it hardly less than as many
_OFTEN = 1 / 8  # of all samples so far; but while it has seen few, as soon as so many are new
_FRESH = 0.05  # sum errors up again when so much of all that was learnt is new
_LATEST = 100  # trajectories; however much was learnt, never later than this
_PRIOR = 20  # trajectories that the back-off counts as beside the surface


class SuffixBackoff:
    """The default. Learns in one pass, and needs no trajectory again once it is learnt."""

    def __init__(self) -> None:
        self._suffixes = SuffixTable()
        self._surface = Surface()
        self._spread = Spread()
        self._learnt = 0
        self._new = 0
        self._taught = 0  # samples
        self._untaught: list[tuple[Array, Array]] = []  # waves and values that the surface is still to be taught

    def observe(self, history: History) -> Left:
        smooth = self._surface.value(plain_features(history), tool_shares(history))
        expected = self._suffixes.expect(contexts(history))
        return self._spread.left(expected + self._trust() * (smooth - expected))

    def learn(self, done: Trajectory) -> None:
        plain: list[list[float]] = []
        tools: list[dict[str | None, float]] = []
        chains: list[tuple[Context, ...]] = []
        left: list[int] = []
        for history, remaining in tool_returns(done):
            plain.append(plain_features(history))
            tools.append(tool_shares(history))
            chains.append(contexts(history))
            left.append(remaining)
        if not left:
            return
        waves = self._surface.waves(plain, tools)
        roots = np.sqrt(np.array(left, dtype=np.float64))
        if self._learnt:
            suffixes = np.array([self._suffixes.expect(chain) for chain in chains])
            self._spread.add(suffixes + self._trust() * (self._surface.expect(waves) - suffixes), roots)
        self._teach(waves, roots)
        for chain, root in zip(chains, roots.tolist(), strict=True):
            self._suffixes.add(chain, root)
        self._learnt += 1
        self._new += 1
        if self._new >= min(_LATEST, _FRESH * self._learnt):
            self._spread.fit()
            self._new = 0

    def _teach(self, waves: Array, roots: Array) -> None:
        """Have the surface learn some samples, once there are enough."""
        self._untaught.append((waves, roots))
        count = sum(len(values) for _, values in self._untaught)
        if count >= min(_BATCH, _OFTEN * self._taught):
            some, values = zip(*self._untaught, strict=True)
            self._surface.add(np.concatenate(some, axis=1), np.concatenate(values))
            self._untaught.clear()
            self._taught += count

    def _trust(self) -> float:
        """The surface's share in a forecast."""
        return self._learnt / (self._learnt + _PRIOR)
