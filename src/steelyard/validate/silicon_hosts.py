"""The hosts and clients of AIConfigurator's end-to-end points, told from the points of other models.

Host times are by default those of rented H200 machines (docs/calibration.md), and a request starts inside the server.
The points were measured on other machines, by clients that send text over HTTP. Two things differ for all models
alike: the pace at which a host runs the engine's Python, and the time in which a client, the HTTP server and the
tokenizer pass a prompt on. The latter also delays a user's next request, so that requests come in larger groups.

Both are chosen from a few values, for each publisher of points, by what fits its other models best: no point of a model
has a say in the predictions of that model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

import numpy as np

from steelyard.cost import HostTerms
from steelyard.scenario import Scenario
from steelyard.scenario.arrivals import ClosedArrivals
from steelyard.validate.silicon_points import Point

Times = tuple[float, float]  # mean TTFT and TPOT, seconds
Simulated = Callable[[Point, "RunHost"], Times | None]

_NOT_PACED = ("ingest_token", "compile")  # reading tokens and compiling kernels
_PACES = (1.0, 0.8, 0.65)
_FRONTS = ((0.0, 0.0), (6e-3, 1e-6), (12e-3, 2e-6))  # seconds of a request, and of each token of its prompt
_OF_EACH, _USERS = 8, 64  # points of a model that are tried, and their users at most; chosen for the time they take


@dataclass(frozen=True)
class RunHost:
    """A host's pace relative to the default one, and the seconds before a request is inside the server."""

    pace: float = 1.0
    front: float = 0.0
    front_token: float = 0.0

    @property
    def terms(self) -> HostTerms:
        """The host's times."""
        usual = HostTerms()
        return replace(
            usual, **{name: value * self.pace for name, value in asdict(usual).items() if name not in _NOT_PACED}
        )

    def before(self, point: Point) -> float:
        """Seconds before a prompt is inside the server."""
        return self.front + self.front_token * point.isl

    def delayed(self, scenario: Scenario, point: Point) -> Scenario:
        """The scenario with users whose next request comes that much later."""
        (spec,) = scenario.workload.mix
        assert isinstance(spec.arrivals, ClosedArrivals)
        arrivals = spec.arrivals.replace(think={"kind": "fixed", "seconds": self.before(point)})
        mix = (spec.model_copy(update={"arrivals": arrivals}),)
        return scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"mix": mix})})


USUAL = RunHost()
CANDIDATES = tuple(RunHost(pace, *front) for pace, front in product(_PACES, _FRONTS))


def fitted_hosts(points: Sequence[Point], simulated: Simulated) -> dict[tuple[bool, str], RunHost]:
    """By publisher (whether it is InferenceX) and model, the host that fits the publisher's other models best.

    What fits best has the least mean, over the other models, of the median errors of TTFT and TPOT (as logarithms). A
    publisher with one model has the usual host.
    """
    by_model: dict[tuple[bool, str], list[Point]] = defaultdict(list)
    for point in points:
        by_model[point.published, point.model] += [point] if point.concurrency <= _USERS else []
    misfits = {key: _misfits(same, simulated) for key, same in sorted(by_model.items())}
    return {key: _chosen(key, misfits) for key in misfits}


def _chosen(left_out: tuple[bool, str], misfits: Mapping[tuple[bool, str], Sequence[float] | None]) -> RunHost:
    others = [
        each
        for (published, model), each in misfits.items()
        if published == left_out[0] and model != left_out[1] and each is not None
    ]
    if not others:
        return USUAL
    return CANDIDATES[int(np.argmin(np.mean(others, axis=0)))]


def _misfits(same: Sequence[Point], simulated: Simulated) -> list[float] | None:
    """How far off a model's points are with each candidate; None if none of them can be simulated."""
    taken = np.linspace(0, len(same) - 1, min(_OF_EACH, len(same))).round().astype(int)
    errors: list[list[tuple[float, float]]] = [[] for _ in CANDIDATES]
    for point in (same[i] for i in taken):
        for found, host in zip(errors, CANDIDATES, strict=True):
            times = simulated(point, host)
            if times is not None:
                found.append((abs(np.log(times[0] / point.ttft)), abs(np.log(times[1] / point.tpot))))
    if not all(errors):
        return None
    return [float(np.median(np.array(each), axis=0).sum()) for each in errors]
