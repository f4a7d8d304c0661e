"""How early a server begins to send tokens, so that on the mean they leave at their seconds."""

from __future__ import annotations

_SHARE = 0.05  # of the newest batch of tokens; chosen
_MOST = 0.02  # seconds of a single one, so that a hiccup of the machine changes little; chosen


class Lead:
    """Seconds of the machine's clock by which sending begins early: as long as it was late lately.

    Timers fire up to a millisecond late, and the tokens of a step are written one after the other, while a simulation
    has them all at one second.
    """

    def __init__(self) -> None:
        self.seconds = 0.5e-3  # half a millisecond: the mean lateness of timers

    def observe(self, wanted: float) -> None:
        """A batch of tokens would have been on time with this lead."""
        self.seconds += _SHARE * (min(max(wanted, 0.0), _MOST) - self.seconds)
