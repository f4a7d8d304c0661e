"""Plans a live run: measures each step, has the planner's questions answered, and carries out its changes.

The planner thinks while the run goes on. A change that it wants is carried out at the next weight sync, when caches are
invalid anyway: engines that are not in the new plan stop, the training job changes its layout, and new engines start.
The new roster is in the store before anything moves, so a controller that takes over brings the run to the same one.

A change is *proposed* once the core wants it, *applying* while engines move, and then in force or *rolled back*. While
changes are paused, a proposal waits for an operator to apply it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from steelyard.balance.encoding import encode
from steelyard.balance.kinds import Event
from steelyard.balance.plan import Plan
from steelyard.balance.plan.planning import Planning
from steelyard.balance.plan.questions import (
    ChangePlan,
    PlanChanged,
    PlanRolledBack,
    PlansSimulated,
    PlanWanted,
    Simulate,
)
from steelyard.balance.rounds import RoundSettings
from steelyard.files.jsontext import json_row
from steelyard.live.control import ControlServer
from steelyard.live.keeper import Keeper, KeptEngine
from steelyard.live.measure import MeasuredStep, StepMeasure
from steelyard.live.plan_worker import PlanWorker
from steelyard.live.roster import Roster, WantedEngine, roster_of
from steelyard.live.wire import Message, Role

log = logging.getLogger("steelyard.planner")

ChangeState = Literal["none", "proposed", "waiting", "applying"]

_LOOK_SECONDS = 0.05  # between two looks whether engines are up; chosen
_PATIENCE = 3.0  # times as long as a change should take, until it is rolled back; chosen
_LEAST_PATIENCE = 60.0  # seconds of the clock, since starting processes takes as long at any speed; chosen
_ROSTER, _PAUSED = "roster", "changes paused"  # facts in the store


@dataclass(frozen=True)
class PlannedRun:
    """What a planner needs to know of a run."""

    folder: Path
    steps: int
    gpus: int
    node: int  # GPUs of a node
    speed: float
    rounds: RoundSettings
    first: Callable[[], Roster]
    engine: Callable[[WantedEngine], KeptEngine]
    free_ports: Callable[[int], list[int]]


class LivePlanner:
    """The planner of a run, in the controller's process. Its simulations run in a process of their own."""

    def __init__(self, run: PlannedRun, server: ControlServer, keeper: Keeper, worker: PlanWorker) -> None:
        self._run, self._server, self._keeper, self._worker = run, server, keeper, worker
        self._measure = StepMeasure(run.rounds)
        self._measured: MeasuredStep | None = None  # of the step that is over
        self.state: ChangeState = "none"
        self.paused = False
        self._approved = False
        self._looked = False  # whether the worker has the batches of the last question
        self._changed_after = -1  # the step of the last change
        self._roster: Roster | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        server.on(Simulate, self._simulate)
        server.on(ChangePlan, self._propose)
        keeper.before_publishing = self.change
        keeper.step_over = self._step_over
        keeper.after_publishing = self._want_plan

    def begin(self) -> list[KeptEngine]:
        """Take up the run's roster, or begin with the first. Returns the engines that are wanted."""
        store = self._server.controller.store
        self._measure.begin(self._server.controller)
        known = store.fact(_ROSTER)
        self._roster = self._run.first() if known is None else roster_of(json_row(known, "store"), "store")
        self.paused = store.fact(_PAUSED) == "yes"
        self._changed_after = self._roster.step
        if self.planning.pending is not None:
            self.state = "waiting" if self.paused else "proposed"
        self._keep(self._roster)
        self._roster.write(self._run.folder)
        return [self._run.engine(each) for each in self._roster.engines]

    async def close(self) -> None:
        """Stop planning."""
        for task in self._tasks:
            task.cancel()
        self._worker.close()

    @property
    def planning(self) -> Planning:
        found = self._server.controller.core.planning
        assert found is not None, "a run with a planner has it in its core"
        return found

    @property
    def roster(self) -> Roster:
        assert self._roster is not None, "begin comes first"
        return self._roster

    # -- operators ----------------------------------------------------------------------------------------------

    def pause(self, paused: bool) -> None:
        """Let proposals wait for `apply`, or not any more. It stays so for the next controller."""
        self.paused = paused
        self._server.controller.store.keep(_PAUSED, "yes" if paused else "no")
        if self.state in ("proposed", "waiting"):
            self.state = "waiting" if paused else "proposed"

    def apply(self) -> bool:
        """Carry the proposal out at the next weight sync. Returns whether there is one."""
        self._approved = self.planning.pending is not None
        return self._approved

    def status(self) -> Message:
        """The plan in force, and the proposal if there is one."""
        pending = self.planning.pending
        found: Message = {"plan": str(self.roster.plan), "state": self.state, "paused": self.paused, "proposal": None}
        if pending is not None:
            found["proposal"] = {
                "after_step": pending.step,
                "plan": str(pending.plan),
                "why": pending.plan.why,
                "predicted_step": pending.plan.step,
                "predicted_gain": predicted_gain(pending),
            }
        return found

    # -- measuring and asking -----------------------------------------------------------------------------------

    def _step_over(self, at: float, version: int) -> Sequence[Event]:
        """Measure the step that made these weights."""
        replicas = self._server.controller.core.placement.rollouts.replicas.values()
        self._measured = self._measure.step_over(at, version - 1, replicas) if version else None
        return ()

    def _want_plan(self, version: int) -> None:
        """A step is over: ask the planner, unless it still thinks or a change is under way."""
        if 0 < version < self._run.steps and self.planning.pending is None and not self._tasks:
            self._later(self._tell_step(version - 1))

    async def _tell_step(self, step: int) -> None:
        measured = self._measured
        if measured is None:
            return
        latest = measured.recent
        columns, seen = await self._worker.look(latest.batches)
        self._looked = True
        settled = step > self._changed_after + 1 + self._run.rounds.staleness
        self._server.tell(
            PlanWanted(
                self._server.now(),
                step,
                columns,
                newest=0,
                train=measured.train,
                rollout=latest.seconds,
                queued=max(0.0, latest.wanted - 1.0),
                active=min(1.0, latest.wanted),
                seen=seen,
                left=self._run.steps - step - 1,
                took=measured.seconds if settled else None,
            )
        )
        await self._server.decided()

    def _simulate(self, command: Simulate) -> None:
        """Have questions answered. A controller that took over has forgotten the batches: its next step asks again."""
        if self._looked:
            self._later(self._answer(command))

    async def _answer(self, command: Simulate) -> None:
        roles = self.roster.roles(self._run.gpus, self._run.node)
        seconds = await self._worker.answer(command.questions, self.planning.plan, roles)
        self._server.tell(PlansSimulated(self._server.now(), command.ask, seconds))
        await self._server.decided()

    def _propose(self, _: ChangePlan) -> None:
        self.state = "waiting" if self.paused else "proposed"

    # -- carrying out a change ----------------------------------------------------------------------------------

    async def change(self, _: int) -> None:
        """Carry out what the planner wants, if it wants something. Called when engines have new weights."""
        command = self.planning.pending
        if command is None or (self.paused and not self._approved):
            return
        self.state, self._approved = "applying", False
        await self._move(command.now, command.plan, command.step)
        if await self._is_up():
            roster = self.roster
            took = max(self._server.now(), roster.laid) - roster.began
            self._server.tell(PlanChanged(self._server.now(), command.step, took))
        else:
            await self._roll_back(command)
        self._changed_after = command.step
        await self._server.decided()
        self.state = "none"

    async def _roll_back(self, command: ChangePlan) -> None:
        missing = [str(each.number) for each in self.roster.engines if not self._keeper.is_up(each.number)]
        reason = f"engines {', '.join(missing)} did not come up in time"
        log.error("the change after step %d is rolled back: %s", command.step, reason)
        await self._move(command.plan, command.now, command.step, back=True)
        await self._is_up()
        self._server.tell(PlanRolledBack(self._server.now(), command.step, reason))

    async def _move(self, now: Plan, plan: Plan, step: int, back: bool = False) -> None:
        """Bring the run to a plan. A controller that takes over finds the roster, and goes on from there."""
        roster = self.roster
        if (roster.step, roster.rolled_back) != (step, back):
            change = await self._worker.switch(now, plan, roster.roles(self._run.gpus, self._run.node))
            ports = self._run.free_ports(len(change.new))
            roster = roster.changed(plan, change, step, self._server.now(), ports)
            self._roster = roster = roster.as_rolled_back() if back else roster
            self._keep(roster)
        wanted = {each.number: each for each in roster.engines}
        gone = [each for each in self._keeper.engines if each not in wanted]
        await asyncio.gather(*(self._keeper.remove(number) for number in gone))
        await self._server.decided()  # their turns go elsewhere before they stop
        self._server.notify({"engines": self._keeper.rows()}, "gateway")
        roster.write(self._run.folder)
        for number, each in wanted.items():
            if number not in self._keeper.engines:
                self._keeper.add(self._run.engine(each))
        self._server.notify(self.news("trainer"), "trainer")

    async def _is_up(self) -> bool:
        """Wait until all engines are up. False if that takes far too long."""
        expected = max([each.since for each in self.roster.engines]) - self._server.now()
        try:
            async with asyncio.timeout(max(_LEAST_PATIENCE, _PATIENCE * expected / self._run.speed)):
                while not all(self._keeper.is_served(each.number) for each in self.roster.engines):
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            return False
        return True

    def news(self, role: Role) -> Message:
        """The plan in force, for trainers."""
        if role != "trainer":
            return {}
        waits = max(0.0, self.roster.laid - self._server.now())
        return {"plan": encode(self.roster.plan), "waits": waits}

    def _keep(self, roster: Roster) -> None:
        self._server.controller.store.keep(_ROSTER, roster.to_json())

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._looked = False
            log.error("the planner failed; it is asked again after the next step", exc_info=problem)


def predicted_gain(command: ChangePlan) -> float:
    """Seconds of a step that a change is predicted to gain."""
    before = command.now.step if command.plan.instead is None else command.plan.instead
    return before - command.plan.step
