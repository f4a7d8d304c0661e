"""What operators see of a run: metrics of the gateway and of the controller, as Prometheus reads them.

Counters and histograms are told what happens. Everything that the live objects know themselves is read from them when
somebody looks, so it cannot drift from what is so.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from steelyard.balance.commands import Abort, TrainOn
from steelyard.balance.core import Core
from steelyard.balance.events import Aborted, Begun, StepTrained
from steelyard.balance.kinds import Event
from steelyard.balance.plan.questions import ChangePlan
from steelyard.balance.pool.member import MemberState
from steelyard.balance.rollouts import Doing
from steelyard.live.wire import Role

if TYPE_CHECKING:
    from steelyard.live.control import ControlServer
    from steelyard.live.desk import TurnDesk
    from steelyard.live.fleet import EngineFleet
    from steelyard.live.keeper import Keeper
    from steelyard.live.tracing import Tracing

TEXT = b"text/plain; version=0.0.4; charset=utf-8"
"""The type of a page of metrics."""

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_STEP_SECONDS = (1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0)
_WRITE_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_VERSIONS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_GAIN_STEPS = 3  # steps after a change of plan over which its gain is measured, as for the pool's moves


class GatewayMetrics:
    """What a gateway has done."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = self._counter("requests", "Answers to clients.", "status")
        self.open = self._gauge("requests_open", "Requests of clients under way.")
        self.retries = self._counter("retries", "Requests that were sent to an engine again, or to another.")
        self.first_token = self._histogram("first_token_seconds", "From a request to its stream's first part.")
        self.turns = self._counter("turns", "Turns that clients asked for.", "outcome")
        self.turn = self._histogram("turn_seconds", "From a request for a turn to its whole answer.")
        self.wait = self._histogram("placement_wait_seconds", "Until a turn that wants an engine is placed.")
        self.tokens = self._counter("tokens", "Tokens of turns that were answered.", "kind")
        self._engines = self._gauge("engines", "Engines that the gateway knows.", "state")
        self._trajectories = self._gauge("trajectories", "Trajectories under way.", "state")
        for outcome in ("answered", "repeated", "refused", "left"):
            self.turns.labels(outcome)
        for kind in ("prompt", "generated"):
            self.tokens.labels(kind)

    def text(self, fleet: EngineFleet | None, desk: TurnDesk | None) -> bytes:
        """The page of metrics."""
        up = (0 if fleet is None else sum(fleet.up)) + (0 if desk is None else len(desk.engines))
        known = (0 if fleet is None else len(fleet.up)) + (0 if desk is None else len(desk.engines))
        self._engines.labels("up").set(up)
        self._engines.labels("down").set(known - up)
        doing = Tally("held" if each.held else each.doing for each in ({} if desk is None else desk.running).values())
        for state in ("waiting", "running", "tool", "held"):
            self._trajectories.labels(state).set(doing[state])
        return generate_latest(self._registry)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"steelyard_gateway_{name}", about, labels, registry=self._registry)

    def _gauge(self, name: str, about: str, *labels: str) -> Gauge:
        return Gauge(f"steelyard_gateway_{name}", about, labels, registry=self._registry)

    def _histogram(self, name: str, about: str) -> Histogram:
        return Histogram(f"steelyard_gateway_{name}", about, buckets=_SECONDS, registry=self._registry)


