"""`python -m studies pareto`: which architecture carries most on 256 GPUs, by how long a first token may take.

`estimates` is the same without simulation: what the best fleet of each architecture should carry by its compiled costs.
"""

from __future__ import annotations

from collections.abc import Sequence

from steelyard.cli.console import SearchProgress
from steelyard.search.search import FleetChoice, SearchResult, space_of
from steelyard.words import count, seconds
from steelyard.workload import build_workload
from studies.page import images, write_section
from studies.searches import answered, asked, best_of
from studies.svg import Bars, figure

SEARCH = "pareto-256"


def main(changes: Sequence[str]) -> None:
    """Find the best of each architecture; write the figure and the page's section if nothing was changed."""
    found = answered(asked(SEARCH, changes))
    text = table(found)
    print(text)
    if not changes:
        images().joinpath("pareto.svg").write_text(drawn(found), encoding="utf-8")
        write_section("pareto", text)


def estimates(changes: Sequence[str]) -> None:
    """Print what each architecture should carry by its compiled costs."""
    scenario = asked(SEARCH, changes)
    tokens = float(build_workload(scenario.workload, scenario.seed, scenario.base_dir).output.mean())
    with SearchProgress() as progress:
        space = space_of(scenario, progress=progress)
    for architecture in scenario.search.chosen():
        groups = [group for group in space.groups if group.architecture == architecture and len(group)]
        if not groups:
            print(f"{architecture}: nothing")
            continue
        group = max(groups, key=lambda each: float(each.estimate.max()))
        row = int(group.estimate.argmax())
        print(f"{architecture}: {group.estimate[row] * tokens / 1e3:.1f}k output tokens/s: {group.name(row)}")


def table(found: SearchResult) -> str:
    """The section's text: what each architecture carries at each level, and the fleets behind these figures."""
    space = found.space
    lines = [
        f"{count(space.considered)} candidates: {count(space.no_room)} do not fit their GPUs' memory, "
        f"{count(space.refused)} cannot be built.",
        "",
        "| architecture | can be built | ruled out by bounds | simulated | whole simulations | "
        + " | ".join(level.name for level in found.levels)
        + " |",
        "| --- " * (5 + len(found.levels)) + "|",
    ]
    for architecture, tally in found.tallies.items():
        built = sum(len(group) for group in space.groups if group.architecture == architecture)
        cells = [_tokens(best_of(found, architecture, level.name)) for level in found.levels]
        counts = f"{count(built)} | {count(tally.by_bound)} | {count(tally.simulated)} | {count(tally.whole)}"
        lines.append(f"| {architecture} | {counts} | {' | '.join(cells)} |")
    lines += ["", "The fleets behind these figures:", ""]
    for architecture in found.tallies:
        for level in found.levels:
            choice = best_of(found, architecture, level.name)
            if choice is not None:
                lines.append(f"- {architecture}, {level.name}: {_told(choice)}")
    return "\n".join(lines)


def _tokens(choice: FleetChoice | None) -> str:
    return "none" if choice is None else f"{choice.output_tokens_per_s / 1e3:.1f}k"


def _told(choice: FleetChoice) -> str:
    measured = ", ".join(f"{name} {seconds(value)}" for name, value in choice.outcome.values.items())
    return f"{choice.name}. {choice.rate:.0f} requests/s (estimate {choice.estimate:.0f}), {measured}."


def drawn(found: SearchResult) -> str:
    """Bars by architecture, a panel for each level."""
    panels = []
    for level in found.levels:
        best = [best_of(found, architecture, level.name) for architecture in found.tallies]
        tokens = [0.0 if each is None else each.output_tokens_per_s / 1e3 for each in best]
        panels.append(Bars(level.name, "thousand output tokens/s", list(found.tallies), [("", tokens)]))
    return figure("What 256 H800 carry at 50 tokens/s per user", panels)
