"""Our estimator: suffix back-off, and a smooth surface over features that takes over as trajectories are learnt.

The back-off is better after few trajectories, and where the last signals say much. The surface knows how many turns and
tokens a trajectory has had, how fast and with what tools, which says more after some dozens of trajectories. Both
predict square roots of tokens: so long trajectories weigh most, as they do in a rollout, but not alone.
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

# Chosen by hand, as docs/estimators.md says; all but the last trade time for freshness.
_BATCH = 16  # samples that the surface learns at once: one costs hardly less than so many
_OFTEN = 1 / 8  # of all samples so far: if that is less than a batch, the surface learns as soon as so many are new
_FRESH = 0.05  # share of learnt trajectories that are new when errors are summed up again
_LATEST = 100  # trajectories after which errors are summed up again at the latest
_PRIOR = 20  # trajectories after which surface and back-off count equally


class _Samples:
    """Tool returns that the surface has still to learn: features, the back-off's prediction, and the truth."""

    def __init__(self) -> None:
        self.plain: list[list[int]] = []
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
        """Forecast some samples, record the errors, then let the surface learn them."""
        waves, roots = self._surface.waves(late.plain, late.tools), np.array(late.roots)
        if self._taught:
            expected = np.array(late.expected)
            self._spread.add(expected + self._trust() * (self._surface.expect(waves) - expected), roots)
        self._surface.add(waves, roots)
        self._taught += len(roots)

    def _trust(self) -> float:
        """The weight of the surface in a forecast."""
        return self._learnt / (self._learnt + _PRIOR)
