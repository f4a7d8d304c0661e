"""Simulation in the loop: the model makes a shortlist, simulated steps decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from math import inf

from steelyard.balance.plan.change import Payback, Trigger, Triggers
from steelyard.balance.plan.forecast import foretold
from steelyard.balance.plan.libra import libra
from steelyard.balance.plan.measured import Measured
from steelyard.balance.plan.search import Search, nothing_fits
from steelyard.balance.plan.world import Plan, State, TrainOption, World
from steelyard.workload.columns import Ints

_NOTHING = 0.005  # of a step: plans that cannot gain more are not worth a simulation

Simulate = Callable[[Plan, State], float]
"""Seconds of the next step (or the mean of some) with a plan, by whoever can run trajectories through engines."""


@dataclass
class Simulated:
    """Ours. The plans that the model finds best, with buckets by length and with each degree alone, are simulated with
    the trajectories of late, and so is the plan in force: the best wins, if changing to it pays.

    Buckets by length are only as good as the router, which the model takes for all-knowing; one degree alone asks
    nothing of it. Simulations tell which it shall be. ``trust`` is how far the model may be off: plans that it finds
    slower than the best simulated one by more are not simulated. ``least`` is a bound that is sooner worked out than a
    simulation: plans that cannot be better than the best one are not simulated, either. ``look`` says which
    trajectories it is asked about; each kind of them makes a shortlist. ``change`` is what changing to a plan would
    take; as long as changes have taken so far if nobody knows.
    """

    world: World
    simulate: Simulate
    shortlist: int = 3  # numbers of training GPUs, of each kind
    trust: float = 0.1
    least: Simulate = lambda plan, state: 0.0
    change: Callable[[Plan, State], float | None] = lambda plan, state: None
    triggers: Trigger = field(default_factory=Triggers)
    payback: Payback = field(default_factory=Payback)
    look: Callable[[State], Sequence[Measured]] = lambda state: [state.measured]
    more: Sequence[Search] = ()
    simulations: int = 0
    _last: State | None = None

    def plan(self, state: State) -> Plan | None:
        if not self.triggers.due(state, self._last):
            return None
        self._last = state
        looked = self.look(state)
        candidates = self.candidates(*looked)
        first, *others = self._tried(candidates, state)
        why = f"simulated best of {1 + len(others)}"
        if not others:
            rest = (each for each in candidates if each.layout != first.layout)
            others = [self._at_least(each, state) for each in islice(rest, 1)]
        if others:
            why += f"; {others[0]} would take {100 * (others[0].step / first.step - 1):+.1f} %"
        plan = replace(first, why=why, runner_up=others[0] if others else None)
        if state.plan is None:
            return plan
        if plan.layout == state.plan.layout:
            return None
        now = self._simulated(foretold(self.world, state.plan, looked[0]), state)
        if not self.payback.pays(now.step, plan.step, state, self.change(plan, state)):
            return None
        return replace(plan, why=f"{why}; as it is: {now.step:.1f} s", instead=now.step)

    def candidates(self, *looked: Measured) -> list[Plan]:
        """The shortlist by what the model says, best first, without repeats."""
        found: dict[object, Plan] = {}
        for measured in looked:
            world = replace(self.world, train=_timed_once(self.world, measured))
            alone = [replace(world, replicas={tp: model}, by_length=False) for tp, model in world.replicas.items()]
            for search in [*map(Search, [world, *alone]), *self.more]:
                for plan in search.plans(measured, self.shortlist):
                    found.setdefault(plan.layout, plan)
        if not found:
            raise nothing_fits(self.world, looked[0])
        return sorted(found.values(), key=lambda plan: (plan.step, plan.train + plan.rollout))

    def _tried(self, plans: Sequence[Plan], state: State) -> list[Plan]:
        """Those that were simulated, with the step time that came out, best first."""
        bounds = [self.least(plan, state) for plan in plans]
        tried: list[Plan] = []
        best = inf
        for place in sorted(range(len(plans)), key=lambda place: (max(plans[place].step, bounds[place]), place)):
            plan = plans[place]
            if plan.step * (1 - self.trust) < best and bounds[place] < best * (1 - _NOTHING):
                tried.append(self._simulated(plan, state))
                best = min(best, tried[-1].step)
        return sorted(tried, key=lambda plan: (plan.step, plan.train + plan.rollout))

    def _at_least(self, plan: Plan, state: State) -> Plan:
        """One that was not worth a simulation."""
        return replace(plan, step=max(plan.step, self.least(plan, state)))

    def _simulated(self, plan: Plan, state: State) -> Plan:
        self.simulations += 1
        return replace(plan, step=self.simulate(plan, state))


def _timed_once(world: World, measured: Measured) -> Callable[[TrainOption, Ints], float]:
    """Training layouts timed for these lengths, whichever search asks."""
    timed = cache(lambda option: world.train(option, measured.context))
    return lambda option, _: timed(option)


def oracle(
    world: World,
    simulate: Simulate,
    truth: Callable[[State], Measured],
    least: Simulate = lambda plan, state: 0.0,
) -> Simulated:
    """The bound: told the next trajectories beside those of late (``simulate`` has to run the next ones), asked after
    every step, with more candidates and more patience; a change still has to pay for itself."""
    return Simulated(
        world,
        simulate,
        shortlist=5,
        trust=0.3,
        least=least,
        triggers=Triggers(every=1),
        payback=Payback(margin=0.0),
        look=lambda state: [truth(state), state.measured],
        more=(libra(world),),
    )
