"""`python -m studies roles`: what a token costs when H20 take a role beside H800."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.progress import track

from steelyard import load_scenario
from steelyard.hardware import find_gpu
from steelyard.sim.setup import set_up
from studies.capacity import Candidate, Contest, Limit, Winner
from studies.estimates import asked_of
from studies.fleets import fleet_of, front
from studies.layouts import Kind, Workshop
from studies.outcome import GROWTH, Book, Outcome
from studies.page import images, write_section
from studies.runs import EXAMPLES
from studies.svg import Bars, figure

TEMPLATE = EXAMPLES / "studies" / "roles.yaml"
LIMIT = Limit(3.0, 0.020)  # 50 tokens/s for each user
FIFTHS = 5  # loads are found on a fifth of the fleet, and tried on all of it
_KINDS = 2  # of engines that are tried on each side


@dataclass(frozen=True)
class Assignment:
    """Who does what, in GPUs of a fifth of the fleet; ``ffn`` where attention and FFN are apart."""

    name: str
    prefill: str
    answers: str
    prefills: int = 96
    answering: int = 96
    ffn: str | None = None

    @property
    def baseline(self) -> str:
        """The assignment that it is measured against."""
        return "AFD: all H800" if self.ffn else "PDD 1:1: all H800"


ASSIGNMENTS = (
    Assignment("PDD 1:1: all H800", "h800", "h800"),
    Assignment("PDD 1:1: H20 decode", "h800", "h20"),
    Assignment("PDD 1:1: H20 prefill", "h20", "h800"),
    Assignment("PDD 2:6: all H800", "h800", "h800", 48, 144),
    Assignment("PDD 2:6: H20 decode", "h800", "h20", 48, 144),
    Assignment("AFD: all H800", "h800", "h800", ffn="h800"),
    Assignment("AFD: H20 attention", "h800", "h20", ffn="h800"),
    Assignment("AFD: H20 FFN", "h800", "h800", ffn="h20"),
)


@dataclass(frozen=True)
class Standing:
    """The best that an assignment does within a limit, on a fifth of the fleet and, at that load, on all of it."""

    winner: Winner
    whole: Outcome
    met: bool


Standings = dict[str, Standing]  # by assignment


def main(changes: Sequence[str]) -> None:
    """Every assignment within the limits; the figure and the page's section if nothing was changed."""
    output = asked_of(set_up(load_scenario(TEMPLATE, list(changes)))).output
    book = Book("roles")
    shop = Workshop(TEMPLATE, changes, LIMIT.tpot)
    prefill = {gpu: front(shop.prefilling(gpu).kinds)[:_KINDS] for gpu in ("h800", "h20")}
    found: Standings = {}
    for each in track(ASSIGNMENTS, "roles"):
        contest = Contest(TEMPLATE, changes, [LIMIT], output, book)
        contest.enter(candidates(shop, prefill[each.prefill], each), _KINDS * _KINDS, lambda _: None)
        if LIMIT in contest.best:
            found[each.name] = on_all(contest)
    text = table(found)
    print(text)
    if not changes:
        images().joinpath("roles.svg").write_text(drawn(found), encoding="utf-8")
        write_section("roles", text)


def candidates(shop: Workshop, prefill: Sequence[Kind], each: Assignment) -> list[Candidate]:
    """The best engines for each side, as many as its GPUs allow."""
    answering = shop.units(each.answers, each.ffn, False, each.answering) if each.ffn else shop.decoding(each.answers)
    fitting = [kind for kind in answering.kinds if each.answering % kind.gpus == 0]
    best = sorted(fitting, key=lambda kind: (-kind.per_gpu, kind.name))[:_KINDS]
    return [_fleet(one, other, each) for one in prefill for other in best]


def _fleet(one: Kind, other: Kind, each: Assignment) -> Candidate:
    prefills, answers = each.prefills // one.gpus, each.answering // other.gpus
    fleet = fleet_of(one.times(prefills) + other.times(answers), other, answers)
    name = f"{prefills} x ({one.name}) to {answers} x ({other.name})"
    return Candidate(name, fleet, min(prefills * one.per_second, answers * other.per_second))


