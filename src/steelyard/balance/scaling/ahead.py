"""Scaling with a simulation in the loop: the cheapest size that serves the expected requests within the limits.

Every interval, what came lately is taken as what will come, at a rate that is exceeded rarely enough. What is
unfinished now goes first. Sizes are tried in a simulator, each from the present replicas on, with those that start
coming up when they do. Nothing of the future is known here: lengths of unfinished answers are drawn from ended ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from math import ceil
from random import Random
from typing import NamedTuple, Protocol

from steelyard.balance.autoscale import PoolView
from steelyard.balance.scaling.forecast import MOST_ERRORS, upper_rate
from steelyard.balance.scaling.history import BUCKET, HistoryRule, SeenRequest, TrafficHistory

_MOST_EXPECTED = 20_000  # requests of a trial: some second of simulation; beyond, the horizon is cut
_NEARLY = 1.1  # sizes within this factor of the best risk are as good, where none is within the limits


class ExpectedRequest(NamedTuple):
    """One request of a trial."""

    at: float  # seconds from now
    prompt: int  # tokens, those of the answer so far included
    output: int  # tokens still to come
    given: int  # prompt tokens that are in the cache, or have been computed
    waited: float  # seconds that it has waited already
    judged: bool  # whether its latencies are still open


ExpectedRequests = Sequence[ExpectedRequest]


class PoolTrial(Protocol):
    """A simulator of the pool."""

    def risk(self, expected: ExpectedRequests, sizes: Sequence[tuple[float, int]]) -> float:
        """The share of judged requests over a limit, as a multiple of what the limit allows; the worst limit's.

        ``sizes`` are (seconds from now, replicas that serve from then on).
        """
        ...


@dataclass(frozen=True)
class AheadSettings:
    """How far ahead to look, and how careful to be."""

    quantile: float = 0.8  # chance with which arrivals stay below what is tried
    hold: float = 120.0  # seconds whose highest decision counts for scaling down
    interval: float = 30.0  # seconds between two decisions
    startup: float = 60.0  # seconds until a new replica serves
    level: float = 120.0  # seconds of arrivals that count as the present
    margin: float = 0.8  # of the misses that the limits allow


@dataclass
class Ahead(HistoryRule):
    """The fewest replicas with which the expected requests are within the limits."""

    settings: AheadSettings
    trial: PoolTrial
    least: int
    most: int
    seed: int = 0
    history: TrafficHistory = field(default_factory=TrafficHistory)
    _decided: deque[tuple[float, int]] = field(default_factory=deque)

    def wanted(self, pool: PoolView) -> int:
        expected = self._expected(pool.now)
        size = self._cheapest(pool, expected) if expected else pool.replicas
        if not self._decided:  # it begins with what is there
            self._decided.append((pool.now, pool.replicas))
        self._decided.append((pool.now, size))
        while self._decided[0][0] <= pool.now - self.settings.hold:
            self._decided.popleft()
        return size if size >= pool.replicas else min(pool.replicas, max(each for _, each in self._decided))

    # -- what will come -----------------------------------------------------------------------------------------

    def _expected(self, now: float) -> list[ExpectedRequest]:
        """What is unfinished, then what came lately, again, as fast as is rarely exceeded."""
        settings = self.settings
        ended = [each for each in self.history.between(now - 10 * settings.level, now) if each.output is not None]
        if not ended:
            return []
        draw = _Draw(ended, Random(f"{self.seed} {now}"))
        under_way = [self._continued(each, now, draw) for each in self.history.open.values()]
        window = min(settings.level, now)
        recent = self.history.between(now - window, now)
        span = settings.startup + max(settings.interval, 2 * BUCKET)
        level, horizon = ceil(window / BUCKET), ceil(span / BUCKET)
        counts = self.history.counts(now, level + horizon + MOST_ERRORS)
        rate = upper_rate(counts, level, horizon, settings.quantile, BUCKET)
        return under_way + self._repeated(recent, now - window, window, rate, span, draw)

    def _continued(self, seen: SeenRequest, now: float, draw: _Draw) -> ExpectedRequest:
        done = self.history.produced(seen, now)
        output = draw.output_beyond(done)
        if seen.first is None:
            return ExpectedRequest(0.0, seen.prompt, output, draw.cached(seen.prompt), now - seen.at, True)
        prompt = seen.prompt + min(done, output - 1)
        return ExpectedRequest(0.0, prompt, max(1, output - done), prompt - 1, 0.0, False)

    def _repeated(
        self, recent: list[SeenRequest], start: float, window: float, rate: float, span: float, draw: _Draw
    ) -> list[ExpectedRequest]:
        """The recent requests over and over, with their gaps, quickened or slowed to a rate."""
        if not recent or rate <= 0:
            return []
        pace = rate * window / len(recent)
        lengths = [self._length(each, draw) for each in recent]
        found: list[ExpectedRequest] = []
        for turn in range(ceil(span * pace / window)):
            for each, (prompt, output, cached) in zip(recent, lengths, strict=True):
                at = (turn * window + each.at - start) / pace
                if at >= span or len(found) >= _MOST_EXPECTED:
                    return found
                found.append(ExpectedRequest(at, prompt, output, cached, 0.0, True))
        return found

    def _length(self, seen: SeenRequest, draw: _Draw) -> tuple[int, int, int]:
        if seen.output is not None:
            return seen.prompt, seen.output, seen.cached
        return seen.prompt, draw.output_beyond(0), draw.cached(seen.prompt)

    # -- what to do ---------------------------------------------------------------------------------------------

    def _cheapest(self, pool: PoolView, expected: list[ExpectedRequest]) -> int:
        """The fewest replicas within the limits; where none is, the fewest of those that are nearly as good as any."""
        risk = cache(lambda size: self.trial.risk(self._open_to(expected, size, pool), self._sizes(pool, size)))
        allowed = self.settings.margin
        here = min(max(pool.replicas, self.least), self.most)
        if risk(here) > allowed:
            below, step = here, 1
            while (size := min(here + step, self.most)) > below and risk(size) > allowed:
                below, step = size, 2 * step
            if size == below:  # not even the most
                allowed, below = max(allowed, _NEARLY * risk(self.most)), here - 1
                size = self.most
        else:
            size, step = here, 1
            while (below := max(here - step, self.least - 1)) >= self.least and risk(below) <= allowed:
                size, step = below, 2 * step
        while size - below > 1:
            middle = (size + below) // 2
            below, size = (below, middle) if risk(middle) <= allowed else (middle, size)
        return size

    def _open_to(self, expected: list[ExpectedRequest], size: int, pool: PoolView) -> list[ExpectedRequest]:
        """Requests, of which those that come before a new replica can serve are not judged if more are tried."""
        if size <= pool.replicas or expected[-1].at < self.settings.startup:
            return expected
        return [each._replace(judged=each.judged and each.at >= self.settings.startup) for each in expected]

    def _sizes(self, pool: PoolView, size: int) -> list[tuple[float, int]]:
        """Replicas over time if the pool should have this many: those that start go first, as in the pool."""
        coming = [*pool.starting, *[self.settings.startup] * (size - pool.replicas)][: max(0, size - pool.up)]
        found = [(0.0, min(size, pool.up))]
        for after in coming:
            found.append((after, found[-1][1] + 1))
        return found


class _Draw:
    """Draws what is not known of a request from those that have ended."""

    def __init__(self, ended: list[SeenRequest], random: Random) -> None:
        self._outputs = sorted(each.output for each in ended if each.output is not None)
        prompts = sum(each.prompt for each in ended)
        self._hits = sum(each.cached for each in ended) / prompts
        self._random = random

    def output_beyond(self, tokens: int) -> int:
        """An output of more than so many tokens; just one more where none was as long."""
        longer = [each for each in self._outputs if each > tokens] if tokens else self._outputs
        return self._random.choice(longer) if longer else tokens + 1

    def cached(self, prompt: int) -> int:
        """Prompt tokens that are in the cache, in the mean."""
        return int(self._hits * prompt)
