"""Ways to run post-training side by side: a table on the console, and a page with a figure for each scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from steelyard.posttrain.compare_choices import OURS, Choice, Kind
from steelyard.posttrain.compare_outcomes import JUDGED_BY, Comparison, Outcome
from steelyard.report.markdown import code, plain
from steelyard.report.names import file_name

_EVEN = 0.001  # relative difference of throughputs that counts as even
_WIDTH = 132  # of the table, also on narrower terminals: cells must not be cut
_HEADS: dict[Kind, str] = {
    "ours": "Ours",
    "bound": "Bounds",
    "rival": "Others",
    "change": "Ours with one thing changed",
}
_COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("tokens/s", lambda row: f"{row['tokens_per_second']:,.0f}"),
    ("settled", lambda row: f"{row[JUDGED_BY]:,.0f}"),
    ("seeds", lambda row: f"{row['seeds']}, ±{row['spread']:.1%}" if row["seeds"] > 1 else "1"),
    ("samples/s", lambda row: f"{row['samples_per_second']:.2f}"),
    ("step s", lambda row: f"{row['step_seconds']:,.1f}"),
    ("roll idle", lambda row: f"{row['rollout_idle']:.0%}"),
    ("train idle", lambda row: f"{row['training_idle']:.0%}"),
    ("behind", lambda row: f"{row['staleness']:.2f}"),
    ("given up", lambda row: f"{row['given_up']:.1%}" if row["given_up"] else ""),
)


def print_comparison(found: Comparison, console: Console) -> None:
    """Everything that ran, as a table; then what could not be run, and the verdict."""
    title = Text(f"{found.scenario.name}: {found.scenario.steps} steps")
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("", no_wrap=True)
    heads, rows = _table(found)
    for head in heads[1:]:
        table.add_column(head, justify="right")
    kind = None
    for outcome, cells in rows:
        if outcome.contender.kind != kind:
            kind = outcome.contender.kind
            table.add_section()
            table.add_row(Text(_HEADS[kind], style="bold"))
        table.add_row(*map(Text, cells))
    width, console.width = console.width, max(console.width, _WIDTH)
    console.print(table)
    console.width = width
    console.print("* is told lengths in advance")
    for line in verdict(found):
        console.print(Text(line), soft_wrap=True, highlight=False)
    for outcome in found.outcomes:
        if outcome.refused:
            console.print(Text(f"not run: {outcome.contender.name}: {outcome.refused}"), soft_wrap=True)


def verdict(found: Comparison) -> Iterator[str]:
    """Our throughput against the bounds, the best of all others, and each rival."""
    ours = found.find("ours")
    if not ours.runs:
        return
    bounds = [each for each in found.outcomes if each.contender.kind == "bound" and each.runs]
    if bounds:
        said = ", ".join(f"{1 / each.of(ours):.1%} of {each.contender.name}" for each in bounds)
        yield f"Ours reaches {said}."
    yield _standing(ours, [each for each in found.fair if each.runs and each is not ours])
    rivals = [each for each in found.outcomes if each.contender.kind == "rival" and each.runs]
    if rivals:
        said = ", ".join(f"{each.contender.name} {1 / each.of(ours):.2f}x" for each in rivals)
        yield f"Ours against others: {said}."


def _standing(ours: Outcome, others: Sequence[Outcome]) -> str:
    """Whether ours is the best of those that do not know lengths in advance, and by how much."""
    first = "Ours is the best of all that know no lengths in advance"
    best = max(others, key=lambda each: each.of(ours), default=None)
    if best is None:
        return f"{first}: no other was run."
    if level := [each.contender.name for each in others if abs(each.of(ours) - 1) < _EVEN]:
        first += f", even with {', '.join(level)}"
    if best.of(ours) >= 1 + _EVEN:
        lead = f"{best.of(ours) - 1:+.1%} against ours{_seeds(best, ours)}"
        return f"Best without foresight: {best.contender.name}, {lead}."
    if level:
        return f"{first}."
    return f"{first}: {1 / best.of(ours) - 1:+.1%} against the next, {best.contender.name}{_seeds(ours, best)}."


def _seeds(winner: Outcome, other: Outcome) -> str:
    """With how many of several seeds the winner leads."""
    won, of = winner.ahead_of(other)
    if of == 1:
        return ""
    return f", ahead with {won} of {of} seeds" + ("" if won == of else ", so the two are even")


def comparison_page(found: Sequence[Comparison], command: str, images: str) -> str:
    """The page in Markdown, with the command that makes it. ``images`` is the folder of figures, as in its links."""
    parts = [_INTRODUCTION.format(command=code(command), ours=_described(OURS))]
    for each in found:
        scenario = each.scenario
        parts.append(
            f"## {plain(scenario.name)}\n\n{plain(str(scenario.model.config))} on "
            f"{scenario.gpus} {plain(scenario.gpu)}, "
            f"{scenario.trajectories.prompts * scenario.trajectories.group:,} trajectories a step, "
            f"{scenario.steps} steps.\n\n![Throughput]({images}/{file_name(scenario.name)}.svg)\n\n"
            + "\n".join(f"- {line}" for line in verdict(each))
            + f"\n\n{_markdown(each)}"
        )
        refused = [outcome for outcome in each.outcomes if outcome.refused]
        if refused:
            parts.append(
                "\n".join(f"- Not run: {each.contender.name}: {plain(each.refused)}" for each in refused) + "\n"
            )
    return "\n".join(parts)


def _markdown(found: Comparison) -> str:
    heads, rows = _table(found)
    lines = [f"| {' | '.join(heads)} |", f"| --- | {' | '.join(['---:'] * (len(heads) - 1))} |"]
    kind = None
    for outcome, cells in rows:
        if outcome.contender.kind != kind:
            kind = outcome.contender.kind
            lines.append(f"| **{_HEADS[kind]}** |{' |' * (len(heads) - 1)}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _table(found: Comparison) -> tuple[list[str], list[tuple[Outcome, list[str]]]]:
    """Headings, and cells of each outcome that has figures."""
    ours, oracle = found.find("ours"), found.oracle
    learnt = any(each.figures.get("time_to_reward") for each in found.outcomes)
    one = all(len(each.runs) <= 1 for each in found.outcomes)
    columns = [(head, said) for head, said in _COLUMNS if not (one and head == "seeds")]
    heads = ["", *(head for head, _ in columns), "of ours", "of oracle"] + (["reward s"] if learnt else [])
    rows = []
    for each in found.outcomes:
        if not each.runs:
            continue
        known = " *" if each.contender.choice.knows else ""
        cells = [each.contender.name + known, *(said(each.figures) for _, said in columns)]
        cells += [f"{each.of(whole):.1%}" if whole.runs else "" for whole in (ours, oracle)]
        if learnt:
            cells.append(_reward(each.figures["time_to_reward"]))
        rows.append((each, cells))
    return heads, rows


def _reward(target: dict[str, Any] | None) -> str:
    if target is None:
        return ""
    return f"{'' if target['reached'] else '~'}{target['seconds']:,.0f}"


def _described(choice: Choice) -> str:
    streaming = ", streaming" if choice.streaming else ""
    weighed = ", gradients weighed by tokens" if choice.weighed else ""
    return (
        f"`{choice.mode}`{streaming}, router `{choice.router}` with estimator `{choice.estimator}`, planner "
        f"`{choice.planner}`, tail `{choice.tail}`, pool `{choice.pool}`{weighed}"
    )


_INTRODUCTION = """# Ways to run post-training, compared

