"""`python -m studies roles`: what a token costs on 1,024 GPUs when H20 take a role beside H800."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steelyard.hardware import find_gpu
from steelyard.search.search import FleetChoice
from steelyard.words import count, seconds
from studies.page import images, write_section
from studies.searches import answered, asked, best_of, gpus_of, usd_per_million
from studies.svg import Bars, figure

SEARCH = "roles-1024"
PARTS = {"pdd": ("prefill", "decode"), "pdd+afd": ("prefill", "attention", "ffn")}
SHARES = {  # of the GPUs, that prefill
    "1:1": [0.5],
    "2:6": [0.25],
    "any": [eighths / 8 for eighths in range(1, 8)],
}
EITHER = "h800, h20"


@dataclass(frozen=True)
class Assignment:
    """Who does what: the GPU of each role, and how many of the GPUs prefill. A search finds the rest."""

    architecture: str
    split: str  # one of SHARES
    who: str
    gpus: Mapping[str, str]  # by role; H800 where nothing is said

    @property
    def name(self) -> str:
        """In the words of the page."""
        return f"{self.architecture} {self.split}: {self.who}"

    def changes(self) -> list[str]:
        """The search, in the words of `--set`."""
        told = [f"search.architectures={self.architecture}"]
        told += [f"search.{role}.gpu=[{self.gpus.get(role, 'h800')}]" for role in PARTS[self.architecture]]
        return [*told, f"search.prefill_share={SHARES[self.split]}"]


def _assignments(architecture: str, split: str, **who: Mapping[str, str]) -> list[Assignment]:
    return [Assignment(architecture, split, name.replace("_", " "), gpus) for name, gpus in who.items()]


ASSIGNMENTS = (
    *_assignments("pdd", "1:1", all_H800={}, H20_decode={"decode": "h20"}, H20_prefill={"prefill": "h20"}),
    *_assignments("pdd", "2:6", all_H800={}, H20_decode={"decode": "h20"}),
    *_assignments("pdd+afd", "1:1", all_H800={}, H20_attention={"attention": "h20"}, H20_FFN={"ffn": "h20"}),
    *_assignments("pdd", "any", all_H800={}, either={"prefill": EITHER, "decode": EITHER}),
    *_assignments("pdd+afd", "any", either={"prefill": EITHER, "attention": EITHER, "ffn": EITHER}),
)

Choices = dict[str, FleetChoice]  # by assignment


def main(changes: Sequence[str]) -> None:
    """Every assignment within the limits; the figure and the page's section if nothing was changed."""
    found: Choices = {}
    for each in ASSIGNMENTS:
        best = best_of(answered(asked(SEARCH, [*changes, *each.changes()])), each.architecture)
        if best is not None:
            found[each.name] = best
    text = table(found)
    print(text)
    if not changes:
        images().joinpath("roles.svg").write_text(drawn(found), encoding="utf-8")
        write_section("roles", f"![H20 in a role](images/studies/roles.svg)\n\n{text}")


def baseline(architecture: str) -> str:
    """The assignment that all of an architecture are measured against."""
    return f"{architecture} 1:1: all H800"


def efficiency(found: Choices, each: Assignment) -> float | None:
    """Tokens per dollar over those of the same architecture on H800 alone, split 1:1."""
    own, base = found.get(each.name), found.get(baseline(each.architecture))
    return None if own is None or base is None else usd_per_million(base) / usd_per_million(own)


def worth(found: Choices, each: Assignment) -> float | None:
    """The share of an H800's price that an H20 may cost at most, if tokens are not to become dearer than on H800."""
    own, base = found.get(each.name), found.get(baseline(each.architecture))
    if own is None or base is None or not gpus_of(own)["h20"]:
        return None
    mine = gpus_of(own)
    gained = own.output_tokens_per_s / base.output_tokens_per_s
    return (gained * gpus_of(base)["h800"] - mine["h800"]) / mine["h20"]


def table(found: Choices) -> str:
    """The section's text: figures, and the fleets behind them."""
    lines = [
        "| who does what | output tokens/s | H800 | H20 | $ per million | efficiency | H20 worth | p95 of TTFT, TPOT |",
        "| --- " * 8 + "|",
        *(_row(found, each) for each in ASSIGNMENTS),
        "",
        *(f"- {name}: {choice.name}" for name, choice in found.items()),
        "",
    ]
    h800, h20 = (find_gpu(name).price_per_hour for name in ("h800", "h20"))
    return "\n".join([*lines, f"Prices per GPU-hour: H800 ${h800:.2f}, H20 ${h20:.2f}."])


def _row(found: Choices, each: Assignment) -> str:
    choice = found.get(each.name)
    if choice is None:
        return f"| {each.name} | no load meets the limits |" + " |" * 6
    share, most, gpus = efficiency(found, each), worth(found, each), gpus_of(choice)
    cells = [
        f"{choice.output_tokens_per_s / 1e3:.0f}k",
        count(gpus["h800"]),
        count(gpus["h20"]),
        f"{usd_per_million(choice):.2f}",
        "–" if share is None else f"{share:.2f}",
        "" if most is None else "nothing" if most <= 0 else f"{most:.2f} of an H800",
        ", ".join(seconds(value) for value in choice.outcome.values.values()),
    ]
    return f"| {each.name} | {' | '.join(cells)} |"


def drawn(found: Choices) -> str:
    """Efficiency of each assignment beside H800 alone."""
    panels = []
    for architecture in PARTS:
        shown = [each for each in ASSIGNMENTS if each.architecture == architecture]
        names = ["\n".join([each.split, *each.who.split()]) for each in shown if each.name != baseline(architecture)]
        values = [efficiency(found, each) or 0.0 for each in shown if each.name != baseline(architecture)]
        panels.append(
            Bars(architecture, "tokens per $, over all H800", names, [("", values)], [(1.0, "all H800, 1:1")])
        )
    return figure("H20 in a role beside H800, at 50 tokens/s per user", panels)
