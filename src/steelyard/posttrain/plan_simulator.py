"""Predicts the step time of a plan by simulating the loop on known trajectories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from steelyard.balance.plan import CLEAR, LengthsChanged, Measured, Plan, PlannerState, Simulated, World
from steelyard.errors import UserError
from steelyard.posttrain.planning import Training, as_written, buckets_of, planner_mode, world_of
from steelyard.posttrain.recent import Batch
from steelyard.posttrain.record import StepRecord
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.posttrain.trial import Trial, loop_of
from steelyard.records import Trajectory
from steelyard.scenario.posttrain import AdmissionSpec

LEARNT_TRAJECTORIES = 256  # trajectories that the estimator learns before a plan is simulated
SIMULATED = 4  # steps of a simulation
CONFIRMED = 12  # steps of the longer simulation that confirms a plan
_MOST_GPUS = 16_384  # of a cluster to plan, which takes half a minute with few trajectories
_SAMPLED = 3  # steps of a run, evenly spaced, on which the best fixed plan is searched
_FINALISTS = 2  # plans that are run to the end for it, at most
_CLOSE = 0.1  # of a step: plans this close may be in the wrong order on a sample of steps


@dataclass(frozen=True)
class Replay:
    """Repeats the same groups, each time under the names of new prompts."""

    groups: Sequence[Batch]
    prompts: int  # of a step

    def step(self, step: int) -> list[Trajectory]:
        return self.draw(range(step * self.prompts, (step + 1) * self.prompts))

    def draw(self, prompts: Sequence[int], samples: range | None = None) -> list[Trajectory]:
        found: list[Trajectory] = []
        for prompt in prompts:
            group = self.groups[prompt % len(self.groups)]
            for sample in range(len(group)) if samples is None else samples:
                each = group[sample % len(group)]
                found.append(replace(each, id=f"{prompt // self.prompts}/{prompt}/{sample}", prompt=f"{prompt}"))
        return found


class PlanSimulator:
    """Simulates plans with a run's engines, training layouts and policies. ``watch`` is called with the number of
    simulations so far."""

    def __init__(self, setup: PosttrainSetup, watch: Callable[[int], None] = lambda made: None) -> None:
        scenario = setup.scenario
        if scenario.gpus > _MOST_GPUS:
            raise UserError(f"{scenario.source}: {scenario.gpus:,} GPUs; plans are made for up to {_MOST_GPUS:,}")
        self.setup = setup
        self._watch, self._simulations = watch, 0
        self.training = Training(setup, scenario.gpus)
        self.world: World = world_of(setup, self.training, scenario.gpus, planner_mode(scenario))
        self._rolled_out: dict[tuple[object, object], float] = {}  # by engines and batch
        self._trials: dict[object, Trial] = {}  # on the batches that plans were last simulated with
        self._tried_on: object = None
        self._measured: dict[object, Measured] = {}
        self.written = Plan(self.training.written, buckets_of(scenario), 0.0, 0.0, 0.0)

    def measured(self, batch: Batch) -> Measured:
        """The columns of a batch for planners; computed once per batch."""
        key = _name(batch)
        if key not in self._measured:
            self._measured[key] = Measured.of(batch, self.setup.scenario.trajectories.group)
        return self._measured[key]

    def forget_all_but(self, batches: Sequence[Batch]) -> None:
        """Drop what is known of all other batches, which are not asked about again."""
        kept = {_name(batch) for batch in batches}
        self._measured = {name: found for name, found in self._measured.items() if name in kept}
        self._rolled_out = {key: found for key, found in self._rolled_out.items() if key[1] in kept}

    def alike(self, batches: Sequence[Batch]) -> list[Batch]:
        """The newest batch, which comes first, and earlier ones back to the last change of lengths."""
        newest = self.measured(batches[0])
        return list(takewhile(lambda batch: not LengthsChanged().apart(self.measured(batch), newest), batches))

    def step_seconds(self, plan: Plan, batches: Sequence[Batch], known: Batch, measured: int = SIMULATED) -> float:
        """The mean step time over batches once the loop has settled. The estimator has learnt from ``known`` before.

        If stages take turns, each batch is simulated alone. If rollout is always done before training, only training
        counts. Otherwise batches share engines, and the whole loop is simulated.
        """
        if not self.setup.scenario.staleness_bound:
            self._count()
            fixed = self._fixed(plan)
            return float(np.mean([_alone(fixed, self._replay([batch]), known).synced for batch in batches[:measured]]))
        least = self.least_seconds(plan, batches)
        clear = self.rolled_out(plan, batches[0], known) <= CLEAR * least
        if clear or all(self.rolled_out(plan, batch, known) <= least for batch in batches):
            return least
        self._count()
        return max(least, self._trial(plan, batches, known).seconds(measured))

    def _trial(self, plan: Plan, batches: Sequence[Batch], known: Batch) -> Trial:
        """The trial of a plan on these batches. An earlier trial on them is continued."""
        tried_on = tuple(map(_name, batches)), _name(known)
        if tried_on != self._tried_on:
            self._trials.clear()
            self._tried_on = tried_on
        if plan.layout not in self._trials:
            fixed = replace(self._fixed(plan), tasks=self._replay(batches))
            self._trials[plan.layout] = Trial(fixed, known, CONFIRMED)
        return self._trials[plan.layout]

    def _fixed(self, plan: Plan) -> PosttrainSetup:
        """A run with a fixed plan."""
        fixed = as_written(self.setup, self.training, plan)
        return replace(fixed, scenario=fixed.scenario.replace(pool="none"))

    def rolled_out(self, plan: Plan, batch: Batch, known: Batch) -> float:
        """Seconds until the last trajectory of a batch has ended, alone on the engines. Simulated once per batch,
        whatever the training layout."""
        _, engines = plan.layout
        key = engines, _name(batch)
        if key not in self._rolled_out:
            self._count()
            fixed = as_written(self.setup, self.training, plan)
            self._rolled_out[key] = _rolled_out(fixed, self._replay([batch]), known)
        return self._rolled_out[key]

    def least_seconds(self, plan: Plan, batches: Sequence[Batch]) -> float:
        """Mean seconds of training and weight sync: a lower bound of a step."""
        seconds, packing = self.training.seconds, self.setup.scenario.training.packing
        train = [seconds(plan.training, self.measured(each).context, packing) for each in batches]
        return float(np.mean(train)) + self.world.sync(plan.training, plan.buckets)

    def planner(self, batches: Callable[[PlannerState], Sequence[Batch]], known: Callable[[], Batch]) -> Simulated:
        """A planner that simulates plans on ``batches``, with an estimator that has learnt from ``known``."""
        return Simulated(
            self.world,
            lambda plan, state: self.step_seconds(plan, batches(state), known()),
            lambda plan, state: self.step_seconds(plan, batches(state), known(), CONFIRMED),
            glance=lambda plan, state: self.rolled_out(plan, batches(state)[0], known()),
            least=lambda plan, state: self.least_seconds(plan, batches(state)),
        )

    def _count(self) -> None:
        """Count a simulation."""
        self._watch(self._simulations)
        self._simulations += 1

    def _replay(self, batches: Sequence[Batch]) -> Replay:
        asked = self.setup.scenario.trajectories
        known = [each for batch in batches for each in batch]
        groups = [known[first : first + asked.group] for first in range(0, len(known), asked.group)]
        return Replay(groups, asked.prompts)


def _name(batch: Batch) -> tuple[object, ...]:
    """Identifies a batch. Trajectories of the same prompts by another policy are another batch."""
    return len(batch), *((each.id, each.turns) for each in (*batch[:1], *batch[-1:]))


def _alone(setup: PosttrainSetup, tasks: Replay, known: Batch) -> StepRecord:
    """The step of a batch that is alone on the engines."""
    once = setup.scenario.replace(steps=1)
    return loop_of(replace(setup, tasks=tasks, scenario=once), known).step(0.0, 0)


def _rolled_out(setup: PosttrainSetup, tasks: Replay, known: Batch) -> float:
    alone = {"mode": "split", "staleness": None, "streaming": False, "pool": "none", "admission": AdmissionSpec()}
    training = setup.scenario.training.replace(generates=False)
    once = setup.scenario.replace(steps=1, training=training, **alone)
    loop = loop_of(replace(setup, tasks=tasks, scenario=once), known)
    loop.step(0.0, 0)
    return loop.record.last_end


def best_in_hindsight(setup: PosttrainSetup, watch: Callable[[int], None] = lambda made: None) -> list[PosttrainSetup]:
    """Set-ups with the fixed plans that may be best in hindsight, when all trajectories are known. Candidates are the
    scenario's own plan and the two best on a sample of steps. The second best is returned too if it is close."""
    simulator, steps = PlanSimulator(setup, watch), setup.scenario.steps
    chosen = np.unique(np.linspace(0, steps - 1, min(steps, _SAMPLED)).round().astype(int)).tolist()
    batches = [list(setup.tasks.step(step)) for step in chosen]
    plan, written = best_plan(simulator, batches, confirm=False), simulator.written
    given = replace(written, step=simulator.step_seconds(written, batches, batches[0][:LEARNT_TRAJECTORIES]))
    unlike = {each.layout: each for each in (plan.runner_up, plan, given) if each is not None}
    best = sorted(unlike.values(), key=lambda each: each.step)[:_FINALISTS]
    close = [each for each in best if each.step <= (1 + _CLOSE) * best[0].step]
    return [as_written(setup, simulator.training, each) for each in close]


def best_plan(simulator: PlanSimulator, batches: Sequence[Batch], *, confirm: bool = True) -> Plan:
    """The plan with the least time over all batches, among those worth a simulation. Confirmation is not needed if the
    plan is then run to the end."""
    lengths = [simulator.measured(batch) for batch in batches]
    planner = simulator.planner(lambda _: batches, lambda: batches[0][:LEARNT_TRAJECTORIES])
    planner = replace(planner, look=lambda _: lengths, confirm=planner.confirm if confirm else None)
    plan = planner.plan(PlannerState(0, lengths[0]))
    assert plan is not None, "there was none before it"
    return plan