> **Provisional: do not quote the figures of other systems.** Synchronous systems run here on a split of the GPUs, while
> theirs are co-located, and others run with queue caps and budgets that are not theirs. The page will be made again,
> with each system as its authors run it.

Made by {command}.
Every way runs on the same simulator with the same costs and the same trajectories; [posttrain.md](posttrain.md) says
what it simulates.

- **Ours** is {ours}.
- **Oracle** is ours with an estimator that knows what trajectories will come to; with a **fixed split** it has the best
  one in hindsight, too: the better of the two predicted to be best from a sample of its steps. **Static best** is
  ours with that split. A star marks ways that know lengths in advance; *of oracle* is against the best of those, with
  or without hindsight.
  (`--planners oracle` also moves GPUs by what is to come; it takes long, and gains only where lengths drift.)
- **Others** are what their papers and code describe, in our own implementation of their decisions. Those with a fixed
  split have the best one in hindsight, which is more than they have in practice.
- Throughput is tokens of trained samples per second. All are judged by *settled* ones: from half of the steps on, when
  plans have settled, up to the last two, which have engines to themselves as nothing new begins; in whole rounds of
  six, as batches that began together take turns in being long. A real run goes on for hundreds of steps, so how it
  begins and ends does not matter.
- With several *seeds*, ways within a tenth of the best are run with all of them: figures are their mean, ± half of
  what lies between the best seed and the worst. *Of ours* and *of oracle* are over the seeds that both were run
  with. A lead that not every seed shows is called even.
- *Behind* is the mean age of samples in weight versions; all asynchronous ways have the same bound on it. *Given up*
  are samples that were begun and never trained on, mostly long ones. *Reward* is the time to the reward that the
  scenario names, under its learning model; with ~ at the rate of the later half, as the run was over before.
"""
