"""What a change of plan moves, and how long each move takes. Simulated and live runs carry it out."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from steelyard.balance.plan import Plan
from steelyard.model import Layout
from steelyard.posttrain.changes import engines_begin, relayout
from steelyard.posttrain.planning import Training
from steelyard.posttrain.roles import Gpus, new_places
from steelyard.posttrain.setup import PosttrainSetup


@dataclass(frozen=True)
class RolesNow:
    """The roles of all GPUs at one moment. ``shared``: all GPUs roll out and train in turn."""

    gpus: int
    node: int  # GPUs of a node
    engines: Mapping[int, Gpus]  # by number
    training: Gpus
    known: AbstractSet[Gpus]  # GPUs with a sleeping engine, which wakes faster than a new one starts
    shared: bool = False


@dataclass(frozen=True)
class SwitchPlan:
    """Engines that stay, new engines and the seconds until each is up, the training job's GPUs and the seconds until it
    continues (0: it does not change)."""

    stay: AbstractSet[int]
    new: Mapping[Gpus, float]
    job: Gpus
    laid: float

    @property
    def seconds(self) -> float:
        """Until all GPUs are in use again."""
        return max([self.laid, *self.new.values()])


def switch_plan(setup: PosttrainSetup, training: Training, now: Plan, plan: Plan, roles: RolesNow) -> SwitchPlan:
    """The change from one plan to another."""
    stay, places, job = _placed(plan, roles)
    laid = _laying_out(setup, training, now, plan, set(job) != set(roles.training))
    return SwitchPlan(stay, {gpus: _up(setup, gpus, laid, roles) for gpus in places}, job, laid)


def _laying_out(setup: PosttrainSetup, training: Training, now: Plan, plan: Plan, moves: bool) -> float:
    if plan.training == now.training and not moves:
        return 0.0
    layouts = training.layouts
    return relayout(setup.model, setup.topology, layouts[now.training], layouts[plan.training]).seconds


def _up(setup: PosttrainSetup, gpus: Gpus, laid: float, roles: RolesNow) -> float:
    """Seconds until an engine is up. On GPUs of the training job it waits until the job has its new layout."""
    waits = laid if set(gpus) & set(roles.training) and not roles.shared else 0.0
    kind, asleep = Layout(tp=len(gpus)), gpus in roles.known
    trainers = len(roles.training)
    return waits + engines_begin(setup.model, setup.topology, trainers, len(gpus), kind, asleep=asleep).seconds


def _placed(plan: Plan, roles: RolesNow) -> tuple[set[int], list[Gpus], Gpus]:
    """Engines that stay, GPUs of new engines, and GPUs of the training job. If new engines do not fit into nodes
    beside those that would stay, none stays."""
    wanted, stay = dict(plan.replicas), set[int]()
    for number, gpus in roles.engines.items():
        if wanted.get(len(gpus), 0):
            wanted[len(gpus)] -= 1
            stay.add(number)
    for kept in (stay, set[int]()):
        taken = {gpu for number in kept for gpu in roles.engines[number]}
        counts = dict(plan.replicas)
        for number in kept:
            counts[len(roles.engines[number])] -= 1
        degrees = [tp for tp, replicas in counts.items() for _ in range(replicas)]
        free = [gpu for gpu in range(roles.gpus) if gpu not in taken]
        training = 0 if roles.shared else plan.training.gpus
        found = new_places(degrees, training, () if roles.shared else roles.training, free, roles.node)
        if found is not None:
            places, job = found
            return kept, places, roles.training if roles.shared else job
    raise AssertionError("engines of whole nodes and less always fit")
