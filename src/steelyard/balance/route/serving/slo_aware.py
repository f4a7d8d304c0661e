"""A router that keeps a limit on the time to first token, by the times it has seen."""

from __future__ import annotations

import numpy as np

from steelyard.balance.route.protocol import BaseRouter, RoutedRequest
from steelyard.balance.route.serving.settings import RouterSettings

_GONE = 1 << 40  # load of a replica that is down: more than any other can have


class SloAware(BaseRouter):
    """The busiest replica that is predicted to give the first token in time, which leaves room on the others.

    Seconds are predicted by two loads of a replica, the new request included in both: prompt tokens without a first
    token, and unfinished requests. The prediction is fitted to the times seen so far, later ones counting more. If no
    replica would be in time, or none has been seen yet, the least busy one is chosen. A cached prefix shows as a
    faster replica.
    """

    looks_at_load = True
    awaits_first_tokens = True

    def __init__(self, replicas: int, settings: RouterSettings) -> None:
        super().__init__()
        self._ttft = settings.ttft
        self._load = np.zeros((2, replicas))  # prompt tokens without a first token, unfinished requests
        self._predicted = LoadFit()
        self._joined: dict[int | str, tuple[float, float]] = {}  # loads by request without first token

    def available(self, replica: int, up: bool) -> None:
        super().available(replica, up)
        self._load[:, replica] += -_GONE if up else _GONE

    def choose(self, request: RoutedRequest, home: int | None = None) -> int:
        by_token, by_request = self._predicted.seconds
        tokens, requests = self._load[0] + request.prompt, self._load[1] + 1
        seconds = by_token * tokens + by_request * requests
        in_time = seconds <= self._ttft
        if not self._predicted.seen:
            replica = int(np.lexsort((requests, tokens))[0])
        elif in_time.any():
            replica = int(np.where(in_time, seconds, -1.0).argmax())
        else:
            replica = int(seconds.argmin())
        self._joined[request.id] = float(tokens[replica]), float(requests[replica])
        self._load[0, replica] += request.prompt
        self._load[1, replica] += 1
        return replica

    def first_token(self, request: RoutedRequest, replica: int, at: float) -> None:
        joined = self._joined.pop(request.id, None)
        if joined is not None:
            self._load[0, replica] -= request.prompt
            self._predicted.learn(*joined, at - request.at)

    def ended(self, request: RoutedRequest, replica: int) -> None:
        if self._joined.pop(request.id, None) is not None:
            self._load[0, replica] -= request.prompt
        self._load[1, replica] -= 1


class LoadFit:
    """Seconds by two loads, fitted by least squares to what was seen. Older observations count less."""

    FADE = 0.98  # what remains of an observation's weight when the next one comes

    def __init__(self) -> None:
        self.seen = False
        self.seconds = 0.0, 0.0  # per unit of each load
        self._sums: tuple[float, ...] = (0.0,) * 5

    def learn(self, x: float, y: float, seconds: float) -> None:
        """Loads x and y took so many seconds."""
        products = x * x, x * y, y * y, x * seconds, y * seconds
        self._sums = tuple(self.FADE * old + new for old, new in zip(self._sums, products, strict=True))
        xx, xy, yy, xs, ys = self._sums
        determinant = xx * yy - xy * xy
        self.seen = True
        self.seconds = xs / xx, 0.0  # both loads were only seen in one proportion
        if determinant > 1e-9 * xx * yy:
            by_x, by_y = (xs * yy - ys * xy) / determinant, (ys * xx - xs * xy) / determinant
            if by_x < 0:
                self.seconds = 0.0, ys / yy
            elif by_y > 0:
                self.seconds = by_x, by_y
