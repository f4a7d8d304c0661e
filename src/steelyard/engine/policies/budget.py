"""The budget of one admission pass."""

from __future__ import annotations

from steelyard.engine.policies.slots import TokenPool


class PassBudget:
    """What one admission pass may still use: tokens of this step, and slots now and until all requests have ended."""

    __slots__ = ("chunk", "input", "now", "pool", "whole")

    def __init__(self, pool: TokenPool, prompts: int, chunk: int | None, mixed: int, expected: float) -> None:
        self.pool = pool
        self.input = prompts - mixed
        self.chunk = None if chunk is None else chunk - mixed
        self.now = mixed
        self.whole = mixed + expected

    @property
    def total(self) -> float:
        """Expected free slots once all admitted requests have ended."""
        return self.pool.free - self.whole

    @property
    def current(self) -> int:
        """Free slots after this step."""
        return self.pool.free - self.now

    @property
    def spent(self) -> bool:
        """The step is full."""
        return self.input <= 0 or (self.chunk is not None and self.chunk <= 0)

    @property
    def exhausted(self) -> bool:
        """No slots are left."""
        return self.total <= 0 or self.current <= 0

    def take(self, tokens: int, answer: int) -> None:
        """Count an admitted prompt, or part of one, and its output."""
        self.whole += tokens + 1 + answer
        self.now += tokens + 1
        self.input -= tokens
        if self.chunk is not None:
            self.chunk -= tokens
