"""One point of a what-if curve: a short simulation in a worker process that keeps engines and workloads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from steelyard.errors import UserError
from steelyard.scenario import Scenario
from steelyard.search.loads import Load
from steelyard.sim.run import draw_workload, simulate
from steelyard.sim.setup import FleetSetup, set_up
from steelyard.sim.summary import Summary
from steelyard.ui.checking import check_text
from steelyard.ui.folder import UiFolder
from steelyard.ui.knobs import Knobs, reshaped
from steelyard.workload import Workload

FEWEST, MOST = 500, 20_000  # requests of a point; chosen: with 500, p95 is the 25th from the end
SECONDS, LONGER = 30.0, 90.0  # of arrivals in the first round, and at least in the second; chosen
_STAYS = 8.0  # times the time in the system, for which a second round lasts: a steady window takes four or so
_KEPT_SETUPS, _KEPT_WORKLOADS, _KEPT_SCENARIOS = 24, 48, 4  # in a worker; chosen
_Kept = TypeVar("_Kept")


class TurnNumbers(Protocol):
    """Numbers of the newest request of each tab, shared by processes."""

    def __getitem__(self, slot: int) -> int: ...


@dataclass(frozen=True)
class PointTask:
    """What to simulate. It is left out or given up once its tab has asked for something newer."""

    slot: int
    turn: int
    root: Path
    name: str
    text: str
    knobs: Knobs
    requests: int = FEWEST
    check: bool = False  # only whether engines can be set up

    @classmethod
    def first(cls, slot: int, turn: int, root: Path, name: str, text: str, knobs: Knobs, own_rate: float) -> PointTask:
        """A simulation that is short enough to be waited for. At rates above the scenario's own it has no more requests
        than there, and will mostly be followed by a longer one."""
        return cls(slot, turn, root, name, text, knobs, _bounded(min(knobs.rate, own_rate) * SECONDS))

    def longer(self, point: dict[str, Any]) -> PointTask | None:
        """A simulation in which what did not settle has time to; None if it has settled, or there is no longer one."""
        if "errors" in point or point["steady"] or point["overloaded"]:
            return None
        requests = _bounded(self.knobs.rate * max(LONGER, _STAYS * (point["e2e"] or 0.0)))
        return replace(self, requests=requests) if requests > self.requests else None


class _Superseded(Exception):
    """The tab wants something else by now."""


class PointWorker:
    """Simulates points. Each worker process has its own copy."""

    def __init__(self, turns: TurnNumbers) -> None:
        self._turns = turns
        self._scenarios: OrderedDict[Hashable, Scenario] = OrderedDict()
        self._setups: OrderedDict[Hashable, FleetSetup] = OrderedDict()
        self._workloads: OrderedDict[Hashable, Workload] = OrderedDict()

    def __call__(self, task: PointTask) -> dict[str, Any] | None:
        """The figures of a point, or its mistake; None if nobody wants it any more."""
        try:
            self._go_on(task)
            return self._figures(task)
        except _Superseded:
            return None
        except UserError as error:
            return {"rate": task.knobs.rate, "errors": list(error.args)}

    def _go_on(self, task: PointTask) -> None:
        if self._turns[task.slot] != task.turn:
            raise _Superseded

    def _figures(self, task: PointTask) -> dict[str, Any]:
        key = (task.name, task.text)
        scenario = _kept(self._scenarios, key, _KEPT_SCENARIOS, lambda: scenario_of(task))
        if task.check:
            set_up(scenario)
            return {}
        load, knobs = Load(scenario), task.knobs
        shape = (*key, knobs.fleet_key())
        setup = _kept(self._setups, shape, _KEPT_SETUPS, lambda: set_up(reshaped(scenario, knobs)))
        self._go_on(task)
        at_rate = load.at(knobs.rate, task.requests)
        fleet = replace(setup, scenario=setup.scenario.replace(workload=at_rate.workload))
        drawn = _kept(self._workloads, (*key, knobs.rate, task.requests), _KEPT_WORKLOADS, lambda: draw_workload(fleet))
        result = simulate(fleet, drawn, keep=["summary"], progress=lambda done, total: self._go_on(task))
        return {"rate": knobs.rate, **point_figures(result.summary)}


def scenario_of(task: PointTask) -> Scenario:
    """The scenario of a task's text."""
    found = check_text(task.text, task.name, UiFolder(task.root)).whole
    if not isinstance(found, Scenario):
        raise UserError(f"{task.name}: is no serving scenario")
    return found


def point_figures(summary: Summary) -> dict[str, Any]:
    """What the curves show of a run. Latencies are of its steady part where it has one.

    Tokens per second are those of a long run: of the steady part, or what an overloaded fleet finishes. A run that was
    too short to settle says nothing about them.
    """
    steady, unsteady = summary.steady, summary.unsteady
    part = steady or summary
    return {
        "ttft": part.ttft.p95,
        "tpot": part.tpot.p95,
        "e2e": part.e2e.p95,
        "tokens": (tokens := _long_run_tokens(summary)),
        "steady": steady is not None,
        "overloaded": unsteady is not None and unsteady.arrive_per_s is not None,
        "reason": "" if unsteady is None else unsteady.reason,
        "gpus": summary.gpus,
        "usdPerHour": (hourly := summary.gpus * summary.cost.usd_per_gpu_hour),
        "usdPerMillion": hourly / tokens / 3600 * 1e6 if tokens else None,
        "requests": summary.requests,
        "binds": "" if summary.bottleneck is None else summary.bottleneck.cause,
    }


def _long_run_tokens(summary: Summary) -> float | None:
    if summary.steady is not None:
        return summary.steady.throughput.output_tokens_per_s
    finished, whole = summary.unsteady and summary.unsteady.finish_per_s, summary.throughput
    if not finished or not whole.requests_per_s:
        return None
    return finished * whole.output_tokens_per_s / whole.requests_per_s


def _bounded(requests: float) -> int:
    return round(min(MOST, max(FEWEST, requests)))


def _kept(known: OrderedDict[Hashable, _Kept], key: Hashable, most: int, make: Callable[[], _Kept]) -> _Kept:
    """What is known by a key, or made now. What was used least recently is dropped."""
    if key not in known:
        known[key] = make()
        while len(known) > most:
            known.popitem(last=False)
    known.move_to_end(key)
    return known[key]
