"""How fast a run goes at present."""

from __future__ import annotations

from collections import deque

from steelyard.balance.events import Ended, Returned
from steelyard.balance.kinds import Event

_WINDOW_SECONDS = 10.0  # of the clock, over which tokens are counted; chosen


class TokenRate:
    """Tokens of turns that are over, for the last seconds. ``speed`` seconds of the run pass in one of the clock."""

    def __init__(self, begun: float, speed: float) -> None:
        self._begun, self._window = begun, _WINDOW_SECONDS * speed
        self._turns: deque[tuple[float, int]] = deque()  # second of the run, tokens

    def wrote(self, seconds: float) -> None:
        """Events were written to the log."""

    def decided(self, event: Event) -> None:
        """An event was decided."""
        if isinstance(event, Returned | Ended):
            self._turns.append((event.at, event.turn.generated))
            self._forget(event.at)

    def tokens_per_second(self, now: float) -> float:
        """Tokens in a second of the run."""
        self._forget(now)
        seconds = min(self._window, now - self._begun)
        return sum(tokens for _, tokens in self._turns) / seconds if seconds > 0 else 0.0

    def _forget(self, now: float) -> None:
        while self._turns and self._turns[0][0] < now - self._window:
            self._turns.popleft()
