"""`python -m studies figures`: every example's figure, and the page that shows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.progress import track

from steelyard import UserError
from steelyard.words import dollars, percent, seconds, significant
from studies.gallery import GALLERY, PLAIN, Shown
from studies.runs import EXAMPLES, Runs
from studies.svg import figure

DOCS = EXAMPLES.parent / "docs"
IMAGES = DOCS / "images" / "examples"
PAGE = DOCS / "examples.md"

_HEAD = """# Examples

One scenario for each architecture, with what it is about as a figure. `python -m studies figures` (or `make figures`)
runs them all and writes the figures and this page. Operators of the H200 come from the profile that ships with the
package, and are transferred to the H100, H800 and H20; all others come from the roofline, so those are first estimates.
"""


def names() -> list[str]:
    """The examples in the order of the gallery, those that it does not know at its end."""
    there = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
    return [name for name in GALLERY if name in there] + [name for name in there if name not in GALLERY]


def shown(name: str) -> Shown:
    """What to show of an example."""
    return GALLERY.get(name, PLAIN)


def draw(name: str, runs: Runs | None = None) -> str:
    """An example's figure."""
    what = shown(name)
    runs = runs or Runs(EXAMPLES / f"{name}.yaml")
    return figure(what.title or name, [panel(runs) for panel in what.panels])


def main(chosen: Sequence[str]) -> None:
    """Write the figures of the chosen examples, and the page if they are all of them."""
    unknown = [name for name in chosen if name not in names()]
    if unknown:
        raise UserError(f"no example is called {unknown[0]}; there are {', '.join(names())}")
    IMAGES.mkdir(parents=True, exist_ok=True)
    sections = []
    for name in track(chosen or names(), "examples"):
        runs = Runs(EXAMPLES / f"{name}.yaml")
        (IMAGES / f"{name}.svg").write_text(draw(name, runs), encoding="utf-8")
        sections.append(_section(name, runs))
    if not chosen:
        PAGE.write_text("\n".join([_HEAD, *sections]), encoding="utf-8")


def _section(name: str, runs: Runs) -> str:
    what, summary = shown(name), runs().summary
    title = what.title or name
    kinds = " and ".join(f"{pool.gpus} {pool.gpu.upper()} ({pool.name})" for pool in summary.pools)
    met = [f"{limit.replace('_', ' ')} {'met' if each.met else 'missed'}" for limit, each in summary.slo.items()]
    facts = [
        f"{summary.model} on {kinds}",
        f"TTFT p95 {seconds(summary.ttft.p95)}",
        *([f"aTTFT p95 {seconds(summary.attft.p95)}"] if "attft_p95" in summary.slo else []),
        f"TPOT p95 {seconds(summary.tpot.p95)}",
        f"{significant(summary.throughput.output_tokens_per_s)} output tokens/s",
        f"{dollars(summary.cost.usd_per_million_output_tokens)} per million of them",
        *([f"{percent(summary.prefix_cache.hit_rate)} of prompts cached"] * bool(summary.prefix_cache.hit_tokens)),
        *met,
    ]
    picture = Path("images") / "examples" / f"{name}.svg"
    lines = [f"## {title}", "", what.sentence, "", f"![{title}]({picture.as_posix()})", ""]
    return "\n".join([*lines, f"    steelyard simulate examples/{name}.yaml", "", "; ".join(facts) + ".", ""])
