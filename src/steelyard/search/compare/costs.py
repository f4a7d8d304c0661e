"""How far a ratio of two columns may be off because step times are.

Each source of step times is changed by one standard error, in runs of its own of each column and seed. Columns on the
same GPUs with the same sources share the error, so that only the change of their ratio counts. Otherwise the errors are
independent, and both changes count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import exp, log, sqrt

from steelyard.scenario import Scenario
from steelyard.search.compare.judging import Judged
from steelyard.search.compare.runs import RunTask
from steelyard.sim.intervals import cost_perturbations
from steelyard.sim.setup import set_up
from steelyard.sim.student import spread

_WIDTH = 1.960  # standard errors to either side, for a coverage of `judging.CONFIDENCE`

Values = Mapping[str, float | None]
Moves = Mapping[str, Mapping[str, Sequence[float]]]
"""Changes of a column's figures as logarithms of ratios, one for each seed, by the changed source and the figure."""


def cost_tasks(scenario: Scenario, seeds: Iterable[int]) -> dict[str, list[RunTask]]:
    """The further runs of a column, by the changed source: one for each seed."""
    changes = cost_perturbations(set_up(scenario))
    return {name: [RunTask(scenario, seed, change) for seed in seeds] for name, change in changes.items()}


def moves_of(plain: Sequence[Values], changed: Mapping[str, Sequence[Values]]) -> Moves:
    """What each change does to figures that are above zero with every seed."""
    positive = [name for name in plain[0] if all((run[name] or 0.0) > 0 for run in plain)]
    return {
        source: {
            name: [log((other[name] or 0.0) / (run[name] or 0.0)) for run, other in zip(plain, runs, strict=True)]
            for name in positive
            if all((other[name] or 0.0) > 0 for other in runs)
        }
        for source, runs in changed.items()
    }


def with_costs(each: Judged, base: Moves, here: Moves, shared: Mapping[str, bool]) -> Judged:
    """The figure with an interval that holds the seeds' and the costs' errors."""
    interval, ratio = each.relative_interval, each.relative
    if interval is None or ratio is None or interval[0] <= -1 or ratio <= -1:
        return each
    square = ((log(1 + interval[1]) - log(1 + interval[0])) / 2) ** 2
    for source in {**base, **here}:
        mine, its = (list(moves.get(source, {}).get(each.name, ())) for moves in (here, base))
        if shared[source] and mine and its:
            square += _WIDTH**2 * _squared([a - b for a, b in zip(mine, its, strict=True)])
        else:
            square += _WIDTH**2 * (_squared(mine) + _squared(its))
    wide = exp(sqrt(square))
    return replace(each, with_costs=((1 + ratio) / wide - 1, (1 + ratio) * wide - 1))


def _squared(moves: list[float]) -> float:
    """The square of the mean change. Its own error over seeds is taken off: other step times form other batches, which
    moves tails by chance."""
    return max(0.0, (sum(moves) / len(moves)) ** 2 - spread(moves)) if moves else 0.0


def shared_sources(base: Scenario, here: Scenario, sources: Mapping[str, object]) -> dict[str, bool]:
    """Which errors two columns have in common: the host's with the same calibration, others on the same GPUs."""
    gpus = [{pool.gpu for pool in each.fleet.pools} for each in (base, here)]
    same = gpus[0] == gpus[1] and base.cost == here.cost
    return {source: base.cost.calibration == here.cost.calibration if source == "host" else same for source in sources}
