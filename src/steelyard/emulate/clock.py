"""Engine time that follows the time of day, faster or slower."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """Engine seconds since the start. ``speed`` of them pass in a second of the machine's clock."""

    def __init__(self, speed: float = 1.0, machine: Callable[[], float] = time.monotonic) -> None:
        self._machine = machine
        self._since = machine()
        self._before = 0.0  # engine seconds up to then
        self.speed = speed

    def now(self) -> float:
        """Engine seconds."""
        return self.at(self._machine())

    def at(self, second: float) -> float:
        """Engine seconds at a second of the machine's clock."""
        return self._before + (second - self._since) * self.speed

    def wait(self, until: float) -> float:
        """Seconds of the machine's clock until an engine second; 0 if it is over."""
        return max(0.0, until - self.now()) / self.speed

    def set_speed(self, speed: float) -> None:
        """Go on at another speed from now on."""
        self._before, self._since = self.now(), self._machine()
        self.speed = speed
