"""One hybrid replica: where it stands between rollout and training, and how long it may stand there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Literal

Role = Literal["rollout", "between", "training"]


class MemberState(StrEnum):
    """The way of a replica, in order. From every state but the first something can go wrong: then it is rolled back."""

    ROLLOUT = "rollout"
    DRAINING = "draining"  # its engines still run what they have
    REQUESTED = "requested"  # the training job has been asked to take it in
    FETCHING = "fetching"  # weights and optimiser state come in the background
    SYNCING = "syncing"  # goes through exchanges of gradients, giving nothing
    ACTIVATING = "activating"  # holds what the others hold; waits for the barrier
    ACTIVE = "active"
    LEAVING = "leaving"
    ROLLED_BACK = "rolled back"  # its engines are being started again


_ROLES: dict[MemberState, Role] = {
    MemberState.ROLLOUT: "rollout",
    MemberState.DRAINING: "rollout",
    MemberState.ACTIVE: "training",
}


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds to wait in each state before a replica is rolled back (or told once more to roll back), and for the
    gradient of a lent replica once the core has all of its own."""

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
        """How long for this state; for ever where a replica may stay."""
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
    """A replica with all its GPUs: they change roles together or not at all."""

    replica: int
    state: MemberState = MemberState.ROLLOUT
    epoch: int = 0  # counts its commands to set out or turn back; answers to others are stale
    deadline: float = inf
    idle_since: float = 0.0  # when it last stopped working for a side
    rests_until: int = 0  # step before which it is not asked again

    @property
    def role(self) -> Role:
        """Whom its GPUs belong to; between the two they work for nobody."""
        return _ROLES.get(self.state, "between")

    @property
    def moving(self) -> bool:
        """On its way, and not there yet."""
        return self.state not in (MemberState.ROLLOUT, MemberState.ACTIVE)
