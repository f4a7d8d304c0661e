"""Planning anew while the loop runs: what was measured goes to a planner, and what it says is carried out.

Roles change when new weights have just been sent: caches are worthless then anyway, so whoever is under way on an
engine that goes loses nothing but its place. Engines that stay go on meanwhile; the next batch begins once all are up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from steelyard.balance.plan import (
    Measured,
    Moved,
    Payback,
    Plan,
    Planner,
    Simulated,
    State,
    foretold,
    oracle,
)
from steelyard.balance.plan.asked import Asked
from steelyard.posttrain.foresight import TAUGHT, Foresight
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.planning import MODEL_PLANNERS
from steelyard.posttrain.recent import Batch, EndedBatches, Recent
from steelyard.posttrain.record import Reallocation, StepRecord
from steelyard.posttrain.switch import Switch
from steelyard.workload.trajectories.drift import Learning

_STEPS = 3  # after a change that its gain is measured over


class Replanner:
    """Asks a planner after each step of a loop. All but the oracle know only what has ended by then."""

    def __init__(self, loop: Loop, foresight: Foresight) -> None:
        self._loop, self._foresight = loop, foresight
        self._scenario = loop.setup.scenario
        self._switch = Switch(loop, foresight.training)
        self._seconds: list[float] = []  # that changes have taken
        self._ended = EndedBatches(loop)
        self._recent: Sequence[Batch] = ()
        self._told: tuple[int, list[Batch]] = -1, []
        self._plan: Plan | None = None
        self._changed: Reallocation | None = None  # last
        self._planner = self._made()
        self.settled = False  # whether the planner left things as they are when it was last asked

    def after(self, step: StepRecord) -> float:
        """Ask, and change what is to be changed; when the next batch may begin."""
        self.measure(step)
        latest = self._ended.latest(step)
        if latest is None:
            return step.synced
        self._recent = self._foresight.alike(latest.batches)
        state = self._state(step, latest)
        plan = self._planner.plan(state)
        if self._loop.journal is not None:
            self._loop.journal.note("planner", Asked.of(state), [] if plan is None else [plan])
        self.settled = plan is None or state.plan is None or plan.layout == state.plan.layout
        if self.settled or plan is None or state.plan is None:
            return step.synced
        return self._change(plan, state.plan, step)

    def _change(self, plan: Plan, now: Plan, step: StepRecord) -> float:
        ready, done = self._switch.carry_out(plan, now, step.synced)
        self._plan = plan
        self._seconds.append(done - step.synced)
        gain = (now.step if plan.instead is None else plan.instead) - plan.step
        record = self._loop.record
        before = record.seconds(step.step)
        self._changed = Reallocation(step.step, f"{now} -> {plan}", gain, done - step.synced, before, plan.step)
        record.reallocations.append(self._changed)
        return ready

    def measure(self, step: StepRecord) -> None:
        """What the last change has brought: the first step since is not counted, as it waited for the change."""
        last = self._changed
        if last is not None and step.step > last.step + 1 and len(last.after) < _STEPS:
            last.after.append(self._loop.record.seconds(step.step))

    # -- what is known ------------------------------------------------------------------------------------------

    def _state(self, step: StepRecord, latest: Recent) -> State:
        measured = latest.measured(0)
        if self._plan is None:
            self._plan = foretold(self._foresight.world, self._foresight.written, measured)
        return State(
            step.step,
            measured,
            self._plan,
            train=step.time.seconds,
            rollout=latest.seconds,
            queued=max(0.0, latest.wanted - 1.0),
            active=min(1.0, latest.wanted),
            switches=tuple(self._seconds),
            seen=sum(map(len, self._recent)),
            left=self._scenario.steps - step.step - 1,
            took=self._took(step.step),
        )

    def _took(self, step: int) -> float | None:
        """Seconds of a step, if all that it was trained on has been rolled out since roles last changed."""
        changed = -1 if self._changed is None else self._changed.step
        return self._loop.record.seconds(step) if step > changed + 1 + self._scenario.behind else None

    def _longest(self) -> list[Measured]:
        """Of the batches before the newest one, that with the longest trajectory."""
        others = [self._foresight.measured(batch) for batch in self._recent[1:]]
        return [max(others, key=lambda each: int(each.generated.max()))] if others else []

    def _coming(self, step: int) -> list[Batch]:
        """Batches that the next steps train on; only the oracle is told."""
        spec, tasks = self._scenario.trajectories.learning, self._loop.setup.tasks
        learnt = None
        if spec is not None:
            learnt = sum(Learning(spec).effective(each.staleness) for each in self._loop.record.steps)
        last = self._scenario.steps - 1
        steps = range(min(step + 1, last), min(step + 1 + self._scenario.behind, last) + 1)
        if self._told[0] != step:  # the same objects each time, so that what was run with them is known
            self._told = step, [list(tasks.step(each, learnt)) for each in steps]
        return self._told[1]

    # -- planners by name ---------------------------------------------------------------------------------------

    def _made(self) -> Planner:
        name = self._scenario.planner
        if name in MODEL_PLANNERS:
            return MODEL_PLANNERS[name](self._foresight.world)
        return self._oracle() if name == "oracle" else self._simulated()

    def _payback(self) -> Payback:
        """Simulated times tell plans apart that models do not."""
        return Payback(margin=0.02, horizon=20)

    def _cost(self, plan: Plan, state: State) -> float | None:
        """Of a change."""
        return None if state.plan is None else self._switch.seconds(plan, state.plan)

    def _simulated(self) -> Simulated:
        return replace(
            self._foresight.planner(lambda _: self._recent, self._taught),
            look=lambda state: [state.measured, *self._longest()],
            change=self._cost,
            triggers=Moved(),
            payback=self._payback(),
        )

    def _oracle(self) -> Simulated:
        def coming(state: State) -> Sequence[Batch]:
            return self._coming(state.step)

        knows = oracle(
            self._foresight.planner(coming, self._taught), lambda state: self._foresight.measured(coming(state)[0])
        )
        return replace(knows, change=self._cost, payback=self._payback())

    def _taught(self) -> Batch:
        return self._recent[0][:TAUGHT]
