"""A planner asked like all other parts of the core: an event in, commands out, both of which a log can hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steelyard.balance.plan.measured import Measured
from steelyard.balance.plan.world import Plan, Planner, State


@dataclass(frozen=True, slots=True)
class Columns:
    """What was measured of trajectories, in plain numbers."""

    generated: tuple[int, ...]
    tools: tuple[float, ...]
    turns: tuple[int, ...]
    prompt: tuple[int, ...]
    context: tuple[int, ...]
    read: tuple[int, ...]
    group: int

    @staticmethod
    def of(measured: Measured) -> Columns:
        """The same numbers."""
        return Columns(
            tuple(measured.generated.tolist()),
            tuple(measured.tools.tolist()),
            tuple(measured.turns.tolist()),
            tuple(measured.prompt.tolist()),
            tuple(measured.context.tolist()),
            tuple(measured.read.tolist()),
            measured.group,
        )

    def measured(self) -> Measured:
        """As planners take it."""
        return Measured(
            np.array(self.generated, dtype=np.int64),
            np.array(self.tools, dtype=np.float64),
            np.array(self.turns, dtype=np.int64),
            np.array(self.prompt, dtype=np.int64),
            np.array(self.context, dtype=np.int64),
            np.array(self.read, dtype=np.int64),
            self.group,
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """A step is over: shall anything be changed? Fields as in ``State``."""

    step: int
    measured: Columns
    plan: Plan | None
    train: float
    rollout: float
    queued: float
    active: float
    rejected: int
    switches: tuple[float, ...]
    seen: int
    left: int | None
    took: float | None = None

    @staticmethod
    def of(state: State) -> Asked:
        """What a planner is asked with a state."""
        return Asked(
            state.step,
            Columns.of(state.measured),
            state.plan,
            state.train,
            state.rollout,
            state.queued,
            state.active,
            state.rejected,
            tuple(state.switches),
            state.seen,
            state.left,
            state.took,
        )

    def state(self) -> State:
        """As planners take it."""
        return State(
            self.step,
            self.measured.measured(),
            self.plan,
            self.train,
            self.rollout,
            self.queued,
            self.active,
            self.rejected,
            self.switches,
            self.seen,
            self.left,
            self.took,
        )


@dataclass(frozen=True)
class Answering:
    """A planner behind the interface of all other parts."""

    planner: Planner

    def decide(self, event: Asked) -> list[Plan]:
        """The plan to change to, if any."""
        plan = self.planner.plan(event.state())
        return [] if plan is None else [plan]
