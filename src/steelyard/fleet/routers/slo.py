"""A router that keeps a promise on first tokens, by what it has seen of them."""

from __future__ import annotations

import numpy as np

from steelyard.fleet.routers.protocol import GONE, Asked, Heedless, RouterSettings


class SloAware(Heedless):
    """The busiest replica that is still foretold to give the first token in time, so that others keep their room.

    The forecast is what was seen so far, later counting more: seconds by prompt tokens without a first token on the
    replica and by its unfinished requests, the new one among both. Where none would be in time, and as long as nothing
    has been seen, the least busy one. Only the first token is promised; cached prefixes show as a faster replica.
    """

    looks_at_load = True
    awaits_first_tokens = True

    def __init__(self, replicas: int, settings: RouterSettings) -> None:
        self._ttft = settings.ttft
        self._load = np.zeros((2, replicas))  # prompt tokens without a first token, unfinished requests
        self._forecast = Forecast()
        self._before: dict[int, tuple[float, float]] = {}  # by request without a first token: the load it joined

    def available(self, replica: int, up: bool) -> None:
        super().available(replica, up)
        self._load[:, replica] += -GONE if up else GONE

    def choose(self, asked: Asked) -> int:
        by_token, by_request = self._forecast.seconds
        tokens, requests = self._load[0] + asked.prompt, self._load[1] + 1
        seconds = by_token * tokens + by_request * requests
        in_time = seconds <= self._ttft
        if not self._forecast.seen:
            replica = int(np.lexsort((requests, tokens))[0])
        elif in_time.any():
            replica = int(np.where(in_time, seconds, -1.0).argmax())
        else:
            replica = int(seconds.argmin())
        self._before[asked.index] = float(tokens[replica]), float(requests[replica])
        self._load[0, replica] += asked.prompt
        self._load[1, replica] += 1
        return replica

    def first_token(self, asked: Asked, replica: int, at: float) -> None:
        joined = self._before.pop(asked.index, None)
        if joined is not None:
            self._load[0, replica] -= asked.prompt
            self._forecast.learn(*joined, at - asked.at)

    def ended(self, asked: Asked, replica: int) -> None:
        if self._before.pop(asked.index, None) is not None:
            self._load[0, replica] -= asked.prompt
        self._load[1, replica] -= 1


class Forecast:
    """Seconds by two loads, fitted to what was seen by least squares; what lies back fades."""

    FADE = 0.98  # of its weight is left to an observation when the next one comes

    def __init__(self) -> None:
        self.seen = False
        self.seconds = 0.0, 0.0  # for one of each load
        self._sums: tuple[float, ...] = (0.0,) * 5

    def learn(self, x: float, y: float, seconds: float) -> None:
        """Loads x and y took so many seconds."""
        products = x * x, x * y, y * y, x * seconds, y * seconds
        self._sums = tuple(self.FADE * old + new for old, new in zip(self._sums, products, strict=True))
        xx, xy, yy, xs, ys = self._sums
        determinant = xx * yy - xy * xy
        self.seen = True
        self.seconds = xs / xx, 0.0  # what is seen of one load alone, or of both in one proportion
        if determinant > 1e-9 * xx * yy:
            by_x, by_y = (xs * yy - ys * xy) / determinant, (ys * xx - xs * xy) / determinant
            if by_x < 0:
                self.seconds = 0.0, ys / yy
            elif by_y > 0:
                self.seconds = by_x, by_y
