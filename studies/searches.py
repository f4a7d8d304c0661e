"""Searches of studies: shipped scenarios, with changes as of `--set`, that can be stopped and taken up again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from steelyard.cli.console import SearchProgress
from steelyard.scenario.load import load
from steelyard.scenario.search import SearchScenario
from steelyard.search.journal import point_key
from steelyard.search.search import FleetChoice, SearchResult, find_fleets
from studies.runs import EXAMPLES

SEARCHES = EXAMPLES / "search"
JOURNALS = Path("runs") / "studies"


def asked(name: str, changes: Sequence[str]) -> SearchScenario:
    """A shipped search with changes."""
    return load(SearchScenario, SEARCHES / f"{name}.yaml", changes)


def journal_of(scenario: SearchScenario) -> Path:
    """Where a search keeps its simulations: a place of its own for each search and version of the code."""
    return JOURNALS / f"{scenario.name}-{point_key(scenario)[:12]}.jsonl"


def answered(scenario: SearchScenario) -> SearchResult:
    """The answer of a search. Simulations of earlier calls are not repeated."""
    with SearchProgress() as progress:
        return find_fleets(scenario, journal=journal_of(scenario), progress=progress)


def best_of(found: SearchResult, architecture: str, level: str = "") -> FleetChoice | None:
    """The best fleet of an architecture at a level of the limits."""
    (one,) = (each for each in found.levels if each.name == level)
    return next((each for each in one.choices if each.architecture == architecture), None)


def gpus_of(choice: FleetChoice) -> Counter[str]:
    """GPUs of a fleet by their type."""
    counts: Counter[str] = Counter()
    for pool in choice.fleet["pools"]:
        counts[pool["gpu"]] += pool["replicas"] * pool["tp"] * pool["pp"] * pool["dp"]
    return counts


def usd_per_million(choice: FleetChoice) -> float:
    """Dollars for a million output tokens."""
    return choice.usd_per_hour / (choice.output_tokens_per_s * 3600 / 1e6)
