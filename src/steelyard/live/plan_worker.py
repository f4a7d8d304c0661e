"""Answers the planner's questions in a process of its own, so that nothing waits for its simulations."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TypeVar

from steelyard.balance.plan import Measured, Plan
from steelyard.balance.plan.questions import Columns, Question
from steelyard.live.engines.leash import signal_at_end_of_parent
from steelyard.posttrain.batches import Batch
from steelyard.posttrain.plan_answers import PlanAnswering
from steelyard.posttrain.plan_simulator import PlanSimulator
from steelyard.posttrain.setup import set_up_posttrain
from steelyard.posttrain.switch_plan import RolesNow, SwitchPlan, switch_plan
from steelyard.scenario.posttrain import PosttrainScenario

_NICENESS = 5  # engines, the gateway and the controller come first

Found = TypeVar("Found")


class PlanWorker:
    """A process with a simulator. It ends with the process that started it, and is started again if it dies."""

    def __init__(self, scenario: PosttrainScenario) -> None:
        self._scenario = scenario
        self._pool: ProcessPoolExecutor | None = None

    async def look(self, batches: Sequence[Batch]) -> tuple[tuple[Columns, ...], int]:
        """Take the newest batches, newest first. Returns what the planner is told of them, and how many samples."""
        return await self._call(partial(_look, batches))

    async def answer(self, questions: Sequence[Question], now: Plan, roles: RolesNow) -> tuple[float, ...]:
        """Seconds that questions ask for, on these batches."""
        return await self._call(partial(_answer, questions, now, roles))

    async def switch(self, now: Plan, plan: Plan, roles: RolesNow) -> SwitchPlan:
        """What a change of plan moves."""
        return await self._call(partial(_switch, now, plan, roles))

    def close(self) -> None:
        """End the process."""
        if self._pool is not None:
            for process in list(self._pool._processes.values()):
                process.kill()
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    async def _call(self, work: Callable[[], Found]) -> Found:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, get_context("spawn"), _begin, (self._scenario, os.getpid()))
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except BaseException:
            self.close()  # a new process has forgotten the batches, and is asked from the start
            raise


class _Process:
    """What the process has."""

    simulator: PlanSimulator
    answering: PlanAnswering
    now: Plan
    roles: RolesNow


def _begin(scenario: PosttrainScenario, parent: int) -> None:
    signal_at_end_of_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    _Process.simulator = PlanSimulator(set_up_posttrain(scenario))
    _Process.answering = PlanAnswering(_Process.simulator, _switch_seconds)


def _look(batches: Sequence[Batch]) -> tuple[tuple[Columns, ...], int]:
    group = _Process.simulator.setup.scenario.trajectories.group
    _Process.answering.look(batches, Measured.of(batches[0], group))
    return _Process.answering.columns, _Process.answering.seen


def _answer(questions: Sequence[Question], now: Plan, roles: RolesNow) -> tuple[float, ...]:
    _Process.now, _Process.roles = now, roles
    return tuple(_Process.answering.answer(each) for each in questions)


def _switch_seconds(plan: Plan) -> float:
    return _switch(_Process.now, plan, _Process.roles).seconds


def _switch(now: Plan, plan: Plan, roles: RolesNow) -> SwitchPlan:
    simulator = _Process.simulator
    return switch_plan(simulator.setup, simulator.training, now, plan, roles)
