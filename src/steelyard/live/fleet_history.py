"""The roles of a run's GPUs over time, from its log alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from steelyard.balance.encoding import decode_kind
from steelyard.balance.log import is_event, read_header
from steelyard.balance.plan.questions import ChangePlan
from steelyard.live.store import log_rows


@dataclass
class UpTime:
    """Seconds in which an engine was up. ``lost``: it was not stopped on purpose."""

    since: float
    until: float
    lost: bool = False


@dataclass
class EngineLife:
    """One engine."""

    number: int
    tp: int
    up: list[UpTime] = field(default_factory=list)


@dataclass(frozen=True)
class RoleSpan:
    """GPUs that roll out and train for some seconds."""

    since: float
    until: float
    rollout: int
    training: int


@dataclass
class FleetHistory:
    """All GPUs of a run, from when engines had the first weights."""

    gpus: int
    seconds: float = 0.0
    roles: list[RoleSpan] = field(default_factory=list)
    engines: list[EngineLife] = field(default_factory=list)
    changed: list[float] = field(default_factory=list)  # when changes of plan were done


def fleet_history(store: Path, gpus: int, training: int) -> FleetHistory:
    """Of a controller's store. ``training`` GPUs train at first."""
    rows = log_rows(store)
    where, header = next(rows)
    planner = read_header(header, where).settings.planner
    reading = _Reading(gpus, training if planner is None else planner.written.training.gpus)
    for where, row in rows:
        if is_event(row):
            reading.event(row["kind"], row)
        elif row["kind"] == "ChangePlan":
            reading.wanted = decode_kind({"ChangePlan": ChangePlan}, row, where)
    return reading.found()


class _Reading:
    """Reads a log from its beginning."""

    def __init__(self, gpus: int, training: int) -> None:
        self.wanted: ChangePlan | None = None
        self._training = training
        self._history = FleetHistory(gpus)
        self._engines: dict[int, EngineLife] = {}
        self._zero: float | None = None
        self._since = self._at = 0.0
        self._moving = False  # engines that go down are stopped on purpose

    def event(self, kind: str, row: dict[str, object]) -> None:
        at = row["at"]
        assert isinstance(at, float | int)
        self._at = 0.0 if self._zero is None else at - self._zero
        match kind:
            case "WeightsPublished" if self._zero is None:
                self._zero, self._at = float(at), 0.0
            case "StepTrained" | "WeightsPublished":  # changes are carried out in between
                self._close_span()
                self._moving = kind == "StepTrained" and self.wanted is not None
            case "ReplicaUp" | "ReplicaDown":
                self._close_span()
                self._move(kind == "ReplicaUp", int(str(row["replica"])), int(str(row.get("tp", 0))))
            case "PlanChanged" | "PlanRolledBack" if self.wanted is not None:
                self._close_span()
                if kind == "PlanChanged":
                    self._training = self.wanted.plan.training.gpus
                self._history.changed.append(self._at)
                self.wanted, self._moving = None, False

    def _move(self, up: bool, number: int, tp: int) -> None:
        engine = self._engines.get(number)
        if up:
            engine = self._engines.setdefault(number, EngineLife(number, tp))
            engine.up.append(UpTime(self._at, -1.0))
        elif engine is not None and engine.up[-1].until < 0:
            engine.up[-1].until, engine.up[-1].lost = self._at, not self._moving

    def _close_span(self) -> None:
        if self._at > self._since:
            rollout = sum(each.tp for each in self._engines.values() if each.up[-1].until < 0)
            moving = self._moving and self.wanted is not None
            training = min(self._training, self.wanted.plan.training.gpus) if moving and self.wanted else self._training
            spans = self._history.roles
            if spans and (spans[-1].rollout, spans[-1].training) == (rollout, training):
                spans.append(replace(spans.pop(), until=self._at))
            else:
                spans.append(RoleSpan(self._since, self._at, rollout, training))
            self._since = self._at

    def found(self) -> FleetHistory:
        self._close_span()
        history = self._history
        history.seconds, history.engines = self._at or 1.0, [self._engines[each] for each in sorted(self._engines)]
        for engine in history.engines:
            if engine.up[-1].until < 0:
                engine.up[-1].until = self._at
        return history
