"""What a gateway has seen of a pool's requests so far."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from steelyard.balance.autoscale import WatchingRule

_MOST_KEPT = 200_000  # ended requests that are kept one by one; older ones are only counted
BUCKET = 10.0  # seconds in which arrivals are counted; chosen: a tenth of a usual start-up


@dataclass
class SeenRequest:
    """A request, as far as it is known by now."""

    at: float
    prompt: int
    first: float | None = None  # when its first token came
    end: float | None = None  # when it ended
    output: int | None = None  # tokens; known at its end
    cached: int = 0  # prompt tokens from the cache; known at its end
    gone: bool = False  # it ended without its answer


class TrafficHistory:
    """Requests in order of arrival, arrivals by bucket, and what is unfinished."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}  # arrivals, by bucket since second 0
        self.open: dict[int, SeenRequest] = {}  # by request: unfinished ones
        self.speed = 0.0  # recent mean seconds per output token; 0: unknown
        self._all: list[SeenRequest] = []
        self._times: list[float] = []

    def arrived(self, request: int, at: float, prompt: int) -> None:
        """A request has come; one that starts over is known already."""
        if request in self.open:
            return
        seen = SeenRequest(at, prompt)
        self.open[request] = seen
        bucket = int(at / BUCKET)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self._all.append(seen)
        self._times.append(at)
        if len(self._all) > 2 * _MOST_KEPT:
            del self._all[:_MOST_KEPT], self._times[:_MOST_KEPT]

    def first_token(self, request: int, at: float) -> None:
        """A request has got its first token."""
        if request in self.open:
            self.open[request].first = at

    def ended(self, request: int, at: float, output: int, cached: int, tpot: float | None) -> None:
        """A request has ended."""
        seen = self.open.pop(request, None)
        if seen is None:
            return
        seen.end, seen.output, seen.cached = at, output, cached
        if tpot is not None:
            self.speed = tpot if not self.speed else self.speed + 0.05 * (tpot - self.speed)

    def gave_up(self, request: int) -> None:
        """A request has ended without its answer."""
        seen = self.open.pop(request, None)
        if seen is not None:
            seen.gone = True

    def between(self, start: float, end: float) -> list[SeenRequest]:
        """Requests that came from ``start`` on and before ``end``, but for those that gave up."""
        rows = range(bisect_left(self._times, start), bisect_left(self._times, end))
        return [self._all[row] for row in rows if not self._all[row].gone]

    def counts(self, now: float, most: int) -> list[int]:
        """Arrivals in each of the last buckets that are over."""
        end = int(now / BUCKET)
        return [self._counts.get(bucket, 0) for bucket in range(max(0, end - most), end)]

    def produced(self, seen: SeenRequest, now: float) -> int:
        """About how many tokens an unfinished request has got so far."""
        if seen.first is None or not self.speed:
            return 0
        return 1 + int((now - seen.first) / self.speed)


class HistoryRule(WatchingRule):
    """A rule that keeps a history of what it is told."""

    history: TrafficHistory

    def arrived(self, request: int, at: float, prompt: int) -> None:
        self.history.arrived(request, at, prompt)

    def first_token(self, request: int, at: float, seconds: float) -> None:
        self.history.first_token(request, at)

    def ended(self, request: int, at: float, output: int, cached: int, tpot: float | None) -> None:
        self.history.ended(request, at, output, cached, tpot)

    def gave_up(self, request: int, at: float) -> None:
        self.history.gave_up(request)
