"""What all kinds of rounds are given and are asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from steelyard.balance.commands import RoundCommand
from steelyard.balance.events import RolloutEvent, RoundEvent

RoundInput = RolloutEvent | RoundEvent

_PARTS = 8  # that the groups of a step come in at most, where training does not wait for all of them


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """A training step takes ``groups`` groups of ``size`` samples each, none more than ``staleness`` weight versions
    old by then."""

    steps: int
    groups: int
    size: int
    staleness: int = 0
    streaming: bool = False  # whether training takes whole groups as they come
    synchronous: bool = True  # whether rollouts stand still while training runs
    lead: int = 0  # steps whose round may open before the weights they would have in turn
    waits: bool = True  # whether every trajectory that begins is waited for

    @property
    def least_part(self) -> int:
        """Groups of a step that training is given at a time, at least; all of them, where it waits for the last.

        Few sequences are dealt out to ranks less evenly, and fill fewer micro-batches.
        """
        return -(-self.groups // _PARTS) if self.streaming else self.groups


class Rounds(Protocol):
    """Starts trajectories as weights allow, and gives the training job whole groups of them."""

    counts_tokens: bool
    """Whether `Generated` has to be reported."""

    def decide(self, event: RoundInput) -> list[RoundCommand]:
        """Apply an event, after the router has; the commands that follow, in this order."""
