"""Turns as requests: each begins with the whole context before it, whose blocks have names for prefix caches."""

from __future__ import annotations

from itertools import count

from steelyard.engine import BlockNames, Request
from steelyard.engine.content import NO_NAMES, Chain
from steelyard.errors import UserError
from steelyard.posttrain.attempt import Attempt
from steelyard.records import Trajectory

_ENDLESS = 1 << 60


class Turns:
    """Makes requests. Prompts are named by group, later tokens by trajectory; new weights give new names."""

    def __init__(self, block_size: int, most: int) -> None:
        self.names = BlockNames(block_size)
        self._most = most  # tokens that engines take
        self._prompts: dict[tuple[str, int], int] = {}
        self._streams = count()

    def forget(self, attempt: Attempt) -> None:
        """Its cache is invalid, empty or not needed any more."""
        attempt.chain, attempt.names = (), NO_NAMES

    def request(
        self, attempt: Attempt, index: int, at: float, priority: int, version: int, cap: int | None = None
    ) -> Request:
        """The rest of its turn, or as much of it as a cap on tokens in one go allows; one at least."""
        output = attempt.trajectory.turns[attempt.turns].generated - attempt.tokens
        if cap is not None:
            output = max(1, min(output, cap - attempt.since))
        if attempt.priority is not None:
            priority = attempt.priority
        context = attempt.context
        chain = attempt.chain or self._begin_chain(attempt, version)
        names = attempt.names = self.names.continued(attempt.names, chain, context // self.names.block_size)
        return Request(index, at, context, output, priority, names, chain)

    def _begin_chain(self, attempt: Attempt, version: int) -> Chain:
        """Its prompt's stream and one of its own, until it forgets."""
        trajectory = attempt.trajectory
        key = (trajectory.prompt, version)
        prompt = self._prompts.get(key)
        if prompt is None:
            prompt = self._prompts[key] = next(self._streams)
        chain = attempt.chain = ((prompt, trajectory.prompt_tokens), (next(self._streams), _ENDLESS))
        return chain

    def check(self, trajectory: Trajectory) -> None:
        """Refuse a trajectory that no engine could finish."""
        turns = trajectory.turns
        needed = trajectory.prompt_tokens + sum([turn.generated + turn.returned for turn in turns]) - turns[-1].returned
        if needed > self._most:
            raise UserError(
                f"trajectory {trajectory.id} comes to {needed:,} tokens, and engines take {self._most:,} "
                "(engine.max_model_len); raise it, or set a lower trajectories.budget.context"
            )
