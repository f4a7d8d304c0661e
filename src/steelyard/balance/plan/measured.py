"""A batch of trajectories that have ended, in columns for planners."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from steelyard.balance.portable import MICROSECOND, to_grid
from steelyard.errors import UserError
from steelyard.records import Floats, Ints, Trajectory


@dataclass(frozen=True, eq=False)
class Measured:
    """Trajectories that have ended, one row each."""

    generated: Ints
    tools: Floats  # seconds in tools, summed over turns
    turns: Ints
    prompt: Ints  # tokens before the first turn
    context: Ints  # tokens at the end: the sequence that is trained on
    read: Ints  # context at the start of each turn, summed over turns: prompt tokens without a cache
    group: int = 1  # trajectories that share a prompt

    def __post_init__(self) -> None:
        """Tool times are rounded to a grid of about a microsecond, so that their sums are exact in any order."""
        object.__setattr__(self, "tools", to_grid(self.tools, MICROSECOND))
        if not len(self.generated) or min(self.generated.min(), self.turns.min()) < 1:
            raise UserError("planner: trajectories are needed, each with at least one turn and one generated token")

    def __len__(self) -> int:
        return len(self.generated)

    def by_prompt(self, column: Ints | Floats) -> list[float]:
        """Means of a column over the trajectories of each prompt, which are consecutive."""
        first = np.arange(0, len(column), self.group)
        sums: Floats = np.add.reduceat(column.astype(np.float64), first)
        means: list[float] = (sums / np.diff(np.append(first, len(column)))).tolist()
        return means

    @staticmethod
    def of(trajectories: Iterable[Trajectory], group: int = 1) -> Measured:
        """The columns of some trajectories. Tools of unknown latency count as 0 seconds."""
        rows = [_row(each) for each in trajectories]
        generated, tools, turns, prompt, context, read = zip(*rows, strict=True) if rows else ((),) * 6
        return Measured(
            np.array(generated, dtype=np.int64),
            np.array(tools, dtype=np.float64),
            np.array(turns, dtype=np.int64),
            np.array(prompt, dtype=np.int64),
            np.array(context, dtype=np.int64),
            np.array(read, dtype=np.int64),
            group,
        )


def _row(each: Trajectory) -> tuple[int, float, int, int, int, int]:
    *before, last = each.turns
    context, read, tools, generated = each.prompt_tokens, 0, 0.0, last.generated
    for turn in before:
        read += context
        generated += turn.generated
        context += turn.generated + turn.returned
        tools += turn.latency or 0.0
    return generated, tools, len(each.turns), each.prompt_tokens, context + last.generated, read + context
