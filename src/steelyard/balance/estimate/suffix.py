"""Our estimator: suffix back-off, and a smooth surface over plain features that takes over as trajectories come in.

The back-off is right early on and where the last signals say much; the surface knows how far, how fast and with
what tools a trajectory goes, which says more once there are some dozens of trajectories to learn from. Both work on
square roots of tokens: the long ones weigh most, as they do in a rollout, without drowning all others.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from steelyard.balance.estimate.backoff import Context, SuffixTable, contexts
from steelyard.balance.estimate.features import plain_features, tool_shares
from steelyard.balance.estimate.history import History, tool_returns
from steelyard.balance.estimate.protocol import Left
from steelyard.balance.estimate.spread import Spread
from steelyard.balance.estimate.surface import Surface
from steelyard.records import Trajectory

_BATCH = 16  # samples that the surface is taught at once: one costs it hardly less than as many
_OFTEN = 1 / 8  # of all samples so far; but while it has seen few, as soon as so many are new
_FRESH = 0.05  # sum errors up again when so much of all that was learnt is new
_LATEST = 100  # trajectories; however much was learnt, never later than this
_PRIOR = 20  # trajectories that the back-off counts as beside the surface


class _Samples:
    """Tool returns that the surface is still to be taught: features, what the back-off expected, and what was left."""

    def __init__(self) -> None:
        self.plain: list[list[int]] = []
        self.tools: list[dict[str | None, int]] = []
        self.expected: list[float] = []
        self.roots: list[float] = []


class SuffixBackoff:
    """The default. Learns in one pass, and needs no trajectory again once it is learnt."""

    def __init__(self) -> None:
        self._suffixes = SuffixTable()
        self._surface = Surface()
        self._spread = Spread()
        self._learnt = 0
        self._new = 0
        self._taught = 0  # samples
        self._late = _Samples()

    def observe(self, history: History) -> Left:
        smooth = self._surface.value(plain_features(history), tool_shares(history))
        expected = self._suffixes.expect(contexts(history))
        return self._spread.left(expected + self._trust() * (smooth - expected))

    def learn(self, done: Trajectory) -> None:
        late, suffixes = self._late, self._suffixes
        chains: list[tuple[Context, ...]] = []
        for history, left in tool_returns(done):
            chain = contexts(history)
            chains.append(chain)
            late.plain.append(plain_features(history))
            late.tools.append(tool_shares(history))
            late.expected.append(suffixes.expect(chain))
            late.roots.append(sqrt(left))
        if not chains:
            return
        for chain, root in zip(chains, late.roots[-len(chains) :], strict=True):
            suffixes.add(chain, root)
        if len(late.roots) >= min(_BATCH, _OFTEN * self._taught):
            self._teach(late)
            self._late = _Samples()
        self._learnt += 1
        self._new += 1
        if self._new >= min(_LATEST, _FRESH * self._learnt):
            self._spread.fit()
            self._new = 0

    def _teach(self, late: _Samples) -> None:
        """Have the surface learn some samples; they are forecast before that."""
        waves, roots = self._surface.waves(late.plain, late.tools), np.array(late.roots)
        if self._taught:
            expected = np.array(late.expected)
            self._spread.add(expected + self._trust() * (self._surface.expect(waves) - expected), roots)
        self._surface.add(waves, roots)
        self._taught += len(roots)

    def _trust(self) -> float:
        """The surface's share in a forecast."""
        return self._learnt / (self._learnt + _PRIOR)
