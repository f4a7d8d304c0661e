"""`python -m bench.steady [SEEDS]`: how often the interval of a steady window holds the rate that was asked for.

Each load is run with many seeds. A run that says it has no steady window makes no claim, so only the others count.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from steelyard import scenario_from_dict, simulate

CHAT = {
    "prompt": {"kind": "lognormal", "median": 900, "p95": 3000},
    "output": {"kind": "lognormal", "median": 150, "p95": 600},
}
FIXED = {"prompt": 300, "output": 60}
ONE_AT_A_TIME = {"engine": {"max_num_seqs": 1}, "fleet": {"gpu": "h100"}}  # M/D/1: 2.5 requests/s at most
FOUR = {"fleet": {"gpu": "h100", "replicas": 4, "router": "least-outstanding"}}


@dataclass(frozen=True)
class Case:
    """A load of which the truth is known."""

    name: str
    rate: float
    requests: int
    work: dict[str, Any]
    fleet: dict[str, Any]

    def scenario(self, seed: int) -> dict[str, Any]:
        """With one of many draws."""
        asked = {"arrivals": {"kind": "poisson", "rate": self.rate}, "requests": self.requests, **self.work}
        return {"model": "llama-3.1-8b", "workload": asked, "seed": seed, "cost": {"source": "analytic"}, **self.fleet}


CASES = (
    Case("chat, 4 H100", 20.0, 600, CHAT, FOUR),
    Case("chat, 4 H100", 48.0, 500, CHAT, FOUR),
    Case("chat, 4 H100", 48.0, 2000, CHAT, FOUR),
    Case("chat, 4 H100", 64.0, 6000, CHAT, FOUR),
    Case("one at a time", 1.6, 1500, FIXED, ONE_AT_A_TIME),
    Case("one at a time", 2.4, 1500, FIXED, ONE_AT_A_TIME),
    Case("one at a time", 4.0, 1500, FIXED, ONE_AT_A_TIME),
)


def main(seeds: int) -> None:
    """Print a line for each case."""
    print("| load | requests/s | requests | windows | hold the rate | mean error | whole run | else |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for case in CASES:
        held, errors, whole, reasons = [], [], [], set()
        for seed in range(seeds):
            summary = simulate(scenario_from_dict(case.scenario(seed))).summary
            whole.append(summary.throughput.requests_per_s)
            if summary.steady is None:
                reasons.add("" if summary.unsteady is None else summary.unsteady.reason.split(":")[0])
                continue
            low, high = summary.steady.sampling["requests_per_s"]
            held.append(low <= case.rate <= high)
            errors.append(summary.steady.throughput.requests_per_s / case.rate - 1)
        share, error = (f"{np.mean(held):.0%}", f"{np.mean(errors):+.1%}") if held else ("", "")
        print(
            f"| {case.name} | {case.rate:g} | {case.requests:,} | {len(held)} of {seeds} | {share} | {error} | "
            f"{np.mean(whole):.3g} | {', '.join(sorted(reasons))} |",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
