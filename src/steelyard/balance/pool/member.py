"""One hybrid replica: its state between rollout and training, and the deadline of each state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Literal

Role = Literal["rollout", "between", "training"]


class MemberState(StrEnum):
    """The states of a replica, in order. In every state but the first it can fail: then it is rolled back."""

    ROLLOUT = "rollout"
    DRAINING = "draining"  # its engines finish their turns
    REQUESTED = "requested"  # the training job was asked to add it
    FETCHING = "fetching"  # gets weights and optimiser state in the background
    SYNCING = "syncing"  # takes part in exchanges of gradients with weight 0
    ACTIVATING = "activating"  # has the same state as the others; waits for the barrier
    ACTIVE = "active"
    LEAVING = "leaving"
    ROLLED_BACK = "rolled back"  # its engines start again


_ROLES: dict[MemberState, Role] = {
    MemberState.ROLLOUT: "rollout",
    MemberState.DRAINING: "rollout",
    MemberState.ACTIVE: "training",
}


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds to wait in each state before a replica is rolled back (or commanded again to roll back), and for the
    gradient of a lent replica once all of the core's are in. Chosen by hand: far above what a move takes."""

    draining: float = 1800.0
    requested: float = 60.0
    fetching: float = 600.0
    syncing: float = 1800.0  # an exchange comes once a step
    activating: float = 1800.0
    leaving: float = 600.0
    rolled_back: float = 600.0
    gradient: float = 120.0
    rest: int = 5  # steps for which a replica that was rolled back is left alone

    def of(self, state: MemberState) -> float:
        """Seconds for this state; infinite if a replica may stay in it."""
        match state:
            case MemberState.ROLLOUT | MemberState.ACTIVE:
                return inf
            case MemberState.DRAINING:
                return self.draining
            case MemberState.REQUESTED:
                return self.requested
            case MemberState.FETCHING:
                return self.fetching
            case MemberState.SYNCING:
                return self.syncing
            case MemberState.ACTIVATING:
                return self.activating
            case MemberState.LEAVING:
                return self.leaving
            case MemberState.ROLLED_BACK:
                return self.rolled_back


@dataclass(slots=True)
class Member:
    """A replica with all its GPUs, which change roles together."""

    replica: int
    state: MemberState = MemberState.ROLLOUT
    epoch: int = 0  # counts its commands to move or roll back; answers with another epoch are dropped
    deadline: float = inf
    idle_since: float = 0.0  # when it last stopped working for a stage
    rests_until: int = 0  # step before which it is not moved again

    @property
    def role(self) -> Role:
        """The stage that its GPUs work for; none while it is between the two."""
        return _ROLES.get(self.state, "between")

    @property
    def moving(self) -> bool:
        """Whether it is on its way."""
        return self.state not in (MemberState.ROLLOUT, MemberState.ACTIVE)
