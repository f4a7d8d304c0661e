"""What an estimator knows of a running trajectory: its turns so far and their sums, nothing of its future.

Sums are updated turn by turn, so a tool return costs the same on the hundredth turn as on the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from steelyard.records import Outcome, Trajectory, Turn

_SMALL, _MEDIUM = 500, 5_000  # tokens returned: Libra's size classes (arXiv 2606.03077)

Signal = tuple[str | None, int, Outcome]
"""A tool return as a causal signal: tool, size class of what it returned (0, 1, 2), outcome."""


def signal(turn: Turn) -> Signal:
    """The signal of a turn's tool return."""
    return turn.tool, (turn.returned > _SMALL) + (turn.returned > _MEDIUM), turn.outcome


@dataclass(slots=True)
class History:
    """A trajectory up to a tool return."""

    trajectory: str
    prompt: str
    prompt_tokens: int = 0
    turns: list[Turn] = field(default_factory=list)
    generated: int = 0
    returned: int = 0
    read: int = 0  # context at the end of each turn, summed over turns
    tool_seconds: float = 0.0
    errors: int = 0
    errors_in_row: int = 0
    repeats: int = 0  # consecutive calls of the last tool, before the last one
    tools: dict[str | None, int] = field(default_factory=dict)
    context: int = field(init=False)  # tokens that its next turn begins with

    def __post_init__(self) -> None:
        self.context = self.prompt_tokens

    def add(self, turn: Turn) -> None:
        """Add a turn whose tool has returned."""
        turns, tool, generated, returned = self.turns, turn.tool, turn.generated, turn.returned
        self.generated += generated
        self.returned += returned
        context = self.context + generated
        self.read += context
        self.context = context + returned
        self.tool_seconds += turn.latency or 0.0
        if turn.outcome == "ok":
            self.errors_in_row = 0
        else:
            self.errors += 1
            self.errors_in_row += 1
        self.repeats = self.repeats + 1 if turns and turns[-1].tool == tool else 0
        self.tools[tool] = self.tools.get(tool, 0) + 1
        turns.append(turn)

    @classmethod
    def start(cls, trajectory: Trajectory) -> History:
        """A trajectory before its first turn."""
        return cls(trajectory.id, trajectory.prompt, trajectory.prompt_tokens)


def tool_returns(done: Trajectory) -> Iterator[tuple[History, int]]:
    """The history at each tool return but the last turn's, and the tokens left after it.

    The history is one object that grows: read it before the next iteration.
    """
    history = History.start(done)
    for turn, left in zip(done.turns[:-1], done.left(), strict=False):
        history.add(turn)
        yield history, left
