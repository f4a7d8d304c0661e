"""How far a ratio of two columns may be off because step times are.

Each source of step times is changed by one standard error, in a run of its own of each column. Columns on the same GPUs
with the same sources share the error, so that only the change of their ratio counts. Otherwise the errors are
independent, and both changes count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import exp, log, sqrt

from steelyard.scenario import Scenario
from steelyard.search.compare.judging import Judged
from steelyard.search.compare.runs import RunTask
from steelyard.sim.intervals import cost_perturbations
from steelyard.sim.setup import set_up

_WIDTH = 1.960  # standard errors to either side, for a coverage of `judging.CONFIDENCE`

Values = Mapping[str, float | None]
Moves = Mapping[str, Mapping[str, float]]
"""Changes of a column's figures as logarithms of ratios, by the changed source and the name of the figure."""


def cost_tasks(scenario: Scenario, seed: int) -> dict[str, RunTask]:
    """The further runs of a column, by the changed source."""
    return {name: RunTask(scenario, seed, change) for name, change in cost_perturbations(set_up(scenario)).items()}


def moves_of(plain: Values, changed: Mapping[str, Values]) -> Moves:
    """What each change does to figures above zero."""
    return {source: _logs(plain, values) for source, values in changed.items()}


def _logs(plain: Values, changed: Values) -> dict[str, float]:
    pairs = {name: (value, changed.get(name)) for name, value in plain.items()}
    return {name: log(other / value) for name, (value, other) in pairs.items() if value and other and value * other > 0}


def with_costs(each: Judged, base: Moves, here: Moves, shared: Mapping[str, bool]) -> Judged:
    """The figure with an interval that holds the seeds' and the costs' errors."""
    interval, ratio = each.relative_interval, each.relative
    if interval is None or ratio is None or interval[0] <= -1 or ratio <= -1:
        return each
    square = ((log(1 + interval[1]) - log(1 + interval[0])) / 2) ** 2
    for source in {**base, **here}:
        mine, its = (moves.get(source, {}).get(each.name, 0.0) for moves in (here, base))
        square += _WIDTH**2 * ((mine - its) ** 2 if shared[source] else mine**2 + its**2)
    wide = exp(sqrt(square))
    return replace(each, with_costs=((1 + ratio) / wide - 1, (1 + ratio) * wide - 1))


def shared_sources(base: Scenario, here: Scenario, sources: Mapping[str, object]) -> dict[str, bool]:
    """Which errors two columns have in common: the host's with the same calibration, others on the same GPUs."""
    gpus = [{pool.gpu for pool in each.fleet.pools} for each in (base, here)]
    same = gpus[0] == gpus[1] and base.cost == here.cost
    return {source: base.cost.calibration == here.cost.calibration if source == "host" else same for source in sources}
