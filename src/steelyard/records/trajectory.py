"""One trajectory and its turns. They know no file format.

Nobody changes either; they are not frozen since there are very many, and each would take several times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, get_args

Outcome = Literal["ok", "error", "timeout"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(slots=True, unsafe_hash=True)
class Turn:
    """Tokens the model gave, then a tool call and what came of it."""

    generated: int
    tool: str | None = None  # none: the model answered without calling one, as last turns may
    outcome: Outcome = "ok"
    returned: int = 0  # tokens that the tool's answer adds to the context
    latency: float | None = None  # seconds from the call to its return, where known


@dataclass(slots=True, unsafe_hash=True)
class Trajectory:
    """A whole run of an agent. Every turn but the last ends in a tool return after which something is left to do."""

    id: str
    prompt: str  # trajectories of one group share it
    task: str  # what is held out together when an estimator is judged
    turns: tuple[Turn, ...]
    prompt_tokens: int = 0
    policy: str | None = None  # for reading only: no estimator is ever shown it
    end: str | None = None

    @property
    def generated(self) -> int:
        """All tokens the model gave."""
        return sum([turn.generated for turn in self.turns])

    @property
    def tokens(self) -> int:
        """Its longest context: prompt, generated and returned tokens. After the last turn nothing is returned."""
        turns = self.turns
        return self.prompt_tokens + sum([turn.generated + turn.returned for turn in turns]) - turns[-1].returned

    def left(self) -> list[int]:
        """Tokens still to be generated after each turn; 0 after the last."""
        total = self.generated
        return [total - done for done in accumulate(turn.generated for turn in self.turns)]
