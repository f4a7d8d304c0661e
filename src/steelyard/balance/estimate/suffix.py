"""Our estimator: suffix back-off, and a smooth surface over features that takes over as trajectories are learnt.

The back-off is better after few trajectories, and where the last signals are informative. The surface uses turns,
tokens, speed and tools so far, and is better after some dozens of trajectories. Both predict square roots of tokens, so
that long trajectories weigh most, as they do in a rollout, without dominating.
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
from steelyard.records import Floats, Trajectory

# Chosen by hand (docs/estimators.md); all but the last trade CPU time for freshness.
_BATCH = 16  # samples that the surface learns at once: a single one costs hardly less
_OFTEN = 1 / 8  # of all samples so far: the surface learns after this share of new ones, if that is less than a batch
_FRESH = 0.05  # share of new trajectories after which errors are fitted again
_LATEST = 100  # most new trajectories before errors are fitted again
_PRIOR = 20  # trajectories after which surface and back-off count equally


class _Samples:
    """Tool returns that the surface has not learnt yet: features, the back-off's prediction, and the truth."""

    def __init__(self) -> None:
        self.plain: list[Floats] = []
        self.tools: list[dict[str | None, int]] = []
        self.expected: list[float] = []
        self.roots: list[float] = []


class SuffixBackoff:
    """The default. Learns in one pass and keeps no trajectory."""

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
        """Predict some samples, record the errors, then train the surface on them."""
        waves, roots = self._surface.waves(late.plain, late.tools), np.array(late.roots)
        if self._taught:
            expected = np.array(late.expected)
            self._spread.add(expected + self._trust() * (self._surface.expect(waves) - expected), roots)
        self._surface.add(waves, roots)
        self._taught += len(roots)

    def _trust(self) -> float:
        """The weight of the surface in a forecast."""
        return self._learnt / (self._learnt + _PRIOR)
