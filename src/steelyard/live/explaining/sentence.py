"""One sentence about a decision."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Explained:
    """What was decided, and why. ``subject`` is a trajectory's name, or a step, replica or part of the core."""

    at: float
    kind: str
    subject: str
    sentence: str
    step: int | None = None  # the training step that it is about
    about: frozenset[str] = frozenset()  # trajectories, beside the subject

    def concerns(self, trajectory: str) -> bool:
        """Whether it is about a trajectory."""
        return trajectory == self.subject or trajectory in self.about


def counted(count: int, noun: str) -> str:
    """``1 group``, ``4 groups``, ``4 trajectories``."""
    if count != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun}"


def listed(numbers: list[int]) -> str:
    """``1, 2 and 5``."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last
