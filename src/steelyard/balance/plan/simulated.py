"""Simulation in the loop: a model proposes plans, and simulated steps decide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from math import inf

from steelyard.balance.plan.buckets import Frontiers
from steelyard.balance.plan.change import Payback, Trigger, Triggers
from steelyard.balance.plan.forecast import predicted
from steelyard.balance.plan.measured import Measured
from steelyard.balance.plan.search import Search, nothing_fits
from steelyard.balance.plan.step_times import StepTimes
from steelyard.balance.plan.world import Bucket, Plan, PlannerState, TrainOption, World, rounded
from steelyard.records import Ints

# Chosen by hand: they trade simulations for the quality of plans (`python -m bench.planner`).
_MIN_GAIN = 0.005  # of a step: plans that cannot gain more are not simulated
_TIE = 0.02  # of a step: plans that differ by no more count as equally good
_CLOSE = 0.05  # of a step: plans that differ by no more may be in the wrong order after a short simulation
_LAYOUTS = 3  # training layouts on the same number of GPUs that ``least`` chooses from
CLEAR = 0.6  # of ``least``: a rollout that takes no longer than this never delays training
_REACH = 4  # numbers of training GPUs considered next, in each direction
_STRIDE = 24  # successive numbers of training GPUs differ by at least 1/24 of all GPUs

Simulate = Callable[[Plan, PlannerState], float]
"""Seconds of the next step with a plan, or the mean of some steps, by simulation."""


def _by_model(plan: Plan, state: PlannerState) -> float:
    return plan.step


def _nothing(plan: Plan, state: PlannerState) -> float:
    return 0.0


def _unknown(plan: Plan, state: PlannerState) -> float | None:
    return None


def _of_late(state: PlannerState) -> Sequence[Measured]:
    return [state.measured]


@dataclass
class Simulated:
    """Our planner. It starts with the number of training GPUs that is best by the model, simulates plans with it, then
    with more and fewer while that gains. The best plan is chosen if the change pays.

    For each number of training GPUs there are plans with buckets by length and with each degree alone: the model
    assumes a perfect router for the former, and the latter need none. The driver answers:

    - ``simulate``: the step time of a plan; ``confirm``: the same by a longer simulation. The best of several short
      simulations is often just lucky, so plans close to it are confirmed before one is chosen.
    - ``glance``: a faster prediction, by which plans are shortlisted for simulation.
    - ``least``: a lower bound. Plans whose bound is above the best plan are not simulated.
    - ``change``: seconds of a change to a plan; None: as long as earlier changes. Plans are compared by their steps and
      their share of it, so one that keeps engines may be better than one that is faster once others have started.
    - ``look``: batches of trajectories. The model proposes plans for each.

    Measured steps correct predictions (`StepTimes`). If they exceed the prediction of another plan, it plans again.
    """

    world: World
    simulate: Simulate
    confirm: Simulate | None = None  # ``simulate`` if not given
    shortlist: int = 2  # plans that are simulated with each number of training GPUs
    glance: Simulate = _by_model
    least: Simulate = _nothing
    change: Callable[[Plan, PlannerState], float | None] = _unknown
    triggers: Trigger = field(default_factory=Triggers)
    payback: Payback = field(default_factory=Payback)
    look: Callable[[PlannerState], Sequence[Measured]] = _of_late
    simulations: int = 0
    _last: PlannerState | None = None
    _times: StepTimes = field(default_factory=StepTimes)
    _frontiers: Frontiers = field(default_factory=Frontiers)

    def plan(self, state: PlannerState) -> Plan | None:
        self._times.take(state)
        if self.triggers.due(state, self._last):
            self._times.forget()
        elif not self._times.exceed_predictions(by=_TIE):
            return None
        self._last = state
        self._times.begin()
        batches = self.look(state)
        self._frontiers.keep(batches)
        proposed = self.candidates(batches)
        if not proposed:
            raise nothing_fits(self.world, batches[0])
        now = self._in_force(batches[0], state)
        first, *others = self._tried(proposed[0].training.gpus, now, batches, state)
        why = _why(first, others)
        if not others:
            rest = (each for each in proposed if each.layout != first.layout)
            others = [self._with_bound(each, state) for each in islice(rest, 1)]
        plan = replace(first, why=why, runner_up=others[0] if others else None)
        self._times.chosen(plan.step, others[0].step if others else inf)
        if state.plan is None:
            return plan
        if plan.layout == state.plan.layout:
            return None
        now = now or self._confirmed(predicted(self.world, state.plan, batches[0]), state)
        if not self.payback.pays(now.step, plan.step, state, self.change(plan, state)):
            self._times.chosen(now.step, plan.step)
            return None
        return replace(plan, instead=now.step)

    def _in_force(self, measured: Measured, state: PlannerState) -> Plan | None:
        """The plan in force, with its step time from prediction and measured steps; None before a step was measured."""
        if state.plan is None or not self._times.has_measured(state.plan):
            return None
        plan = predicted(self.world, state.plan, measured)
        return self._times.in_force(plan, self._step_seconds(plan, state, self.confirm))

    def candidates(self, batches: Sequence[Measured], gpus: int | None = None) -> list[Plan]:
        """The best plans by the model, best first, without repeats; only with ``gpus`` training GPUs if given."""
        found: dict[object, Plan] = {}
        options = [each for each in self.world.options if gpus in (None, each.gpus)]
        for measured in batches:
            world = replace(self.world, train=_timed_once(self.world, measured), options=options)
            alone = [replace(world, replicas={tp: model}, by_length=False) for tp, model in world.replicas.items()]
            for each in (world, *alone):
                search, key = Search(each, self._frontiers.of), (gpus, each.by_length, *each.replicas)
                for plan in self._frontiers.plans(measured, key, search.plans):
                    found.setdefault(plan.layout, plan)
        return sorted(found.values(), key=_order)

    def _tried(self, gpus: int, now: Plan | None, batches: Sequence[Measured], state: PlannerState) -> list[Plan]:
        """Simulated plans, the chosen one first; ``now`` is included. With ``confirm``, only confirmed plans can be
        chosen: those close to the best by short simulations, and others that seem better than the best confirmed one.
        """
        tried: dict[object, Plan] = {} if now is None else {now.layout: now}
        self._climb(gpus, tried, batches, state, inf if now is None else now.step)
        if self.confirm is None:
            return self._safest_first(tried.values(), state)
        confirmed: dict[object, Plan] = {} if now is None else {now.layout: now}
        while unconfirmed := self._unconfirmed(tried, confirmed, state):
            for plan in unconfirmed:
                confirmed[plan.layout] = self._confirmed(plan, state)
            best = self._safest_first(confirmed.values(), state)[0]
            total = self._total(best, state)
            if total * (1 - _MIN_GAIN) > min(self._total(plan, state) for plan in tried.values()):
                # Plans were skipped for one that turned out worse.
                self._climb(best.training.gpus, tried, batches, state, total)
        rest = [plan for plan in tried.values() if plan.layout not in confirmed]
        return [*self._safest_first(confirmed.values(), state), *sorted(rest, key=self._by_total(state))]

    def _climb(
        self, gpus: int, tried: dict[object, Plan], batches: Sequence[Measured], state: PlannerState, best: float
    ) -> None:
        """Simulate plans with ``gpus`` training GPUs, then with more and fewer than the best plan, while that gains.
        ``best`` is the best step time so far, with its share of the change."""
        before, neighbours = inf, [[gpus]]
        while True:
            for numbers in neighbours:
                worth = (self._worth_simulating(number, best, batches, state) for number in numbers)
                for plan in next(filter(None, worth), []):
                    if plan.layout not in tried and self._may_gain(plan, best, state):
                        tried[plan.layout] = self._simulated(plan, state)
                        best = min(best, self._total(tried[plan.layout], state))
            if best >= before * (1 - _MIN_GAIN):
                return
            before = best
            neighbours = self._neighbours(min(tried.values(), key=self._by_total(state)).training.gpus)

    def _may_gain(self, plan: Plan, best: float, state: PlannerState) -> bool:
        return self._least(plan, state) + self._share(plan, state) < best * (1 - _MIN_GAIN)

    def _share(self, plan: Plan, state: PlannerState) -> float:
        """Seconds of a change to a plan, as a share for each step over which it has to pay."""
        if state.plan is None or plan.layout == state.plan.layout:
            return 0.0
        return (self.change(plan, state) or 0.0) / self.payback.steps(state)

    def _total(self, plan: Plan, state: PlannerState) -> float:
        """A step with its share of the change."""
        return rounded(plan.step + self._share(plan, state))

    def _by_total(self, state: PlannerState) -> Callable[[Plan], tuple[float, float]]:
        return lambda plan: (self._total(plan, state), plan.train + plan.rollout)

    def _neighbours(self, gpus: int) -> list[list[int]]:
        """The next larger numbers of training GPUs, and the next smaller ones. In each direction, the first number with
        a plan worth a simulation is tried."""
        numbers = sorted({each.gpus for each in self.world.options if self.world.rollout_gpus(each)})
        apart = self.world.gpus // _STRIDE
        return [
            [each for each in numbers if each > gpus and each >= gpus + apart][:_REACH],
            [each for each in reversed(numbers) if each < gpus and each <= gpus - apart][:_REACH],
        ]

    def _worth_simulating(self, gpus: int, best: float, batches: Sequence[Measured], state: PlannerState) -> list[Plan]:
        """Plans with ``gpus`` training GPUs that are worth a simulation: the layout with the lowest bound among the
        best by the model, with the rollouts that are best by ``glance``, or the first that is clearly fast enough; and
        with the engines that are there."""
        measured = state.measured
        longest, train = int(measured.context.max()), self.world.train_seconds
        fit = [each for each in self.world.options if each.gpus == gpus and each.budget >= longest]
        timed = sorted((train(each, measured.context), place) for place, each in enumerate(fit))[:_LAYOUTS]
        found: dict[object, Plan] = {}
        kept = self._kept(fit, state)
        for plan in (*kept, *self.candidates(batches, gpus)):
            alike = [replace(plan, training=fit[place], train=seconds) for seconds, place in timed]
            chosen = min(alike, key=lambda each: self._least(each, state), default=plan)
            if self._may_gain(chosen, best, state):
                found.setdefault(chosen.layout, chosen)
        seen: list[tuple[float, int, Plan]] = []
        for place, plan in enumerate(found.values()):
            seen.append((rounded(self.glance(plan, state)), place, plan))
            if self.world.mode == "overlapped" and seen[-1][0] <= CLEAR * self._least(plan, state):
                return [*(each for _, _, each in seen[: len(kept)] if each is not plan), plan]
        most = self.shortlist + len(kept)
        return [plan for _, _, plan in sorted(seen)[:most]]

    def _kept(self, fit: Sequence[TrainOption], state: PlannerState) -> list[Plan]:
        """The engines of the plan in force on the GPUs that a layout leaves, as many as fit, largest first; and more of
        the same on GPUs that are left over. No more than these have to start."""
        if state.plan is None or not fit:
            return []
        had, left = state.plan.replicas, self.world.rollout_gpus(fit[0])
        counts: dict[int, int] = {}
        for most in (had, dict.fromkeys(had, self.world.gpus)):
            for tp in sorted(had, reverse=True):
                more = min(most[tp], left // tp)
                counts[tp] = counts.get(tp, 0) + more
                left -= more * tp
        upto = {bucket.tp: bucket.upto for bucket in state.plan.buckets}
        buckets = tuple(Bucket(tp, counts[tp], upto[tp]) for tp in sorted(counts) if counts[tp])
        if not buckets or buckets == state.plan.buckets:
            return []
        return [predicted(self.world, Plan(fit[0], buckets, 0.0, 0.0, 0.0), state.measured)]

    def _with_bound(self, plan: Plan, state: PlannerState) -> Plan:
        """A plan that was not worth a simulation, with its lower bound as step time."""
        return replace(plan, step=max(plan.step, self._least(plan, state)))

    def _confirmed(self, plan: Plan, state: PlannerState) -> Plan:
        """A plan with its confirmed step time."""
        return self._times.of(plan, self._step_seconds(plan, state, self.confirm))

    def _simulated(self, plan: Plan, state: PlannerState) -> Plan:
        return self._times.of(plan, self._step_seconds(plan, state))

    def _step_seconds(self, plan: Plan, state: PlannerState, simulate: Simulate | None = None) -> float:
        self.simulations += 1
        return rounded((simulate or self.simulate)(plan, state))

    def _unconfirmed(
        self, tried: Mapping[object, Plan], confirmed: Mapping[object, Plan], state: PlannerState
    ) -> list[Plan]:
        """Plans to confirm: those close to the best by short simulations, and those that seem better than the best
        confirmed one."""
        close = (1 + _CLOSE) * min(self._total(plan, state) for plan in tried.values())
        best = min((self._total(plan, state) for plan in confirmed.values()), default=0.0)
        return [
            plan
            for name, plan in tried.items()
            if name not in confirmed and self._total(plan, state) < max(close, best)
        ]

    def _safest_first(self, tried: Iterable[Plan], state: PlannerState) -> list[Plan]:
        """Best first, except that among plans as good as the best, the one with most rollout GPUs comes first: the next
        batch may have a longer trajectory, which the step waits for, while training hardly differs."""
        plans = sorted(tried, key=self._by_total(state))
        most = (1 + _TIE) * self._total(plans[0], state)
        alike = [plan for plan in plans if self._total(plan, state) <= most]
        safest = max(alike, key=lambda plan: (plan.rollout_gpus, -self._total(plan, state)))
        return [safest, *(plan for plan in plans if plan is not safest)]

    def _least(self, plan: Plan, state: PlannerState) -> float:
        return rounded(self.least(plan, state))


def _why(first: Plan, others: Sequence[Plan]) -> str:
    if all(first.step <= each.step for each in others):
        return f"simulated best of {1 + len(others)}"
    return f"of {1 + len(others)} simulated, among those within {_TIE:.0%} of the best, it has most GPUs to roll out"


def _order(plan: Plan) -> tuple[float, float]:
    return plan.step, plan.train + plan.rollout


def _timed_once(world: World, measured: Measured) -> Callable[[TrainOption, Ints], float]:
    """Training times for these lengths, cached by layout for several searches."""
    timed = cache(lambda option: world.train(option, measured.context))
    return lambda option, _: timed(option)


def oracle(planner: Simulated, truth: Callable[[PlannerState], Measured]) -> Simulated:
    """The bound: a planner that knows the next trajectories as well as recent ones (``planner`` must simulate the next
    ones), and plans after every step with more simulations. A change must still pay."""
    return replace(
        planner,
        confirm=None,  # the next trajectories are known exactly
        shortlist=4,
        triggers=Triggers(every=1),
        payback=Payback(margin=0.0),
        look=_TruthFirst(truth),
    )


@dataclass(frozen=True)
class _TruthFirst:
    """The next trajectories, then recent ones."""

    truth: Callable[[PlannerState], Measured]

    def __call__(self, state: PlannerState) -> Sequence[Measured]:
        return [self.truth(state), state.measured]