class TurnWatch:
    """Is told by a desk how turns go. They are traced if somebody traces."""

    def __init__(self, metrics: GatewayMetrics, tracing: Tracing | None = None) -> None:
        self._metrics, self._tracing = metrics, tracing

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A turn waits until it is placed."""
        begun = time.monotonic()
        with nullcontext() if self._tracing is None else self._tracing.waiting():
            yield
        self._metrics.wait.observe(time.monotonic() - begun)

    def engine(self, number: int, headers: dict[str, str]) -> AbstractContextManager[None]:
        """A turn runs on an engine. Headers of its request get the identity of the trace."""
        return nullcontext() if self._tracing is None else self._tracing.engine(number, headers)

    def again(self) -> None:
        """A turn is sent to an engine again, or to another, since one has failed."""
        self._metrics.retries.inc()


@dataclass
class _PlanChange:
    """A change of plan: seconds of the step before it, and of those after it."""

    step: int
    predicted: float
    before: float | None
    after: list[float] = field(default_factory=list)

    @property
    def gains(self) -> dict[str, float]:
        """Seconds per step, predicted and, once it is known, realised. A drift of lengths is in it, too."""
        if self.before is None or not self.after:
            return {"predicted": self.predicted}
        return {"predicted": self.predicted, "realised": self.before - sum(self.after) / len(self.after)}


class ControllerMetrics(Collector):
    """What a controller has decided, and how its run goes. ``server`` must be open.

    Call `wrote` for every transaction of the log, and `decided` for every event. Commands it takes from the server
    itself. All seconds but those of the log are seconds of the run.
    """

    def __init__(self, server: ControlServer, keeper: Keeper | None = None) -> None:
        self._server, self._keeper = server, keeper
        self._registry = CollectorRegistry()
        self._writes = self._histogram("log_write_seconds", "Until events are on disk.", _WRITE_SECONDS)
        self._steps = self._histogram("step_seconds", "From one training step to the next.", _STEP_SECONDS)
        self._staleness = self._histogram(
            "sample_staleness_versions", "Versions of weights between a sample's beginning and its training.", _VERSIONS
        )
        self._plans = Counter("steelyard_controller_plan_changes", "Changes of plan.", registry=self._registry)
        self._change: _PlanChange | None = None  # the last one
        self._trained_at: float | None = None
        self._last_step: float | None = None  # seconds
        core = server.controller.core
        self._version_of = {name: each.version for name, each in core.placement.rollouts.running.items()}
        self._registry.register(self)
        server.on(TrainOn, self._train_on)
        server.on(Abort, self._forget)
        server.on(ChangePlan, self._change_plan)

    # -- what happens -------------------------------------------------------------------------------------------

    def wrote(self, seconds: float) -> None:
        """Events were written to the log."""
        self._writes.observe(seconds)

    def decided(self, event: Event) -> None:
        """An event was decided."""
        match event:
            case Begun():
                self._version_of[event.trajectory] = event.version
            case Aborted():
                self._version_of.pop(event.trajectory, None)
            case StepTrained():
                self._trained(event)

    def _trained(self, event: StepTrained) -> None:
        before, self._trained_at = self._trained_at, event.at
        if before is None:
            return
        self._last_step = event.at - before
        self._steps.observe(self._last_step)
        change = self._change
        if change is not None and event.step > change.step and len(change.after) < _GAIN_STEPS:
            change.after.append(self._last_step)

    def _train_on(self, order: TrainOn) -> None:
        for name in order.trajectories:
            version = self._version_of.pop(name, None)
            if version is not None:  # else it began under another controller
                self._staleness.observe(order.step - version)

    def _forget(self, command: Abort) -> None:
        for name in command.trajectories:
            self._version_of.pop(name, None)

    def _change_plan(self, command: ChangePlan) -> None:
        self._plans.inc()
        self._change = _PlanChange(command.step, command.now.step - command.plan.step, self._last_step)

    # -- how things stand ---------------------------------------------------------------------------------------

    def text(self) -> bytes:
        """The page of metrics."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """What is read from the live objects. Prometheus' client calls it."""
        controller, core = self._server.controller, self._server.controller.core
        yield _counter("events_decided", "Events that were decided.", controller.events)
        yield _counter("events_dropped", "Events that did not count.", core.dropped, "reason")
        yield _gauge("fence", "Controllers that this run has had.", controller.fence)
        members = dict.fromkeys(get_args(Role), 0) | Tally(role for role, _ in self._server.members())
        yield _gauge("members", "Members that are connected.", members, "role")
        yield from _rollout_families(core)
        yield from _weight_families(core)
        yield from self._engine_families(core)
        yield from _pool_families(core)
        if self._change is not None:
            yield _gauge("plan_gain_seconds", "Of the last change of plan, per step.", self._change.gains, "kind")

    def _engine_families(self, core: Core) -> Iterator[Metric]:
        if self._keeper is None:
            return
        engines = self._keeper.engines
        states = dict.fromkeys(("up", "down", "quarantined"), 0)
        for number, engine in engines.items():
            states["quarantined" if engine.quarantined else "up" if self._keeper.is_up(number) else "down"] += 1
        yield _gauge("engines", "Engines that the run wants.", states, "state")
        newest = max(core.trained + 1, 0)
        lags = {str(number): newest - each.version for number, each in engines.items() if each.version >= 0}
        yield _gauge("engine_weight_lag", "Versions by which an engine's weights are behind.", lags, "engine")

    def _histogram(self, name: str, about: str, edges: tuple[float, ...]) -> Histogram:
        return Histogram(f"steelyard_controller_{name}", about, buckets=edges, registry=self._registry)


