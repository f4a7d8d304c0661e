"""Transfers of trajectories' KV caches: between replicas, from stopped engines, or back from host memory."""

from __future__ import annotations

from steelyard.balance.commands import Place
from steelyard.engine import Request
from steelyard.hardware import CONNECTOR_START_SECONDS
from steelyard.posttrain.attempt import Attempt
from steelyard.posttrain.replicas import MOVED, SUBMIT, Replicas


class Moves:
    """When a trajectory's cache arrives at its next replica, and how much was sent between replicas."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self.count = 0
        self.tokens = 0
        self.nodes: dict[int, int] = {}  # of replicas that take caches over from stopped engines

    def send(self, attempt: Attempt, source: int, target: int, at: float) -> None:
        """Send a trajectory's whole cache to another replica, while it is not generating."""
        attempt.cache, attempt.sent = "keep", attempt.context
        attempt.arrives = at + self._seconds(source, target, attempt.sent)

    def bring(self, attempt: Attempt, command: Place, at: float) -> tuple[float, int]:
        """When a placed turn can be submitted, and the kind of that event."""
        r = attempt.request
        assert r is not None
        source, target = command.source, command.replica
        ready, event = at, SUBMIT
        if attempt.kept:
            ready = self._restore(attempt, r, target, at)
        elif source == target and attempt.cache == "offload":
            ready = at + self._replicas.kind(target).fetch_seconds(r.prompt)
            r.given = r.prompt
        elif source == target and attempt.sent:
            ready = max(at, attempt.arrives)
            r.given = attempt.sent
        elif source not in (None, target) and command.cache == "keep" and attempt.cache != "drop":
            assert source is not None
            ready, event = at + self._seconds(source, target, r.prompt), MOVED
            r.given = r.prompt
        attempt.cache, attempt.sent, attempt.kept = "keep", 0, 0
        return ready, event

    def _restore(self, attempt: Attempt, r: Request, target: int, at: float) -> float:
        """When the cache of a trajectory whose engine has stopped is there, or now if computing it again is faster."""
        kind, tokens, stopped = self._replicas.kind(target), attempt.kept, attempt.kept_by
        assert stopped is not None, "an engine kept it"
        again = at + tokens * kind.prompt_seconds()
        if attempt.cache == "offload":
            arrives = at + kind.fetch_seconds(tokens)
        else:
            each = stopped.inside if self.nodes.get(target) == stopped.node else stopped.outside
            arrives = max(at, stopped.free) + CONNECTOR_START_SECONDS + tokens * each
        if again <= arrives:
            return at
        if attempt.cache != "offload":
            stopped.free = arrives
            self.count += 1
            self.tokens += tokens
        r.given = tokens
        return arrives

    def _seconds(self, source: int, target: int, tokens: int) -> float:
        """Seconds of a move, which is counted."""
        self.count += 1
        self.tokens += tokens
        return self._replicas.move_seconds(source, target, tokens)
