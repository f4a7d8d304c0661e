"""Planning while the loop runs: measurements go to the core's planner, and its changes are carried out.

Roles change right after a weight sync. Caches are invalid then anyway, so a trajectory on a removed engine loses only
its seat. Other engines continue. The next batch begins once all engines are up, unless the way to switch lets it begin.

A hybrid pool lends and gives back replicas between two changes. A change takes over all GPUs as the pool has left them:
lent replicas are a part of the training job like any other. Then another pool is formed of the new layout.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from steelyard.balance.plan import Bucket, Plan
from steelyard.balance.plan.planning import Planning
from steelyard.balance.plan.questions import (
    ChangePlan,
    PlanChanged,
    PlansSimulated,
    PlanWanted,
    Pooled,
    Simulate,
)
from steelyard.balance.pool import FormPool
from steelyard.posttrain.hybrid import PoolDriver
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.plan_answers import PlanAnswering
from steelyard.posttrain.plan_simulator import PlanSimulator
from steelyard.posttrain.recent import Batch, EndedBatches
from steelyard.posttrain.record import RoleChange, StepRecord
from steelyard.posttrain.switch import Switch

_STEPS = 3  # steps after a change over which its gain is measured


class Replanner:
    """Reports each step of a loop to the planner and answers its questions. All planners but the oracle know only
    trajectories that have ended."""

    def __init__(self, loop: Loop, simulator: PlanSimulator) -> None:
        self._loop, self._simulator = loop, simulator
        self._scenario = loop.setup.scenario
        self._switch = Switch(loop, simulator.training)
        self._ended = EndedBatches(loop)
        self._answering = PlanAnswering(simulator, self._switch_seconds)
        self._next_batches: tuple[int, list[Batch]] = -1, []
        self._changed: RoleChange | None = None  # last
        self._wanted: ChangePlan | None = None  # a change to carry out
        self._due = 0.0  # when that may be carried out
        self._pool: PoolDriver | None = None
        self._forms_pool = False  # once the layout is in force
        self._moved = -1  # the last step at whose end the pool had changed something
        self._split = 0, 0  # GPUs of each stage in the step before
        loop.driver.on(Simulate, self._simulate)
        loop.driver.on(ChangePlan, self._note_change)
        loop.driver.on(FormPool, self._note_pool)
        if self._scenario.pool != "none":
            self._form_pool(0.0)

    def after(self, step: StepRecord) -> float:
        """Report a step and carry out a change of plan, if any. Returns when the next batch may begin."""
        self._measure(step)
        if self._forms_pool:
            self._form_pool(step.synced)
        ready = step.synced
        if self._wanted is not None and self._due <= step.synced:
            ready = self._change(self._wanted, step.synced)
        latest = self._ended.latest(step)
        if latest is None:
            return ready
        if self._planning.pending is None:
            knows_coming = self._scenario.planner == "oracle"
            coming = self._coming(step.step) if knows_coming else ()
            self._answering.look(latest.batches, latest.measured(0), coming)
            self._loop.driver.tell(
                PlanWanted(
                    ready,
                    step.step,
                    self._answering.columns,
                    newest=int(knows_coming),
                    train=step.time.seconds,
                    rollout=latest.seconds,
                    queued=max(0.0, latest.wanted - 1.0),
                    active=min(1.0, latest.wanted),
                    seen=self._answering.seen,
                    left=self._scenario.steps - step.step - 1,
                    took=self._took(step.step),
                    pooled=self._pooled(),
                )
            )
            if self._wanted is not None:
                self._due = ready + self._switch.prepare(self._wanted.plan, self._wanted.now)
                if self._due <= ready and self._scenario.planning == "at-once":
                    return self._change(self._wanted, ready)
        if self._pool is not None:
            self._pool.measured(step, latest)
        return ready

    # -- carrying out commands ----------------------------------------------------------------------------------

    def _note_change(self, command: ChangePlan, _: float) -> None:
        self._wanted = command

    def _note_pool(self, _: FormPool, __: float) -> None:
        self._forms_pool = True

    def _form_pool(self, at: float) -> None:
        self._forms_pool = False
        self._pool = self._loop.trainer.gate = PoolDriver(self._loop, at, ended=self._ended)

    def _change(self, command: ChangePlan, at: float) -> float:
        """Change roles. Returns when the next batch may begin."""
        plan, now, record = command.plan, command.now, self._loop.record
        self._wanted = None
        if self._pool is not None:
            now = self._laid_out(now)  # which may have changed since the plan was made
            self._pool.close(at)
            self._pool = None
        ready, done = self._switch.carry_out(plan, now, at)
        gain = (now.step if plan.instead is None else plan.instead) - plan.step
        before = record.seconds(command.step)
        self._changed = RoleChange(command.step, f"{now} -> {plan}", gain, done - at, before, plan.step)
        record.reallocations.append(self._changed)
        self._over(PlanChanged(done, command.step, done - at), ready)
        return ready

    def _over(self, event: PlanChanged, ready: float) -> None:
        """The change is over, if nothing else begins before that: nothing is planned meanwhile."""
        tell = self._loop.driver.tell
        if self._scenario.switch == "swap" and event.at > ready:
            self._loop.stage.later(event.at, lambda _: tell(event))
        else:
            tell(event)

    def _simulate(self, command: Simulate, at: float) -> None:
        """Answer the planner's questions, in no virtual time."""
        seconds = tuple(self._answering.answer(question) for question in command.questions)
        self._loop.driver.tell(PlansSimulated(at, command.ask, seconds))

    def _switch_seconds(self, plan: Plan) -> float:
        return self._switch.seconds(plan, self._laid_out(self._planning.plan))

    @property
    def _planning(self) -> Planning:
        planning = self._loop.driver.core.planning
        assert planning is not None, "its core plans"
        return planning

    # -- what is known ------------------------------------------------------------------------------------------

    def _pooled(self) -> Pooled | None:
        """What the pool has made of the plan; None while it is as it was."""
        plan = self._planning.plan
        laid_out = self._laid_out(plan)
        return None if laid_out.layout == plan.layout else Pooled(laid_out.training, laid_out.buckets)

    def _laid_out(self, plan: Plan) -> Plan:
        """The plan with the GPUs that each stage has now. Replicas on their way are in none."""
        if self._pool is None:
            return plan
        option = self._simulator.training.lent(self._pool.layout)
        engines = Counter(len(tenure.gpus) for tenure in self._loop.roles.engines.values())
        if engines == plan.replicas:
            return replace(plan, training=option)
        upto = {
            bucket.tp: bucket.upto for bucket in plan.buckets
        }  # of several of a degree, the last is for the longest
        buckets = tuple(Bucket(tp, engines[tp], upto.get(tp, 0)) for tp in sorted(engines))
        return replace(plan, training=option, buckets=buckets)

    def _measure(self, step: StepRecord) -> None:
        """Record the step times after the last change. The first step waited for the change and does not count."""
        last = self._changed
        if last is not None and step.step > last.step + 1 and len(last.after) < _STEPS:
            last.after.append(self._loop.record.seconds(step.step))

    def _took(self, step: int) -> float | None:
        """Seconds of a step; None if some of its samples were generated before the last change of roles."""
        split = self._loop.record.steps[step].training_gpus, self._loop.record.steps[step].rollout_gpus
        if self._pool is not None and split != self._split:
            self._moved = step - 1
        self._split = split
        changed = max(self._moved, -1 if self._changed is None else self._changed.step)
        return self._loop.record.seconds(step) if step > changed + 1 + self._scenario.staleness_bound else None

    def _coming(self, step: int) -> list[Batch]:
        """Batches of the next steps, for the oracle only."""
        tasks = self._loop.setup.tasks
        last = self._scenario.steps - 1
        steps = range(min(step + 1, last), min(step + 1 + self._scenario.staleness_bound, last) + 1)
        if self._next_batches[0] != step:  # the same objects each time, so that their simulations are found again
            self._next_batches = step, [list(tasks.step(each)) for each in steps]
        return self._next_batches[1]
