"""Turns as requests: each begins with all that came before it, under names that caches know it by."""

from __future__ import annotations

from itertools import count

from steelyard.engine import BlockNames, Request
from steelyard.errors import UserError
from steelyard.posttrain.attempt import Attempt
from steelyard.workload.trajectories import Trajectory

_ENDLESS = 1 << 60


class Turns:
    """Makes requests. Prompts are named by group, what follows them by trajectory, both anew with new weights."""

    def __init__(self, block_size: int, most: int) -> None:
        self.names = BlockNames(block_size)
        self._most = most  # tokens that engines take
        self._prompts: dict[tuple[str, int], int] = {}
        self._streams = count()

    def forget(self, attempt: Attempt) -> None:
        """What it has cached is of no use any more, or it has nothing yet."""
        attempt.stream = next(self._streams)

    def request(
        self, attempt: Attempt, index: int, at: float, priority: int, version: int, cap: int | None = None
    ) -> Request:
        """The rest of its turn, or as much of it as a cap on tokens in one go allows; one at least."""
        output = attempt.turn.generated - attempt.tokens
        if cap is not None:
            output = max(1, min(output, cap - attempt.since))
        r = Request(index, at, attempt.context, output, priority if attempt.priority is None else attempt.priority)
        who = attempt.trajectory
        key = (who.prompt, version)
        prompt = self._prompts.get(key)
        if prompt is None:
            prompt = self._prompts[key] = next(self._streams)
        r.chain = ((prompt, who.prompt_tokens), (attempt.stream, _ENDLESS))
        r.keys = self.names.names(r.chain, attempt.context)
        return r

    def check(self, who: Trajectory) -> None:
        """Refuse one that no engine could finish."""
        needed = who.prompt_tokens + who.generated + sum(turn.returned for turn in who.turns[:-1])
        if needed > self._most:
            raise UserError(
                f"trajectory {who.id} comes to {needed:,} tokens, and engines take {self._most:,} "
                "(engine.max_model_len); raise it, or set a lower trajectories.budget.context"
            )