def _rollout_families(core: Core) -> Iterator[Metric]:
    rollouts = core.placement.rollouts
    doing = dict.fromkeys(get_args(Doing), 0) | Tally(each.doing for each in rollouts.running.values())
    yield _gauge("trajectories", "Trajectories under way.", doing, "state")
    seats = {"busy": 0, "free": 0}
    for replica in rollouts.replicas.values():
        seats["busy"] += replica.busy
        seats["free"] += max(0, replica.free_seats)
    yield _gauge("seats", "Requests that engines run at once.", seats, "state")


def _weight_families(core: Core) -> Iterator[Metric]:
    yield _gauge("weight_version", "Of the weights that engines have.", core.published)
    yield _gauge(
        "weight_lag", "Trained versions that are not published yet.", max(0, core.trained + 1 - core.published)
    )
    yield _counter("steps", "Training steps that are done.", core.trained + 1)


def _pool_families(core: Core) -> Iterator[Metric]:
    pool = core.pool
    if pool is None:
        return
    states = dict.fromkeys(map(str, MemberState), 0) | Tally(str(each.state) for each in pool.members.values())
    yield _gauge("pool_replicas", "Hybrid replicas.", states, "state")
    moves = Tally((entry.to, entry.outcome) for entry in pool.ledger.entries if entry.outcome != "under way")
    about = "Hybrid replicas that were sent to the other side."
    family = CounterMetricFamily("steelyard_controller_pool_moves", about, labels=["to", "outcome"])
    for labels, count in moves.items():
        family.add_metric(list(labels), count)
    yield family
    measured = [entry for entry in pool.ledger.entries if entry.realised is not None]
    if measured:
        gains = {"predicted": measured[-1].predicted, "realised": measured[-1].realised or 0.0}
        yield _gauge("pool_gain_seconds", "Of the last move that was measured, per step.", gains, "kind")


_Values = float | Mapping[str, float] | Mapping[str, int]


def _gauge(name: str, about: str, values: _Values, label: str = "") -> Metric:
    return _filled(
        lambda labels: GaugeMetricFamily(f"steelyard_controller_{name}", about, labels=labels), values, label
    )


def _counter(name: str, about: str, values: _Values, label: str = "") -> Metric:
    return _filled(
        lambda labels: CounterMetricFamily(f"steelyard_controller_{name}", about, labels=labels), values, label
    )


def _filled(
    make: Callable[[list[str]], GaugeMetricFamily | CounterMetricFamily], values: _Values, label: str
) -> GaugeMetricFamily | CounterMetricFamily:
    family = make([label] if label else [])
    if isinstance(values, Mapping):
        for key, value in values.items():
            family.add_metric([key], value)
    else:
        family.add_metric([], values)
    return family
