"""Which experts tokens choose, where these are placed, and the load of the busiest GPU.

Every layer waits for its slowest expert rank, so the *largest* load of any rank counts. It is above the mean even with
even routing, by chance. Figures are expected values.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import UserError

Floats = NDArray[np.float64]

_GOLDEN = (5**0.5 - 1) / 2  # multiples of it scatter evenly
_EXACT_UP_TO = 64  # numbers of tokens computed one by one; beyond, _PER_DOUBLING for each doubling. All chosen
_PER_DOUBLING = 8
_QUADRATURE = 96  # points of a numerical integral
_REACH = 6.0  # standard deviations on either side


@dataclass(frozen=True)
class Routing:
    """How often each expert is chosen: evenly, by a Zipf law with ``exponent``, or in proportion to ``loads``."""

    exponent: float = 0.0
    loads: tuple[float, ...] = ()

    @property
    def even(self) -> bool:
        return not self.exponent and not self.loads

    def shares(self, experts: int) -> Floats:
        """Each expert's share of all choices. The popular experts of a Zipf law have scattered numbers."""
        if self.loads:
            if len(self.loads) != experts or min(self.loads) < 0 or not sum(self.loads) > 0:
                raise UserError(f"expert loads must be {experts} numbers of at least 0 (found {len(self.loads)})")
            return np.array(self.loads) / sum(self.loads)
        scattered = np.argsort(np.arange(1, experts + 1) * _GOLDEN % 1.0, kind="stable")
        weights = np.empty(experts)
        weights[scattered] = np.arange(1, experts + 1, dtype=np.float64) ** -self.exponent
        found: Floats = weights / weights.sum()
        return found

    def chances(self, experts: int, top_k: int) -> Floats:
        """The chance that a token chooses each expert: those of all experts sum to ``top_k``, and none exceeds 1."""
        if self.even:
            return np.full(experts, top_k / experts)
        shares = self.shares(experts)
        if np.count_nonzero(shares) < top_k:
            raise UserError(f"expert loads: a token chooses {top_k} experts, but fewer are ever chosen")
        low, high = 0.0, 1.0
        while -np.expm1(-high * shares).sum() < top_k * (1 - 1e-9) and high < 1e12:
            high *= 2.0
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if -np.expm1(-middle * shares).sum() < top_k else (low, middle)
        return -np.expm1(-high * shares)


