"""Hybrid replicas of an emulated training job. They take the time that the simulated ones take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from steelyard.balance.kinds import Command, Event
from steelyard.balance.pool import (
    Activate,
    Failed,
    Fetch,
    Fetched,
    Gradient,
    Join,
    JoinAccepted,
    Leave,
    MemberState,
    RollBack,
    StepBegan,
    Sync,
    Synced,
)
from steelyard.live.member import RunMember
from steelyard.live.pool import LEFT
from steelyard.live.wire import Message
from steelyard.posttrain.lending import Lending
from steelyard.posttrain.training import TrainingCost

_NOT_TRAINING = (MemberState.ROLLOUT, MemberState.DRAINING)
_GOING_BACK = (MemberState.LEAVING, MemberState.ROLLED_BACK)


class EmulatedLanes:
    """Joins and leaves as the pool says. A new one has no lanes: those of its predecessor have failed."""

    def __init__(self, lending: Lending, speed: float) -> None:
        self.member: RunMember | None = None
        self._lending, self._speed = lending, speed
        self._lent: dict[int, int] = {}  # epochs of replicas that train
        self._syncing: dict[int, Sync] = {}
        self._epochs: dict[int, int] = {}  # of the last command to each replica
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def cost(self) -> TrainingCost:
        """Training with the replicas that are lent now."""
        return self._lending.cost(len(self._lent))

    # -- commands -----------------------------------------------------------------------------------------------

    def catch_up(self, members: Sequence[Message]) -> None:
        """Whatever replicas were doing in training ended with the trainer before this one."""
        for row in members:
            replica, state, epoch = row["replica"], MemberState(row["state"]), row["epoch"]
            self._epochs[replica] = epoch
            if state in _GOING_BACK:
                self._later(self._lending.waking(replica), self._leave, replica, epoch)
            elif state not in _NOT_TRAINING:
                self._report(Failed(0.0, replica, epoch, "the trainer was started anew"))

    def carry_out(self, command: Command) -> None:
        """A command of the pool."""
        assert isinstance(command, Join | Fetch | Sync | Activate | Leave | RollBack)
        replica = command.replica
        self._epochs[replica] = command.epoch
        match command:
            case Join() | Fetch():
                if isinstance(command, Join):
                    self._report(JoinAccepted(0.0, replica, command.epoch))
                fetched = Fetched(0.0, replica, command.epoch, command.step, command.version)
                self._later(self._lending.joining(len(self._lent)), self._report, fetched)
            case Sync():
                self._syncing[replica] = command
            case Activate():
                self._lent[replica] = command.epoch
            case Leave() | RollBack():
                self._syncing.pop(replica, None)
                seconds = self._lending.waking(replica)
                if replica in self._lent:
                    seconds = self._lending.leaving(replica, len(self._lent))
                    del self._lent[replica]
                self._later(seconds, self._leave, replica, command.epoch)

    # -- steps --------------------------------------------------------------------------------------------------

    async def begin(self, step: int) -> None:
        """The barrier before a step: replicas that are ready train from here on."""
        assert self.member is not None
        self._report(StepBegan(0.0, step, step))
        await self.member.decided()

    def end(self, step: int, tokens: int) -> list[Event]:
        """What is to be reported at the end of a step: gradients, and who has the same state as all others now."""
        replicas = {**dict.fromkeys(self._lending.core, 0), **self._lent}
        share = tokens // len(replicas)
        told: list[Event] = [Gradient(0.0, each, epoch, step, step, share) for each, epoch in replicas.items()]
        told += [Synced(0.0, each, sync.epoch, step, step) for each, sync in self._syncing.items()]
        self._syncing.clear()
        return told

    def close(self) -> None:
        """Forget what is under way."""
        for each in self._timers:
            each.cancel()

    # -----------------------------------------------------------------------------------------------------------

    def _report(self, event: Event) -> None:
        assert self.member is not None
        self.member.report(event)

    def _leave(self, replica: int, epoch: int) -> None:
        """A replica's GPUs are free, unless it was told something else meanwhile."""
        if self._epochs[replica] == epoch:
            assert self.member is not None
            self.member.tell(LEFT, {"replica": replica, "epoch": epoch})

    def _later(self, seconds: float, then: Callable[..., None], *words: Any) -> None:
        """Do something once so many seconds of the run have passed."""
        timer = asyncio.get_running_loop().call_later(seconds / self._speed, then, *words)
        self._timers.append(timer)
