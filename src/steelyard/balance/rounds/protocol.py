"""The interface of rounds, and their settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from steelyard.balance.admission import Late
from steelyard.balance.commands import RoundCommand
from steelyard.balance.encoding import ADDED_LATER
from steelyard.balance.events import RolloutEvent, RoundEvent

RoundInput = RolloutEvent | RoundEvent

_PARTS = 8  # parts of a step at most, if training takes groups as they come; chosen by hand


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """A training step takes ``groups`` groups of ``size`` samples each, which began at most ``staleness`` weight
    versions before, unless ``late`` lets it train on others. Without a tail policy, at most ``concurrency`` samples run
    at a time."""

    steps: int
    groups: int
    size: int
    staleness: int = 0
    streaming: bool = False  # whether training takes whole groups as they come
    synchronous: bool = True  # whether rollout stops during training
    lead: int = 0  # steps by which a round may open before the weights of its own step are there
    waits: bool = True  # whether training waits for every trajectory that begins
    concurrency: int | None = field(default=None, metadata=ADDED_LATER)
    late: Late = field(default="wait", metadata=ADDED_LATER)

    @property
    def least_part(self) -> int:
        """The fewest groups that training gets at a time; all groups of a step without streaming.

        A few sequences divide less evenly among ranks, and fill fewer micro-batches.
        """
        return -(-self.groups // _PARTS) if self.streaming else self.groups


class Rounds(Protocol):
    """Starts trajectories as weights allow, and gives the training job whole groups of them."""

    counts_tokens: bool
    """Whether `Generated` has to be reported."""

    def decide(self, event: RoundInput) -> list[RoundCommand]:
        """Apply an event, after the router has. Returns the commands that follow, in order."""

    def unfinished(self) -> list[str]:
        """Groups that were started, and of which samples may still begin or go on."""
