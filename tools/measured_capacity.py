"""The largest rate under limits, measured and predicted: `python tools/measured_capacity.py tests/data/capacity-h200`

The folder has the scenario that was asked, ``measured.jsonl.gz`` (of each run of `tools/measure_capacity.py` its rate
and the latencies of every request) and a capture ``calibration`` of the same engine. A rate is carried if all
percentiles are within their limits. The predicted answer is found by bisection, the measured one between two measured
rates, by the logarithm of the percentile.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard import load_scenario, simulate
from steelyard.cost import HostTerms
from steelyard.files.jsontext import json_lines, required
from steelyard.scenario.slo import SloSpec
from steelyard.sim.result import Kept
from steelyard.sim.run import draw_workload
from steelyard.sim.setup import set_up
from steelyard.validate.crossed import cross_calibrate, read_sources

Floats = NDArray[np.float64]
Levels = dict[str, float]  # by the name of a limit

_CLOSE = 1.001  # two rates of a bisection that end it
_DRAWS = 200  # bootstrap samples
_KEPT: tuple[Kept, ...] = ("requests",)


@dataclass(frozen=True)
class MeasuredRun:
    """One rate, as the client of a real engine saw it."""

    name: str
    rate: float
    latencies: Mapping[str, Floats]  # seconds of each request, by metric


def read_runs(folder: Path) -> list[MeasuredRun]:
    """The measured runs, in order of rates."""
    runs = []
    for where, row in json_lines(folder / "measured.jsonl.gz", None):
        name, rate, ttft, tpot = (required(row, key, where) for key in ("name", "rate", "ttft", "tpot"))
        runs.append(MeasuredRun(name, rate, {"ttft": np.array(ttft), "tpot": np.array(tpot)}))
    return sorted(runs, key=lambda run: (run.rate, run.name))


def levels_of(latencies: Mapping[str, Floats], slo: SloSpec) -> Levels:
    """The percentiles that have limits."""
    return {
        limit.name: float(np.nanpercentile(latencies[limit.metric], limit.percentile))
        for limit in slo.on_run()
        if limit.percentile is not None
    }


def predictor(scenario_file: Path, host: HostTerms | None = None) -> Callable[[float, SloSpec], Levels]:
    """Percentiles at a rate by simulation: the same requests, with arrivals scaled."""
    fleet = set_up(load_scenario(scenario_file), host)
    work = draw_workload(fleet)

    def levels(rate: float, slo: SloSpec) -> Levels:
        table = simulate(fleet, replace(work, at=work.at / rate), keep=_KEPT).requests
        return levels_of({name: table[name] for name in ("ttft", "tpot")}, slo)

    return levels


def largest(levels: Callable[[float, SloSpec], Levels], slo: SloSpec, low: float = 1.0, high: float = 100.0) -> float:
    """The largest rate that is carried."""
    limits = {limit.name: limit.seconds for limit in slo.on_run()}
    while high / low > _CLOSE:
        middle = (low * high) ** 0.5
        found = levels(middle, slo)
        low, high = (middle, high) if all(found[name] <= limits[name] for name in limits) else (low, middle)
    return low


def crossing(points: Sequence[tuple[float, Levels]], slo: SloSpec) -> float:
    """The rate at which the first limit is reached, between measured ones; runs of one rate count by their mean."""
    return min(_reached(points, limit.name, limit.seconds) for limit in slo.on_run())


def _reached(points: Sequence[tuple[float, Levels]], name: str, limit: float) -> float:
    rates = sorted({rate for rate, _ in points})
    over = [float(np.mean([log(found[name] / limit) for at, found in points if at == rate])) for rate in rates]
    if over[0] > 0:
        return float("nan")  # below all rates that were measured
    for k in range(1, len(rates)):
        if over[k] > 0:
            return rates[k - 1] + (rates[k] - rates[k - 1]) * -over[k - 1] / (over[k] - over[k - 1])
    return float("inf")


def measured(runs: Sequence[MeasuredRun], slo: SloSpec) -> float:
    """The largest rate of the real engine."""
    return crossing([(run.rate, levels_of(run.latencies, slo)) for run in runs], slo)


def spread(runs: Sequence[MeasuredRun], slo: SloSpec, seed: int = 0) -> tuple[float, float]:
    """The 5th and 95th percentile of the measured answer over samples of requests, with replacement."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(_DRAWS):
        rows = rng.integers(len(runs[0].latencies["ttft"]), size=len(runs[0].latencies["ttft"]))
        drawn = [replace(run, latencies={key: each[rows] for key, each in run.latencies.items()}) for run in runs]
        found.append(measured(drawn, slo))
    low, high = np.percentile(found, [5, 95])
    return float(low), float(high)


def calibrated(folder: Path) -> HostTerms:
    """The host's times, by lone prompts and even batches of the same engine."""
    return cross_calibrate(read_sources([folder / "calibration"], None)).calibration.terms


def main(folder: Path) -> None:
    """Print the tables."""
    scenario = folder / "scenario.yaml"
    slo = load_scenario(scenario).slo
    assert slo is not None
    runs = read_runs(folder)
    guesses = {"defaults": predictor(scenario), "calibrated": predictor(scenario, calibrated(folder))}
    names = [limit.name for limit in slo.on_run()]
    columns = [f"{name} {source}" for name in names for source in ("measured", *guesses)]
    print("| requests/s | " + " | ".join(columns) + " |")
    print("| --: " * (1 + len(columns)) + "|")
    for run in runs:
        rows = [levels_of(run.latencies, slo), *(levels(run.rate, slo) for levels in guesses.values())]
        cells = [f"{found[name] * 1e3:.1f} ms" for name in names for found in rows]
        print(f"| {run.rate:g} | " + " | ".join(cells) + " |")
    true, (low, high) = measured(runs, slo), spread(runs, slo)
    print(f"\nmeasured: {true:.2f} requests/s ({low:.2f} to {high:.2f})")
    for source, levels in guesses.items():
        rate = largest(levels, slo)
        print(f"{source}: {rate:.2f} requests/s, {rate / true - 1:+.1%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