def on_all(contest: Contest) -> Standing:
    """The same engines and the same load for each of them, on the whole fleet."""
    winner = contest.best[LIMIT]
    fleet = dict(winner.candidate.fleet)
    fleet["pools"] = [{**pool, "replicas": FIFTHS * pool["replicas"]} for pool in fleet["pools"]]
    if "afd" in fleet:
        fleet["afd"] = {**fleet["afd"], "units": FIFTHS * fleet["afd"]["units"]}
    whole = contest.measure(Candidate(winner.candidate.name, fleet, 0.0), FIFTHS * winner.outcome.rate, LIMIT)
    return Standing(winner, whole, whole.meets(LIMIT.ttft, LIMIT.tpot))


def gpus_of(candidate: Candidate) -> dict[str, int]:
    """GPUs by type."""
    counts: dict[str, int] = {}
    for pool in candidate.fleet["pools"]:
        counts[pool["gpu"]] = counts.get(pool["gpu"], 0) + pool["replicas"] * pool.get("tp", 1) * pool.get("dp", 1)
    return counts


def efficiency(found: Standings, each: Assignment) -> float | None:
    """Tokens per dollar over those of the same architecture on H800 alone."""
    own, base = found.get(each.name), found.get(each.baseline)
    if own is None or base is None:
        return None
    return base.winner.outcome.usd_per_million_output_tokens / own.winner.outcome.usd_per_million_output_tokens


def worth(found: Standings, each: Assignment) -> float | None:
    """The share of an H800's price that an H20 may cost at most, if tokens are not to become dearer."""
    own, base = found.get(each.name), found.get(each.baseline)
    if own is None or base is None:
        return None
    mine, theirs = gpus_of(own.winner.candidate), gpus_of(base.winner.candidate)
    if "h20" not in mine:
        return None
    gained = own.winner.outcome.output_tokens_per_s / base.winner.outcome.output_tokens_per_s
    return (gained * theirs["h800"] - mine.get("h800", 0)) / mine["h20"]


def table(found: Standings) -> str:
    """The section's text: figures, and the fleets behind them."""
    lines = [
        "| who does what | output tokens/s | per GPU | $ per million | efficiency | H20 worth | on all GPUs |",
        "| --- " * 7 + "|",
        *(_row(found, each) for each in ASSIGNMENTS),
        "",
        *(f"- {name}: {each.winner.candidate.name}" for name, each in found.items()),
        "",
    ]
    h800, h20 = (find_gpu(name).price_per_hour for name in ("h800", "h20"))
    return "\n".join([*lines, f"Prices per GPU-hour: H800 ${h800:.2f}, H20 ${h20:.2f}."])


def _row(found: Standings, each: Assignment) -> str:
    standing = found.get(each.name)
    if standing is None:
        return f"| {each.name} | – | – | – | – | – | no load meets the limits |"
    outcome, whole = standing.winner.outcome, standing.whole
    per_gpu = outcome.output_tokens_per_s / sum(gpus_of(standing.winner.candidate).values())
    share, most = efficiency(found, each), worth(found, each)
    grows = f", waiting grows by {100 * whole.growth:.0f} % of the time" if whole.growth > GROWTH else ""
    verdict = "met" if standing.met else "missed"
    cells = [
        f"{FIFTHS * outcome.output_tokens_per_s / 1e3:.0f}k",
        f"{per_gpu:.0f}",
        f"{outcome.usd_per_million_output_tokens:.2f}",
        "–" if share is None else f"{share:.2f}",
        "" if most is None else "nothing" if most <= 0 else f"{most:.2f} of an H800",
        f"{verdict}: TTFT {whole.ttft_p95 * 1e3:.0f} ms, TPOT {whole.tpot_p95 * 1e3:.1f} ms{grows}",
    ]
    return f"| {each.name} | {' | '.join(cells)} |"


def drawn(found: Standings) -> str:
    """Efficiency of each assignment beside H800 alone."""
    panels = []
    for architecture in ("PDD", "AFD"):
        shown = [each for each in ASSIGNMENTS if each.name.startswith(architecture) and each.name != each.baseline]
        names = [each.name.removeprefix(architecture).strip(" :").replace(": ", "\n") for each in shown]
        values = [efficiency(found, each) or 0.0 for each in shown]
        panels.append(Bars(architecture, "tokens per $, over all H800", names, [("", values)], [(1.0, "H800 alone")]))
    return figure("H20 in a role beside H800, at 50 tokens/s per user", panels)
