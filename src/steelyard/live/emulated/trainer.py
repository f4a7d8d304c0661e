"""A trainer that takes the time that training would take, and publishes weights that are only a number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import numpy as np

from steelyard.balance.commands import TrainOn
from steelyard.balance.encoding import decode
from steelyard.balance.events import PartTrained, StepTrained, TrainerReady
from steelyard.balance.kinds import Command
from steelyard.balance.plan import Plan
from steelyard.live.emulated.lanes import EmulatedLanes
from steelyard.live.member import RunMember
from steelyard.live.wire import Message, command_of
from steelyard.posttrain.setup import Job


class EmulatedTrainer:
    """Trains on one part after the other. A new one trains again on what was not reported as trained."""

    def __init__(
        self,
        job: Job,
        steps: int,
        tokens: Mapping[str, int],
        speed: float,
        job_of: Callable[[Plan], Job],
        lanes: EmulatedLanes | None = None,
    ) -> None:
        self.job = job
        self.lanes = lanes
        self._job_of = job_of
        self._plan: Plan | None = None  # that changed the job
        self._ready = 0.0  # second of the event loop at which the job has its layout
        self.member: RunMember | None = None
        self._steps, self._tokens, self._speed = steps, tokens, speed
        self._orders: asyncio.Queue[TrainOn] = asyncio.Queue()
        self._wanted = -1  # the last step that samples were asked for

    # -- duties -------------------------------------------------------------------------------------------------

    def catch_up(self, state: Message) -> None:
        self._wanted = state["asked"]
        if self.lanes is not None:
            self.lanes.catch_up(state["pool"])
        for row in state["orders"]:
            self.carry_out(command_of(row))

    def carry_out(self, command: Command) -> None:
        if not isinstance(command, TrainOn):
            assert self.lanes is not None, f"{command} is for a pool"
            self.lanes.carry_out(command)
            return
        self._orders.put_nowait(command)

    def notice(self, notice: Message) -> None:
        """Engines have weights of a version: the next step may begin. Or the job gets another layout."""
        if "plan" in notice:
            self._change(decode(Plan, notice["plan"], "notice"), notice["waits"])
        version = notice.get("published", -1)
        if self._wanted < version < self._steps:
            self._wanted = version
            assert self.member is not None
            self.member.report(TrainerReady(0.0, version))

    def _change(self, plan: Plan, waits: float) -> None:
        if self._plan is None or plan.layout != self._plan.layout:
            self._plan, self.job = plan, self._job_of(plan)
        self._ready = asyncio.get_running_loop().time() + waits / self._speed

    # -----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Train for ever."""
        parts = 0
        while True:
            order = await self._orders.get()
            parts = parts + 1 if order.part else 1
            await self._train(order, whole=order.last and parts == 1)

    async def _train(self, order: TrainOn, whole: bool) -> None:
        lengths = np.array([self._tokens[name] for name in order.trajectories])
        if order.part == 0:
            await asyncio.sleep(self._ready - asyncio.get_running_loop().time())
            await asyncio.sleep(self.job.before / self._speed)
            if self.lanes is not None:
                await self.lanes.begin(order.step)
        cost = self.job.cost if self.lanes is None else self.lanes.cost
        time = cost.step(lengths) if whole else cost.part(lengths, last=order.last)
        await asyncio.sleep(time.seconds / self._speed)
        assert self.member is not None
        if not order.last:
            self.member.report(PartTrained(0.0, order.step, order.part))
            return
        exchanged = () if self.lanes is None else self.lanes.end(order.step, int(lengths.sum()))
        self.member.report(*exchanged, StepTrained(0.0, order.step))
        self.member.tell("weights", {"version": order.step + 1, "path": ""})
