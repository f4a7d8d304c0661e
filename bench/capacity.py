"""`python -m bench.capacity`: what `steelyard capacity` costs, and how far it is from a scan over all rates.

Qwen3-32B on four H200 in TP2 pairs, lengths like those of ShareGPT, p95 limits of 1 s to the first token and 40 ms per
token after it. The scan simulates every rate from half to twice the answer, half a percent apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import track

from steelyard import scenario_from_dict
from steelyard.scenario import Scenario
from steelyard.search.capacity import RESOLUTION, capacity
from steelyard.search.loads import Load
from steelyard.search.outcome import observe
from steelyard.sim.setup import set_up

MOST_CPU_SECONDS = 10.0
MOST_DIFFERENCE = 0.02
QWEN: dict[str, Any] = {
    "name": "qwen3-32b",
    "model": "qwen3-32b",
    "fleet": {"gpu": "h200", "replicas": 2, "tp": 2, "router": "least-outstanding"},
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 10},
        "requests": 1000,
        "prompt": {"kind": "lognormal", "median": 180, "p95": 1200},
        "output": {"kind": "lognormal", "median": 180, "p95": 700},
    },
    "slo": {"ttft_p95": 1.0, "tpot_p95": 0.04},
    "seed": 1,
}


@dataclass(frozen=True)
class Scan:
    """What a scan over rates finds."""

    largest: float  # the largest rate of all that is carried
    first: float  # the largest below which all are carried


def rates(low: float, high: float) -> Iterator[float]:
    """All rates to be tried, at equal ratios."""
    rate = low
    while rate <= high:
        yield rate
        rate *= RESOLUTION


def scan(scenario: Scenario, low: float, high: float, shown: bool = False) -> Scan:
    """Simulate every rate."""
    load, setup = Load(scenario), set_up(scenario)
    tried = list(rates(low, high))
    found = [
        (rate, observe(setup, load.at(rate)).meets(scenario.slo))
        for rate in track(tried, "scanning", disable=not shown, transient=True)
    ]
    missed = [rate for rate, met in found if not met]
    until = min(missed, default=high * RESOLUTION)
    return Scan(max(rate for rate, met in found if met), max((rate for rate, _ in found if rate < until), default=low))


def main() -> None:
    """Print the comparison."""
    console, scenario = Console(), scenario_from_dict(QWEN)
    begun = time.process_time()
    found = capacity(scenario)
    spent = time.process_time() - begun
    low, high = found.interval or (0.0, 0.0)
    console.print(f"capacity: {found.rate:.2f} requests/s ({low:.1f} to {high:.1f}), binds {found.binds}")
    console.print(f"{spent:.1f} CPU seconds, repetitions included (bar: {MOST_CPU_SECONDS:g})")
    begun = time.process_time()
    every = scan(scenario, found.rate / 2, 2 * found.rate, shown=True)
    console.print(f"scan: {every.largest:.2f} is the largest that is carried; all are up to {every.first:.2f}")
    difference = abs(found.rate / every.largest - 1)
    console.print(
        f"difference {difference:.2%} (bar: {MOST_DIFFERENCE:.0%}); {time.process_time() - begun:.1f} CPU seconds"
    )


if __name__ == "__main__":
    main()
