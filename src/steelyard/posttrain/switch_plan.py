"""What a change of plan moves, and when. Simulated and live runs carry it out.

The scenario's ``switch`` says how engines change:

- difference: engines that are not in the new plan stop at once; new ones start on their GPUs or wake there.
- restart: all engines stop at once, and all of the new plan start anew: processes, weights and CUDA graphs.
- blue-green: engines whose GPUs no other engine has start first, while the old ones serve. When they are up, the old
  ones stop, and those that need their GPUs start.
- pre-warm: as by difference, but engines that were started ahead only wake.
- swap: one after the other, each new engine takes the place of old ones, while the rest serve.

Whatever the way, engines stop at once if training takes their GPUs, which has to wait for nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from steelyard.balance.plan import Plan
from steelyard.model import Layout, weight_bytes
from steelyard.posttrain.changes import engines_begin, relayout
from steelyard.posttrain.planning import Training
from steelyard.posttrain.roles import Gpus, new_places
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.posttrain.sync import Startup, plain_weights


@dataclass(frozen=True)
class RolesNow:
    """The roles of all GPUs at one moment. ``shared``: all GPUs roll out and train in turn."""

    gpus: int
    node: int  # GPUs of a node
    engines: Mapping[int, Gpus]  # by number
    training: Gpus
    known: AbstractSet[Gpus]  # GPUs with a sleeping engine, which wakes faster than a new one starts
    shared: bool = False

    def on(self, gpus: Iterable[int]) -> list[int]:
        """The engines on these GPUs."""
        asked = set(gpus)
        return [number for number, held in self.engines.items() if asked & set(held)]


@dataclass(frozen=True)
class SwitchPlan:
    """Engines that stay, new engines and the seconds until each is up, the training job's GPUs and the seconds until it
    continues (0: it does not change)."""

    stay: AbstractSet[int]
    new: Mapping[Gpus, float]
    job: Gpus
    laid: float
    stops: Mapping[int, float] = field(default_factory=dict)  # seconds until engines stop, of those that go on serving
    waits: bool = True  # whether the next batch waits for the new engines

    @property
    def up(self) -> float:
        """Seconds until all engines run."""
        return max([0.0, *self.new.values()])

    @property
    def ready(self) -> float:
        """Seconds until the next batch may begin: at once if it need not wait and some engine serves."""
        if self.waits:
            return self.up
        return 0.0 if self.stay or self.stops else min(self.new.values(), default=0.0)

    @property
    def seconds(self) -> float:
        """Until all GPUs are in use again."""
        return max(self.laid, self.up)


def switch_plan(setup: PosttrainSetup, training: Training, now: Plan, plan: Plan, roles: RolesNow) -> SwitchPlan:
    """The change from one plan to another."""
    way = setup.scenario.switch
    stay, places, job = _placed(plan, roles, keep=way != "restart")
    laid = _laying_out(setup, training, now, plan, set(job) != set(roles.training))
    change = _Change(setup, roles, stay, job, laid, way == "restart")
    if way == "blue-green":
        new, stops = change.beside(places)
    elif way == "swap":
        new, stops = change.one_by_one(places)
    else:
        new, stops = {gpus: change.up(gpus) for gpus in places}, {}
    return SwitchPlan(stay, new, job, laid, stops, waits=way != "swap" or roles.shared)


def started_ahead(
    setup: PosttrainSetup, training: Training, now: Plan, plan: Plan, roles: RolesNow
) -> tuple[set[Gpus], float]:
    """New engines that can be started while everything runs on, by their GPUs, and the seconds that it takes. They load
    their weights beside an engine if they fit into the memory that ``gpu_memory_utilization`` leaves; never beside
    training."""
    spare = (1 - setup.scenario.engine.gpu_memory_utilization) * setup.gpu.memory_bytes
    ahead: set[Gpus] = set()
    for gpus in switch_plan(setup, training, now, plan, roles).new:
        fits = not roles.on(gpus) or float(weight_bytes(plain_weights(setup.model), tp=len(gpus))) <= spare
        if gpus not in roles.known and fits and not set(gpus) & set(roles.training):
            ahead.add(gpus)
    return ahead, Startup().engine if ahead else 0.0


@dataclass(frozen=True)
class _Change:
    """When engines of a change start and stop."""

    setup: PosttrainSetup
    roles: RolesNow
    stay: AbstractSet[int]
    job: Gpus
    laid: float
    anew: bool  # engines that sleep are not woken, but start anew

    def up(self, gpus: Gpus, begins: float = 0.0) -> float:
        """Seconds until an engine is up that begins to start then. On GPUs of the training job it waits until the job
        has its new layout."""
        roles, kind = self.roles, Layout(tp=len(gpus))
        waits = self.laid if set(gpus) & set(roles.training) and not roles.shared else 0.0
        asleep = gpus in roles.known and not self.anew
        model, topology = self.setup.model, self.setup.topology
        begun = engines_begin(model, topology, len(roles.training), len(gpus), kind, asleep=asleep)
        return max(waits, begins) + begun.seconds

    def beside(self, places: Sequence[Gpus]) -> tuple[dict[Gpus, float], dict[int, float]]:
        """Those that need no engine's GPUs first; the others when the old ones have stopped."""
        new = {gpus: self.up(gpus) for gpus in places if not self.roles.on(gpus)}
        over = max(new.values(), default=0.0)
        new |= {gpus: self.up(gpus, over) for gpus in places if gpus not in new}
        return new, {number: over for number in self._going_on() if over}

    def one_by_one(self, places: Sequence[Gpus]) -> tuple[dict[Gpus, float], dict[int, float]]:
        """Those on GPUs of training last, as they have to wait for it."""
        going_on, over = self._going_on(), 0.0
        new: dict[Gpus, float] = {}
        stops: dict[int, float] = {}
        for gpus in sorted(places, key=lambda each: bool(set(each) & set(self.roles.training))):
            for number in self.roles.on(gpus):
                if number in going_on and over:
                    stops.setdefault(number, over)
                going_on.discard(number)
            over = new[gpus] = self.up(gpus, over)
        return new, stops | {number: over for number in going_on if over}

    def _going_on(self) -> set[int]:
        """Engines that will stop, but whose GPUs training does not take."""
        taken = set() if self.roles.shared else set(self.roles.on(set(self.job) - set(self.roles.training)))
        return set(self.roles.engines) - set(self.stay) - taken


def _laying_out(setup: PosttrainSetup, training: Training, now: Plan, plan: Plan, moves: bool) -> float:
    if plan.training == now.training and not moves:
        return 0.0
    layouts = training.layouts
    return relayout(setup.model, setup.topology, layouts[now.training], layouts[plan.training]).seconds


def _placed(plan: Plan, roles: RolesNow, keep: bool) -> tuple[set[int], list[Gpus], Gpus]:
    """Engines that stay, GPUs of new engines, and GPUs of the training job. If new engines do not fit into nodes
    beside those that would stay, none stays; nor without ``keep``."""
    wanted, stay = dict(plan.replicas), set[int]()
    for number, gpus in roles.engines.items():
        if keep and wanted.get(len(gpus), 0):
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
