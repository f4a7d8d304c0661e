"""`python -m studies pareto`: which architecture carries most on as many GPUs as the template's fleet has.

Within the template's limits, and with the first token within half a second.

`estimates` is the same without simulation: what the best fleet of each architecture should carry by its compiled costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.progress import Progress

from steelyard import Scenario, UserError, load_scenario
from steelyard.sim.setup import set_up
from studies.capacity import Candidate, Contest, Limit, Winner
from studies.estimates import asked_of
from studies.fleets import alike, apart
from studies.layouts import Found, Workshop
from studies.outcome import Book
from studies.page import images, write_section
from studies.runs import EXAMPLES
from studies.svg import Bars, figure

TEMPLATE = EXAMPLES / "studies" / "pareto.yaml"
GPU = "h800"
TIGHT = 0.5  # seconds to the first token, besides the template's own limit
_MOST_UNIT = 128  # GPUs of a unit
_TRIED = 16  # candidates of an architecture that are simulated at most


@dataclass(frozen=True)
class Standing:
    """An architecture, its candidates, and the best of them for each limit."""

    name: str
    estimate: float  # requests a second, the highest of any candidate
    candidates: int
    refused: int
    tried: int
    best: dict[Limit, Winner]


def main(changes: Sequence[str]) -> None:
    """Find the best of each architecture; write the figure and the page's section if nothing was changed."""
    template = load_scenario(TEMPLATE, list(changes))
    limits = [Limit(ttft, limit_of(template, "tpot")) for ttft in (limit_of(template, "ttft"), TIGHT)]
    output = asked_of(set_up(template)).output
    book = Book("pareto")
    standings = []
    with Progress() as progress:
        task = progress.add_task("compiling costs", total=None)
        entries = architectures(changes)
        progress.update(task, total=len(entries) * _TRIED)
        for done, (name, candidates, looked_at, refused) in enumerate(entries, 1):
            contest = Contest(TEMPLATE, changes, limits, output, book)
            progress.update(task, description=name)
            contest.enter(candidates, _TRIED, lambda _: progress.advance(task))
            progress.update(task, completed=done * _TRIED)
            estimate = max((each.estimate for each in candidates), default=0.0)
            standings.append(Standing(name, estimate, looked_at, refused, contest.tried, contest.best))
    text = table(standings, limits, output)
    print(text)
    if not changes:
        images().joinpath("pareto.svg").write_text(drawn(standings, limits), encoding="utf-8")
        write_section("pareto", text)


def estimates(changes: Sequence[str]) -> None:
    """Print what each architecture should carry."""
    output = asked_of(set_up(load_scenario(TEMPLATE, list(changes)))).output
    for name, candidates, _, _ in architectures(changes):
        best = max(candidates, key=lambda each: each.estimate, default=None)
        carried = "nothing" if best is None else f"{best.estimate * output / 1e3:.1f}k output tokens/s: {best.name}"
        print(f"{name}: {carried}")


def limit_of(template: Scenario, metric: str) -> float:
    """The template's limit of a p95, in seconds."""
    for limit in template.slo.on_run():
        if limit.metric == metric and limit.percentile == 95:
            return limit.seconds
    raise UserError(f"{template.source}: slo.{metric}_p95: missing; the study needs a limit")


def architectures(changes: Sequence[str]) -> list[tuple[str, list[Candidate], int, int]]:
    """(name, fleets, layouts of engines looked at, those of them that cannot work)."""
    template = load_scenario(TEMPLATE, list(changes))
    gpus = set_up(template).gpus
    shop = Workshop(TEMPLATE, changes, limit_of(template, "tpot"))
    serve, prefill, decode = shop.serving(GPU), shop.prefilling(GPU), shop.decoding(GPU)
    whole = shop.units(GPU, GPU, True, _MOST_UNIT)
    units = shop.units(GPU, GPU, False, _MOST_UNIT)

    def entry(name: str, candidates: list[Candidate], *parts: Found) -> tuple[str, list[Candidate], int, int]:
        return name, candidates, sum(part.looked_at for part in parts), sum(part.refused for part in parts)

    return [
        entry("co-located", list(alike(serve.kinds, gpus)), serve),
        entry("PDD", list(apart(prefill.kinds, decode.kinds, gpus)), prefill, decode),
        entry("AFD", list(alike(whole.kinds, gpus)), whole),
        entry("PDD + AFD", list(apart(prefill.kinds, units.kinds, gpus)), prefill, units),
    ]


def table(standings: Sequence[Standing], limits: Sequence[Limit], output: int) -> str:
    """The section's text."""
    lines = [
        "| architecture | layouts of engines | cannot work | fleets simulated | estimate | "
        + " | ".join(f"TTFT ≤ {limit.ttft:g} s" for limit in limits)
        + " |",
        "| --- " * (5 + len(limits)) + "|",
    ]
    for each in standings:
        cells = [
            f"{each.best[limit].outcome.output_tokens_per_s / 1e3:.1f}k" if limit in each.best else "–"
            for limit in limits
        ]
        counts = f"{each.candidates} | {each.refused} | {each.tried} | {each.estimate * output / 1e3:.1f}k"
        lines.append(f"| {each.name} | {counts} | {' | '.join(cells)} |")
    lines += ["", "The fleets behind these figures:", ""]
    for each in standings:
        for limit in limits:
            winner = each.best.get(limit)
            if winner is not None:
                found = winner.outcome
                lines.append(
                    f"- {each.name}, {limit.ttft:g} s: {winner.candidate.name}. {found.rate:.0f} requests/s (estimate "
                    f"{winner.candidate.estimate:.0f}), TTFT p95 {found.ttft_p95 * 1e3:.0f} ms, TPOT p95 "
                    f"{found.tpot_p95 * 1e3:.1f} ms."
                )
    return "\n".join(lines)


def drawn(standings: Sequence[Standing], limits: Sequence[Limit]) -> str:
    """Bars by architecture, a panel for each limit."""
    panels = []
    for limit in limits:
        tokens = [
            each.best[limit].outcome.output_tokens_per_s / 1e3 if limit in each.best else 0.0 for each in standings
        ]
        title = f"TTFT p95 within {limit.ttft:g} s"
        panels.append(Bars(title, "thousand output tokens/s", [each.name for each in standings], [("", tokens)]))
    return figure("What 256 H800 carry at 50 tokens/s per user", panels)
