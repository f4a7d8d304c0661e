"""A lower bound on the time of any post-training run: the GPU seconds that its trajectories take at least.

It rests on compiled costs alone, and on no policy. Three facts make it hold for every split of the GPUs, fixed or not,
and for every order of the work.

- A step of an engine takes at least the least entry of its tables for so many requests or more, and its attention at
  least so many seconds for each cached token. Each request of the step is charged its share.
- A micro-batch takes at least as long per token as the best size of micro-batch does in the best layout.
- The GPUs of a run, times its seconds, are at least all of this work.

Left out, so that the bound holds, are prompts and what tools return (they ride along with decodes), exchanges that
arithmetic may hide, updates, weight syncs, idle tools and every kind of waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from steelyard.cost import CompiledCost
from steelyard.posttrain.engines import EngineKind
from steelyard.posttrain.training import TrainingCost
from steelyard.posttrain.training.bounds import least_seconds
from steelyard.records import Floats, Ints, Trajectory

_RATIO = 1.05  # of neighbouring numbers of requests, and of cached tokens, that are looked at
_LONGEST = 1 << 21  # cached tokens of a request; beyond, a token is charged as with so many


class LeastWork:
    """The least GPU seconds of trajectories: on engines of these kinds, and in training by these layouts."""

    def __init__(self, kinds: Mapping[int, EngineKind], layouts: Sequence[TrainingCost]) -> None:
        self._fixed, self._per_token = np.concatenate([_charges(kind) for kind in kinds.values()], axis=1)
        self._layouts = layouts

    def rollout(self, trajectories: Iterable[Trajectory]) -> float:
        """GPU seconds to generate the tokens of trajectories."""
        rows = [row for each in trajectories for row in _contexts(each)]
        if not rows:
            return 0.0
        tokens, first, last = np.array(rows, dtype=float).T
        # The least charge is concave in the context, so over a turn its mean is at least that of both ends.
        return float((tokens * (self._charge(first) + self._charge(last)) / 2).sum())

    def training(self, lengths: Ints) -> float:
        """GPU seconds to train on sequences of these lengths, all in one layout."""
        return min(least_seconds(layout, lengths) for layout in self._layouts)

    def _charge(self, context: Floats) -> Floats:
        """GPU seconds of a token with so many cached tokens before it, in the best company on the best engine."""
        found: Floats = np.full(len(context), np.inf)
        for a, b in zip(self._fixed.tolist(), self._per_token.tolist(), strict=True):
            found = np.minimum(found, a + b * np.minimum(context, _LONGEST))
        return found


def _contexts(trajectory: Trajectory) -> Iterable[tuple[int, int, int]]:
    """(tokens, context before the first of them, before the last) of each turn. A turn's first token comes with its
    prompt, not from a decode step."""
    context = trajectory.prompt_tokens
    for turn in trajectory.turns:
        if turn.generated > 1:
            yield turn.generated - 1, context, context + turn.generated - 1
        context += turn.generated + turn.returned


def _charges(kind: EngineKind) -> Floats:
    """[2, numbers of requests]: GPU seconds that a request is charged in a step, and for each of its cached tokens."""
    cost = kind.cost
    if not isinstance(cost, CompiledCost):  # steps with drafts end several tokens at a time: nothing is known of them
        return np.zeros((2, 1))
    counts, steps = _spaced(kind.limits.max_num_seqs), cost.least()
    keys = _spaced(kind.limits.room)
    found = []
    for low, high in zip(counts[:-1], counts[1:] - 1, strict=True):
        seconds = [cost.least_decode_attention(int(low), int(key)) for key in keys[:-1]]
        per_token = float(np.min(np.array(seconds) / keys[1:]))
        found.append((kind.tp * float(steps[low]) / high, kind.tp * per_token))
    return np.array(found).T


def _spaced(most: int) -> Ints:
    """Numbers from 1 to ``most``, ever further apart, then ``most + 1``."""
    found = [1]
    while found[-1] <= most:
        found.append(max(found[-1] + 1, int(found[-1] * _RATIO)))
    return np.array([*(each for each in found if each <= most), most + 1])
