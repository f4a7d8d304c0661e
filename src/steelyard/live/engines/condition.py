"""How an engine is, judged from looks at it. Pure: time comes with the looks.

**Down.** After so many failed looks in a row, or as soon as its process has ended. One good look brings it back.

**Slow.** Its pace is the time a request waits for its next token: requests running, times seconds, divided by the
tokens that came. This is compared with the median of its peers. A step with twice the requests takes at most twice as
long, so only peers with at least half as many requests running count, and a factor of 2 can be load alone. Above 3,
in several looks in a row, something else is wrong. An engine that has requests and makes no token at all while a peer
does is infinitely slow, but not before the longest prompt would have been read. Without a peer to compare with, an
engine is only judged by that, and later.

**Quarantined.** When somebody says so, until somebody says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from steelyard.live.engines.api import EngineLoad

_FEWEST_SHARE = 0.5  # of the requests that an engine runs, for a peer to be compared with it


@dataclass(frozen=True)
class Up:
    """It works."""


@dataclass(frozen=True)
class Down:
    """It does not answer, or its process has ended."""

    why: str


@dataclass(frozen=True)
class Slow:
    """It works, so many times slower than its peers; infinitely if it makes no tokens at all."""

    factor: float


@dataclass(frozen=True)
class Quarantined:
    """It must not be used."""

    reason: str


Condition = Up | Down | Slow | Quarantined


@dataclass(frozen=True)
class Look:
    """One look at an engine."""

    at: float  # seconds of any steady clock
    healthy: bool
    load: EngineLoad | None = None
    ended: str = ""  # how its process has ended
    paused: bool = False  # so that no tokens are expected


@dataclass(frozen=True)
class Pace:
    """Seconds a request waits for a token, and how many requests were running."""

    seconds: float
    running: float


@dataclass(frozen=True)
class WatchRules:
    """When an engine is down or slow. All are chosen."""

    failures: int = 3  # failed looks in a row
    slow_factor: float = 3.0  # see the module's text
    slow_looks: int = 3  # in a row, also to be no longer slow
    stall_seconds: float = 30.0  # without a token; about as long as a prompt of 128k tokens takes
    alone_seconds: float = 120.0  # the same, if no peer makes tokens either


class EngineJudge:
    """Judges one engine, look by look."""

    def __init__(self, rules: WatchRules | None = None) -> None:
        self.pace: Pace | None = None  # in the newest window that had tokens
        self.quarantined = ""  # the reason
        self._rules = rules or WatchRules()
        self._failed = 0
        self._base: Look | None = None  # where the present window began
        self._streak = 0  # looks in a row that speak for a change between slow and not slow
        self._slow: float | None = None  # the factor

    def see(self, look: Look, peers: Iterable[Pace]) -> Condition:
        """The engine's condition after one more look at it."""
        self._failed = 0 if look.healthy else self._failed + 1
        if look.ended:
            self._forget()
            return Down(look.ended)
        if self._failed >= self._rules.failures:
            self._forget()
            return Down(f"{self._rules.failures} looks in a row failed")
        if look.healthy:
            self._time(look, list(peers))
        if self.quarantined:
            return Quarantined(self.quarantined)
        return Up() if self._slow is None else Slow(self._slow)

    def _forget(self) -> None:
        """Nothing that was measured holds for an engine that comes back."""
        self.pace = self._base = self._slow = None
        self._streak = 0

    def _time(self, look: Look, peers: list[Pace]) -> None:
        base = self._base
        if base is None or look.paused or base.paused or _restarted(base, look):
            self._base = look
            return
        pace, seconds = pace_between(base, look), look.at - base.at
        stalled = pace is not None and math.isinf(pace.seconds)
        if stalled and seconds < self._rules.stall_seconds:
            return
        if not stalled:  # else the window grows until a token comes
            self._base = look
        self.pace = pace
        factor = None if pace is None else slowness(pace, peers)
        if stalled and factor is None and seconds >= self._rules.alone_seconds:
            factor = math.inf
        if factor is not None:
            self._judge(factor)

    def _judge(self, factor: float) -> None:
        slow = factor > self._rules.slow_factor
        if slow == (self._slow is not None):
            self._streak = 0
            self._slow = factor if slow else None
            return
        self._streak += 1
        if self._streak >= self._rules.slow_looks or math.isinf(factor):
            self._streak = 0
            self._slow = factor if slow else None


def pace_between(first: Look, last: Look) -> Pace | None:
    """The pace between two looks; None if nothing was running, or the engine does not tell."""
    if first.load is None or last.load is None or last.at <= first.at:
        return None
    counts = first.load.running, last.load.running, first.load.generated, last.load.generated
    if None in counts:
        return None
    before, after, generated, until = (float(each or 0.0) for each in counts)
    running = (before + after) / 2
    if min(before, after) <= 0 or until < generated:
        return None
    tokens = until - generated
    return Pace(running * (last.at - first.at) / tokens if tokens > 0 else math.inf, running)


def slowness(own: Pace, peers: Iterable[Pace]) -> float | None:
    """How many times slower an engine is than its peers; None if none of them has a load to compare with."""
    paces = [
        each.seconds for each in peers if each.running >= own.running * _FEWEST_SHARE and 0 < each.seconds < math.inf
    ]
    return own.seconds / median(paces) if paces else None


def _restarted(first: Look, last: Look) -> bool:
    """Whether its counters began again."""
    if first.load is None or last.load is None:
        return True
    before, after = first.load.generated, last.load.generated
    return before is None or after is None or after < before
