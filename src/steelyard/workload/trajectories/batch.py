"""Many trajectories as columns, which act as a sequence of records made on access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from steelyard.records import OUTCOMES, Floats, Ints, Trajectory, Turn

ENDS = ("done", "gave-up", "tokens", "turns")
"""How generated trajectories end: the last two are those cut off by a budget."""


@dataclass(frozen=True, eq=False)
class TrajectoryBatch(Sequence[Trajectory]):
    """The trajectories of one training step; those of a group are adjacent."""

    policy: str
    prompts: Sequence[str]  # of each trajectory; the task's name too
    samples: Ints
    prompt_tokens: Ints
    ends: Ints  # indices into ENDS
    tools: tuple[str, ...]
    first: Ints  # the first turn of each trajectory, and the end of the last one's
    generated: Ints  # this and the following: by turn
    tool: Ints  # indices into tools; -1 for none
    outcome: Ints  # indices into OUTCOMES
    returned: Ints
    latency: Floats  # 0 where no tool was called

    @property
    def turns(self) -> Ints:
        """Number of turns of each trajectory."""
        return np.diff(self.first)

    def totals(self, column: Ints | Floats) -> Floats:
        """A column of turns summed by trajectory."""
        return np.add.reduceat(column, self.first[:-1]).astype(np.float64)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> Trajectory: ...
    @overload
    def __getitem__(self, index: slice) -> list[Trajectory]: ...
    def __getitem__(self, index: int | slice) -> Trajectory | list[Trajectory]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        return self._records(number, number + 1)[0]

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self._all)

    @cached_property
    def _all(self) -> list[Trajectory]:
        return self._records(0, len(self))

    def _records(self, start: int, stop: int) -> list[Trajectory]:
        first = self.first[start : stop + 1].tolist()
        span = slice(first[0], first[-1])
        names = (*self.tools, None)  # -1 is the last
        turns = [
            Turn(generated, names[tool], OUTCOMES[outcome], returned, None if tool < 0 else latency)
            for generated, tool, outcome, returned, latency in zip(
                self.generated[span].tolist(),
                self.tool[span].tolist(),
                self.outcome[span].tolist(),
                self.returned[span].tolist(),
                self.latency[span].tolist(),
                strict=True,
            )
        ]
        return [
            Trajectory(
                id=f"{self.policy}/{self.prompts[number]}/{self.samples[number]}",
                prompt=self.prompts[number],
                task=self.prompts[number],
                turns=tuple(turns[begin - first[0] : end - first[0]]),
                prompt_tokens=int(self.prompt_tokens[number]),
                policy=self.policy,
                end=ENDS[self.ends[number]],
            )
            for number, begin, end in zip(range(start, stop), first, first[1:], strict=False)
        ]
