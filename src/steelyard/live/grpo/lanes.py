"""The hybrid replicas of a run: each is a lane of the training group, in a process of its own.

The trainer starts these processes and starts again what dies. They end with it, so that a new trainer can say of all
replicas that their GPUs are free.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from subprocess import Popen

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
from steelyard.files.writing import write_text
from steelyard.live.member import RunMember
from steelyard.live.pool import LEFT
from steelyard.live.train.group import TrainingGroup
from steelyard.live.train.lane import LaneReport, LaneState
from steelyard.live.train.launch import start_worker
from steelyard.live.wire import Message

log = logging.getLogger("steelyard.trainer")

_LOOK_SECONDS = 0.05  # between two looks at lanes and their processes; chosen
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds until a process that died is started again; doubled each time; chosen
_CORE = 0  # the replica that always trains

Order = Join | Fetch | Sync | Activate | Leave | RollBack


@dataclass(eq=False)
class _Lane:
    """A hybrid replica: its process, what it was told last, and where it is."""

    process: Popen[bytes]
    order: Order | None = None
    report: LaneReport | None = None
    told: tuple[int, ...] = ()  # the answer that was given last: epoch and step
    pause: float = _FIRST_PAUSE
    again: float | None = None  # when its process is started again
    left: int = -1  # the epoch in which it was last told to be free


class GrpoLanes:
    """Carries the pool's commands out on the lanes of a training group, and reports what becomes of them."""

    def __init__(self, group: TrainingGroup, replicas: Sequence[int], folder: Path) -> None:
        self.member: RunMember | None = None
        self._group, self._folder = group, folder
        self._lanes = {replica: _Lane(self._start(replica)) for replica in replicas}
        self._tokens: dict[int, int] = {}  # of the present step, by replica

    # -- commands -----------------------------------------------------------------------------------------------

    def catch_up(self, members: Sequence[Message]) -> None:
        """Whatever replicas were doing in training ended with the trainer before this one."""
        for row in members:
            replica, state, epoch = row["replica"], MemberState(row["state"]), row["epoch"]
            if state in (MemberState.LEAVING, MemberState.ROLLED_BACK):
                self._tell_left(replica, epoch)
            elif state not in (MemberState.ROLLOUT, MemberState.DRAINING):
                self._member.report(Failed(0.0, replica, epoch, "the trainer was started anew"))

    def carry_out(self, command: Command) -> None:
        """A command of the pool."""
        assert isinstance(command, Order)
        lane, name = self._lanes[command.replica], str(command.replica)
        lane.order, lane.told = command, ()
        match command:
            case Join():
                self._group.join(name, command.epoch)
                self._member.report(JoinAccepted(0.0, command.replica, command.epoch))
            case Activate():
                if not self._group.activate(name):
                    self._member.report(Failed(0.0, command.replica, command.epoch, "the lane is not ready"))
            case Leave():
                self._group.leave(name)
            case RollBack():
                self._group.drop(name, "it is rolled back")
                lane.process.kill()
        self._answer(command.replica, lane)

    # -- steps --------------------------------------------------------------------------------------------------

    async def begin(self, step: int, version: int) -> None:
        """The barrier before a step: replicas that are ready train from here on."""
        self._tokens = {}
        self._member.report(StepBegan(0.0, step, version))
        await self._member.decided()

    def computed(self, total: int, lanes: Sequence[tuple[str, int]]) -> None:
        """A part of a step was trained: all tokens, and those of each lane."""
        for name, tokens in lanes:
            self._tokens[int(name)] = self._tokens.get(int(name), 0) + tokens
        rest = total - sum(tokens for _, tokens in lanes)
        self._tokens[_CORE] = self._tokens.get(_CORE, 0) + rest

    def end(self, step: int, version: int) -> None:
        """A step's gradients are summed."""
        told: list[Event] = [Gradient(0.0, _CORE, 0, step, version, self._tokens.get(_CORE, 0))]
        active = [int(name) for name, report in self._group.lanes().items() if report.state is LaneState.ACTIVE]
        for replica, lane in self._lanes.items():
            if isinstance(lane.order, Activate) and replica in active:
                tokens = self._tokens.get(replica, 0)
                told.append(Gradient(0.0, replica, lane.order.epoch, step, version, tokens))
        self._member.report(*told)

    # -- lanes and their processes ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow lanes for ever."""
        while True:
            for report in self._reports():
                lane = self._lanes[int(report.lane)]
                lane.report = report
                self._answer(int(report.lane), lane)
            for replica, lane in self._lanes.items():
                self._tend(replica, lane)
            await asyncio.sleep(_LOOK_SECONDS)

    def close(self) -> None:
        """End all processes."""
        for lane in self._lanes.values():
            lane.process.kill()
            lane.process.wait()

    def _reports(self) -> list[LaneReport]:
        found: list[LaneReport] = []
        try:
            while True:
                found.append(self._group.reports.get_nowait())
        except Empty:
            return found

    def _answer(self, replica: int, lane: _Lane) -> None:
        """Report what has become of the last command, once."""
        order, report = lane.order, lane.report
        if order is None or report is None:
            return
        trains = isinstance(order, Join | Fetch | Sync | Activate) and report.epoch == order.epoch
        event: Event | None = None
        if trains and report.state is LaneState.GONE:
            lane.process.kill()
            event = Failed(0.0, replica, order.epoch, report.reason)
        elif trains and report.state in (LaneState.SYNCING, LaneState.READY) and isinstance(order, Join | Fetch):
            event = Fetched(0.0, replica, order.epoch, order.step, order.version)  # it has made all updates since
        elif trains and report.state is LaneState.READY and isinstance(order, Sync):
            event = Synced(0.0, replica, order.epoch, report.step, report.version)
        elif isinstance(order, Leave) and report.state is LaneState.IDLE:
            self._tell_left(replica, order.epoch)
        answer = (order.epoch, report.step)
        if event is not None and answer != lane.told:
            lane.told = answer
            self._member.report(event)

    def _tend(self, replica: int, lane: _Lane) -> None:
        """Start a process again that has ended. Its GPUs are free in between."""
        if lane.process.poll() is None:
            return
        now = asyncio.get_running_loop().time()
        if lane.again is None:
            log.warning("lane %d has ended with code %d", replica, lane.process.returncode)
            lane.again, lane.pause = now + lane.pause, min(2 * lane.pause, _LONGEST_PAUSE)
        if isinstance(lane.order, Leave | RollBack):
            self._tell_left(replica, lane.order.epoch)
        if now >= lane.again:
            lane.process, lane.again = self._start(replica), None

    def _start(self, replica: int) -> Popen[bytes]:
        process = start_worker(self._group.address, self._group.secret, "lane", str(replica))
        write_text(self._folder / f"lane-{replica}.pid", f"{process.pid}\n")
        return process

    def _tell_left(self, replica: int, epoch: int) -> None:
        lane = self._lanes[replica]
        if epoch > lane.left:
            lane.left = epoch
            self._member.tell(LEFT, {"replica": replica, "epoch": epoch})

    @property
    def _member(self) -> RunMember:
        assert self.member is not None, "it is a member of a run"
        return self.member
