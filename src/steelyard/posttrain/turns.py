"""Turns as requests: the prompt of a turn is the whole context, whose blocks have names for prefix caches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count

from steelyard.engine import BlockNames, Limits, Request
from steelyard.engine.content import NO_NAMES, Chain
from steelyard.errors import UserError
from steelyard.posttrain.attempt import Attempt
from steelyard.records import Trajectory

_ENDLESS = 1 << 60
MORE_ROOM = "give engines more memory (rollout.tp, engine.num_gpu_blocks), or set a lower trajectories.budget.context"


class Turns:
    """Makes requests. Prompts are named by group, later tokens by trajectory; new weights give new names."""

    def __init__(self, block_size: int, limits: Mapping[int, Limits]) -> None:
        self.names = BlockNames(block_size)
        self._limits = limits  # of engines, by tensor-parallel degree
        self._fits = min(each.longest() for each in limits.values())  # tokens for which every engine has the blocks
        self._prompts: dict[str, int] = {}  # their streams with the current weights
        self._streams = count()

    def forget(self, attempt: Attempt) -> None:
        """Forget the cache of a trajectory: it is invalid, empty or no longer needed."""
        attempt.chain, attempt.names = (), NO_NAMES

    def request(self, attempt: Attempt, index: int, at: float, priority: int, cap: int | None = None) -> Request:
        """The rest of a turn as a request, or as many tokens as the cap allows; at least one."""
        output = attempt.trajectory.turns[attempt.turns].generated - attempt.tokens
        if cap is not None:
            output = max(1, min(output, cap - attempt.since))
        if attempt.priority is not None:
            priority = attempt.priority
        context = attempt.context
        chain = attempt.chain or self._begin_chain(attempt)
        names = attempt.names = self.names.continued(attempt.names, chain, context // self.names.block_size)
        return Request(index, at, context, output, priority, names, chain)

    def new_weights(self, running: Iterable[Attempt]) -> None:
        """Caches of the old weights are invalid. Their names are only needed for turns that go on."""
        self._prompts.clear()
        going_on = [attempt.request.chain for attempt in running if attempt.request is not None]
        first = next(self._streams)  # of the new weights
        self.names.forget_before(min([first, *(chain[0][0] for chain in going_on if chain)]))

    def _begin_chain(self, attempt: Attempt) -> Chain:
        """The streams of its prompt and of its own tokens, until `forget`."""
        trajectory = attempt.trajectory
        prompt = self._prompts.get(trajectory.prompt)
        if prompt is None:
            prompt = self._prompts[trajectory.prompt] = next(self._streams)
        chain = attempt.chain = ((prompt, trajectory.prompt_tokens), (next(self._streams), _ENDLESS))
        return chain

    def check(self, trajectory: Trajectory) -> None:
        """Refuse a trajectory that some engine could not finish: it may be sent to any of them."""
        if trajectory.tokens > self._fits:
            check_room(trajectory, self._limits)


def check_room(trajectory: Trajectory, engines: Mapping[int, Limits]) -> None:
    """Refuse a trajectory that not all of these engines, by tensor-parallel degree, could finish."""
    needed, last = trajectory.tokens, trajectory.turns[-1].generated
    for tp, limits in engines.items():
        if needed > limits.max_model_len:
            raise UserError(
                f"trajectory {trajectory.id} comes to {needed:,} tokens, and engines take {limits.max_model_len:,} "
                "(engine.max_model_len); raise it, or set a lower trajectories.budget.context"
            )
        refused = limits.refusal(needed - last, last)
        if refused is not None:
            raise UserError(
                f"trajectory {trajectory.id} comes to {needed:,} tokens, and engines of TP{tp} cannot serve it: "
                f"{refused}; {MORE_ROOM}"
            )
