"""`python -m studies phases`: what reasoning agents gain when answers go before planning.

How long users wait under several loads, and, by a search, how many requests are carried within a limit on that wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
from rich.progress import track

from steelyard import Result, load_scenario, simulate
from steelyard.search.search import SearchResult
from studies.page import images, write_section
from studies.runs import EXAMPLES
from studies.searches import answered, asked
from studies.svg import Curve, Panel, figure

TEMPLATE = EXAMPLES / "studies" / "phases.yaml"
SEARCH = "phases"
RATES = (0.3, 0.5, 0.6, 0.7, 0.8)
SEEDS = range(1, 7)
POLICIES = {"first come": "vllm", "phase-aware": "phase-aware"}


@dataclass(frozen=True)
class Run:
    """One load with one seed and policy."""

    attft_p50: float
    attft_p95: float
    planning: float  # hidden output tokens a second, from the first submission to the last end of a hidden round
    tpot: float  # mean, of visible answers


def main(changes: Sequence[str]) -> None:
    """Both policies under each load and seed; the figure and the page's section if nothing was changed."""
    every = [(rate, seed, policy) for rate in RATES for seed in SEEDS for policy in POLICIES]
    runs: dict[tuple[float, int, str], Run] = {}
    for rate, seed, policy in track(every, "phases"):
        own = [f"workload.arrivals.rate={rate}", f"seed={seed}", f"engine.scheduler={POLICIES[policy]}"]
        runs[rate, seed, policy] = run_of(simulate(load_scenario(TEMPLATE, [*changes, *own])))
    text = f"{table(runs)}\n\n{carried(answered(asked(SEARCH, changes)))}"
    print(text)
    if not changes:
        images().joinpath("phases.svg").write_text(drawn(runs), encoding="utf-8")
        write_section("phases", text)


def run_of(result: Result) -> Run:
    """What users of visible answers saw, and how fast planning went."""
    requests = result.requests
    done = requests["status"] == "finished"
    visible, hidden = done & (requests["phase"] == "visible"), done & (requests["phase"] == "hidden")
    p50, p95 = np.percentile(requests["attft"][visible], [50, 95])
    span = float(requests["finish"][hidden].max() - requests["arrival"].min())
    tokens = float(requests["output"][hidden].sum())
    return Run(float(p50), float(p95), tokens / span, float(requests["tpot"][visible].mean()))


def changes_by_seed(runs: dict[tuple[float, int, str], Run], rate: float, figure: str) -> list[float]:
    """How much phase-aware changes a figure, seed by seed, as a share."""
    found = []
    for seed in SEEDS:
        before, after = (vars(runs[rate, seed, policy])[figure] for policy in POLICIES)
        found.append(after / before - 1)
    return found


def table(runs: dict[tuple[float, int, str], Run]) -> str:
    """Means over seeds, with the range of single seeds."""
    lines = [
        "| requests/s | p95 aTTFT, first come | phase-aware | change, mean (range) | p50 | planning tokens/s |",
        "| --- " * 6 + "|",
    ]
    for rate in RATES:
        first, other = (mean(runs[rate, seed, policy].attft_p95 for seed in SEEDS) for policy in POLICIES)
        cells = [_spread(changes_by_seed(runs, rate, name)) for name in ("attft_p95", "attft_p50", "planning")]
        lines.append(f"| {rate:g} | {first:.1f} s | {other:.1f} s | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(shares: Sequence[float]) -> str:
    return f"{100 * mean(shares):+.1f} % ({100 * min(shares):+.1f} to {100 * max(shares):+.1f})"


def carried(found: SearchResult) -> str:
    """What each policy carries within each limit."""
    lines = ["| limit | requests/s, first come | phase-aware |", "| --- " * 3 + "|"]
    for level in found.levels:
        rates = {choice.fleet["pools"][0]["engine"]["scheduler"]: choice.rate for choice in level.choices}
        cells = [f"{rates[name]:.3f}" if name in rates else "none" for name in POLICIES.values()]
        lines.append(f"| {level.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def drawn(runs: dict[tuple[float, int, str], Run]) -> str:
    """p95 of both policies by load, and what the one changes, seed by seed."""
    curves = [
        Curve(policy, RATES, [mean(runs[rate, seed, policy].attft_p95 for seed in SEEDS) for rate in RATES])
        for policy in POLICIES
    ]
    dots_x = [rate for rate in RATES for _ in SEEDS]
    cuts = [-100 * share for rate in RATES for share in changes_by_seed(runs, rate, "attft_p95")]
    means = [-100 * mean(changes_by_seed(runs, rate, "attft_p95")) for rate in RATES]
    shown = [Curve("one seed", dots_x, cuts, kind="dots"), Curve("mean", RATES, means)]
    load = "requests per second"
    panels = [Panel("p95 of aTTFT", load, "seconds", curves), Panel("What phase-aware cuts of it", load, "%", shown)]
    return figure("Answers before planning", panels)