def place_experts(shares: Floats, ranks: int, redundant: int = 0) -> tuple[tuple[tuple[int, float], ...], ...]:
    """The experts on each rank, each with the share of its tokens that this copy gets.

    As in vLLM: consecutive experts in equal numbers without redundant ones. With redundant copies, each further copy is
    of the expert with most tokens per copy, and copies are placed, heaviest first, on the least loaded rank with room.
    """
    experts = len(shares)
    if not redundant:
        even, left = divmod(experts, ranks)
        ends = np.cumsum([even + (rank < left) for rank in range(ranks)]).tolist()
        return tuple(tuple((i, 1.0) for i in range(a, b)) for a, b in zip([0, *ends], ends, strict=False))
    copies = [1] * experts
    heaviest = [(-share, i) for i, share in enumerate(shares.tolist())]
    heapify(heaviest)
    for _ in range(redundant):
        _, i = heappop(heaviest)
        copies[i] += 1
        heappush(heaviest, (-float(shares[i]) / copies[i], i))
    room = -(-(experts + redundant) // ranks)
    by_load = sorted(((-float(shares[i]) / n, i) for i, n in enumerate(copies) for _ in range(n)))
    held: list[list[tuple[int, float]]] = [[] for _ in range(ranks)]
    least = [(0.0, rank) for rank in range(ranks)]
    for load, i in by_load:
        total, rank = heappop(least)
        held[rank].append((i, 1.0 / copies[i]))
        if len(held[rank]) < room:
            heappush(least, (total - load, rank))
    return tuple(tuple(sorted(own)) for own in held)


@dataclass(frozen=True)
class RankLoad:
    """The probability that a token goes to each expert of each rank, and the resulting loads."""

    chances: tuple[tuple[float, ...], ...]

    def visits(self, tokens: Floats) -> Floats:
        """(token, expert) pairs on the rank that has most of them."""
        means = np.array([sum(own) for own in self.chances])
        if len(means) == 1:
            return tokens * float(means[0])
        spread = np.array([sum(chance * (1.0 - chance) for chance in own) for own in self.chances])
        at = _grid(tokens)
        most = _expected_maximum(np.outer(at, means), np.sqrt(np.outer(at, spread)))
        return _between(tokens, at, np.clip(most, np.minimum(at, 1.0), at * means.sum()))

    def touched(self, tokens: Floats) -> Floats:
        """Different experts that any token went to, on the rank that has most of them."""
        at = _grid(tokens)
        means, spreads = np.empty((2, len(at), len(self.chances)))
        for rank, own in enumerate(self.chances):
            chance, count = np.unique(np.array(own), return_counts=True)
            missed = (1.0 - chance) ** at[:, None]
            means[:, rank] = ((1.0 - missed) * count).sum(axis=1)
            spreads[:, rank] = np.sqrt(((1.0 - missed) * missed * count).sum(axis=1))
        most = means[:, 0] if len(self.chances) == 1 else _expected_maximum(means, spreads)
        return _between(tokens, at, np.clip(most, np.minimum(at, 1.0), max(len(own) for own in self.chances)))


def rank_load(routing: Routing, experts: int, top_k: int, ranks: int, redundant: int = 0) -> RankLoad | None:
    """The loads of a layer's expert ranks; None for one rank with even routing, which needs no table."""
    if ranks == 1 and routing.even:
        return None
    chances = routing.chances(experts, top_k)
    placed = place_experts(chances / chances.sum(), ranks, redundant)
    return RankLoad(tuple(tuple(float(chances[i]) * part for i, part in own) for own in placed))


def _grid(tokens: Floats) -> Floats:
    """Numbers of tokens to compute: each of the first, then some for each doubling."""
    most = max(1.0, float(tokens.max(initial=1.0)))
    first = np.arange(0.0, min(most, _EXACT_UP_TO) + 1)
    if most <= _EXACT_UP_TO:
        return first
    steps = int(np.ceil(np.log2(most / _EXACT_UP_TO) * _PER_DOUBLING)) + 1
    return np.concatenate([first, np.geomspace(_EXACT_UP_TO, most, steps)[1:]])


def _between(tokens: Floats, at: Floats, found: Floats) -> Floats:
    rising: Floats = np.maximum.accumulate(found)
    return np.interp(tokens, at, rising)


def _expected_maximum(means: Floats, deviations: Floats) -> Floats:
    """The expected maximum of independent normal variables, row by row."""
    reach = _REACH * deviations.max(axis=1)
    low, high = means.max(axis=1) - reach, means.max(axis=1) + reach
    x = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, _QUADRATURE)
    below = np.ones_like(x)
    columns, times = np.unique(np.stack([means, deviations]), axis=2, return_counts=True)
    for i, count in enumerate(times.tolist()):
        mean, deviation = columns[0, :, i : i + 1], np.maximum(columns[1, :, i : i + 1], 1e-12)
        below *= _normal((x - mean) / deviation) ** count
    found: Floats = low + np.trapezoid(1.0 - below, x, axis=1)
    return found


def _normal(z: Floats) -> Floats:
    """The normal distribution function, by Abramowitz and Stegun's formula 26.2.17 (to 1e-7)."""
    t = 1.0 / (1.0 + 0.2316419 * np.abs(z))
    series = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    upper = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi) * series
    found: Floats = np.where(z >= 0, 1.0 - upper, upper)
    return found
