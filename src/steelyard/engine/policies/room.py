"""What one pass over the waiting requests may still admit."""

from __future__ import annotations

from steelyard.engine.policies.slots import TokenPool


class Room:
    """What one pass may still admit: tokens of this step, and slots now and until everybody has ended."""

    __slots__ = ("chunk", "input", "now", "pool", "whole")

    def __init__(self, pool: TokenPool, prompts: int, chunk: int | None, mixed: int, expected: float) -> None:
        self.pool = pool
        self.input = prompts - mixed
        self.chunk = None if chunk is None else chunk - mixed
        self.now = mixed
        self.whole = mixed + expected

    @property
    def total(self) -> float:
        """Slots left once everybody admitted has ended, as far as one can tell."""
        return self.pool.free - self.whole

    @property
    def current(self) -> int:
        """Slots left after this step."""
        return self.pool.free - self.now

    @property
    def spent(self) -> bool:
        """The step is full."""
        return self.input <= 0 or (self.chunk is not None and self.chunk <= 0)

    @property
    def exhausted(self) -> bool:
        """There are no slots left."""
        return self.total <= 0 or self.current <= 0

    def take(self, tokens: int, answer: int) -> None:
        """Reckon with an admitted prompt, or part of one, and the answer to it."""
        self.whole += tokens + 1 + answer
        self.now += tokens + 1
        self.input -= tokens
        if self.chunk is not None:
            self.chunk -= tokens
