"""`python -m bench.exhaustive`: a search against simulations of every candidate, on a part of the study of 256 GPUs.

Model, traffic, limits and kinds of choices are those of examples/search/pareto-256.yaml. Each choice has fewer values,
and there are 64 GPUs. Every one of the fleets is simulated just above the rate of the fleet that the search names, for
each architecture and level of the limits. None may carry it, also none that the search left out by its bounds.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from steelyard.files.yamltext import read_yaml
from steelyard.scenario.checking import checked
from steelyard.scenario.search import SearchScenario
from steelyard.search.outcome import LoadOutcome
from steelyard.search.rates import RATIO
from steelyard.search.search import FleetChoice, Level, SearchResult, find_fleets
from steelyard.search.simulations import FleetPoint, simulate_point
from steelyard.sim.workers import as_completed

STUDY = Path(__file__).parents[1] / "examples" / "search" / "pareto-256.yaml"
_FEWER = {
    "serve": {"tp": [4, 8], "dp": [1, 2, 4], "gpus": [8, 16, 32]},
    "prefill": {"tp": [4, 8], "dp": [1, 2, 4], "gpus": [8, 16]},
    "decode": {"tp": [1, 2, 4], "dp": [4, 8, 16], "gpus": [16, 32], "expert_parallel": True},
    "attention": {"tp": 2, "instances": [8, 16]},
    "ffn": {"instances": [8, 16]},
}


def sub_space() -> SearchScenario:
    """The part of the study that is searched both ways."""
    said = read_yaml(STUDY)
    said["name"] = "a part of pareto-256"
    asked = said["search"]
    asked["decode"]["engine"]["max_num_seqs"] = [128, 256]
    asked |= {"gpus": 64, **{role: asked[role] | fewer for role, fewer in _FEWER.items()}}
    return checked(SearchScenario, said, lambda _: STUDY.name)


@dataclass(frozen=True)
class Contested:
    """What the search found for an architecture at a level, and the fleets of that architecture just above it."""

    level: Level
    architecture: str
    best: FleetChoice | None
    names: tuple[str, ...]
    points: tuple[FleetPoint, ...]


def contested(found: SearchResult) -> list[Contested]:
    """All architectures at all levels."""
    spec = found.scenario.search
    every: list[Contested] = []
    for level in found.levels:
        for architecture in found.tallies:
            best = next((each for each in level.choices if each.architecture == architecture), None)
            rate = 1 / spec.seconds if best is None else best.rate * RATIO  # without a fleet: any rate at all
            requests = max(spec.requests, round(rate * spec.seconds))
            groups = [group for group in found.space.groups if group.architecture == architecture]
            rows = [(group, row) for group in groups for row in range(len(group))]
            points = tuple(
                FleetPoint(group.fleet(row, spec), group.quantization, rate, requests) for group, row in rows
            )
            names = tuple(group.name(row) for group, row in rows)
            every.append(Contested(level, architecture, best, names, points))
    return every


def main() -> int:
    """Print a row per level and architecture. Returns 1 if the search missed a better fleet."""
    scenario = sub_space()
    begun = time.process_time(), time.monotonic()
    found = find_fleets(scenario, workers=2)
    print(
        f"{found.considered:,} candidates, {sum(map(len, found.space.groups)):,} fit; the search ran "
        f"{found.simulations:,} simulations in {time.monotonic() - begun[1]:.0f} s",
        flush=True,
    )
    missed = 0
    table = Table("limit", "architecture", "best of the search", "requests/s", "fleets simulated", "that carry more")
    simulated: dict[tuple[str, float], dict[int, LoadOutcome]] = {}
    for each in contested(found):
        rate = each.points[0].rate if each.points else 0.0
        known = simulated.setdefault((each.architecture, rate), {})
        if not known:  # levels with the same answer are judged by the same simulations
            known |= dict(as_completed(partial(simulate_point, scenario), list(each.points), 2))
        more = [each.names[i] for i, outcome in known.items() if outcome.meets(each.level.slo, scenario.search.good)]
        missed += len(more)
        told = ("none", "") if each.best is None else (each.best.name, f"{each.best.rate:.4g}")
        table.add_row(each.level.name, each.architecture, *told, f"{len(known):,}", ", ".join(more[:2]) or "0")
        print(f"{each.level.name}, {each.architecture}: {len(more)} carry more", flush=True)
    Console(width=180).print(table)
    print(f"{time.monotonic() - begun[1]:.0f} s in all")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
