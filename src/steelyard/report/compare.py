"""Ways to run post-training side by side: a table on the console, and a page with a figure for each scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from steelyard.posttrain.compare_choices import Kind
from steelyard.posttrain.compare_outcomes import JUDGED_BY, Comparison, Outcome
from steelyard.posttrain.compare_tuning import FOR_REWARD
from steelyard.posttrain.ways import WAYS
from steelyard.report.compare_standing import SAID, standing, verdict
from steelyard.report.markdown import code, plain
from steelyard.report.names import file_name

_WIDTH = 132  # of the table, also on narrower terminals: cells must not be cut
_HEADS: dict[Kind, str] = {
    "ours": "Ours",
    "bound": "Bounds",
    "rival": "Others",
    "change": "Our policies, and with one of them changed",
}
_COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("tokens/s", lambda row: f"{row['tokens_per_second']:,.0f}"),
    ("settled", lambda row: f"{row[JUDGED_BY]:,.0f}"),
    ("seeds", lambda row: f"{row['seeds']}, ±{row['spread']:.1%}" if row["seeds"] > 1 else "1"),
    ("samples/s", lambda row: f"{row['settled_samples_per_second']:.2f}"),
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


def comparison_page(found: Sequence[Comparison], command: str, images: str, made: str) -> str:
    """The page in Markdown, with the command that makes it, and of which commit and when it was ``made``. ``images`` is
    the folder of figures, as in its links."""
    ways = "; ".join(f"*{each.name}*" for each in WAYS)
    left_out = "".join(f"  - {line}\n" for line in _left_out(found))
    first = _INTRODUCTION.format(command=code(command), made=made, ways=ways, left_out=left_out, said=SAID)
    return "\n".join([first, *(_section(each, images) for each in found)])


def _left_out(found: Sequence[Comparison]) -> Iterator[str]:
    """What systems have and we do not simulate, each once."""
    lacking: dict[str, list[str]] = {}
    for contender in (outcome.contender for one in found for outcome in one.outcomes):
        names = lacking.setdefault(contender.left_out, [])
        if contender.name not in names and not contender.name.endswith(FOR_REWARD):
            names.append(contender.name)
    for text, names in lacking.items():
        if text:
            yield f"Left out of {', '.join(names)}: {text}"


def _section(found: Comparison, images: str) -> str:
    """A scenario: what came of it in words, how ways stand to ours, and all figures."""
    scenario = found.scenario
    asked = scenario.trajectories
    lines = [f"- {line}" for line in (*verdict(found), *_chosen(found), *_tuned(found))]
    refused = [f"- Not run: {each.contender.name}: {plain(each.refused)}" for each in found.outcomes if each.refused]
    parts = [
        f"## {plain(scenario.name)}",
        f"{plain(str(scenario.model.config))} on {scenario.gpus} {plain(scenario.gpu)}, "
        f"{asked.prompts * asked.group:,} trajectories a step, {scenario.steps} steps.",
        f"![Throughput]({images}/{file_name(scenario.name)}.svg)",
        "\n".join(lines),
        _lines(*standing(found)) if found.settles else "",
        _markdown(found),
        "\n".join(refused),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _chosen(found: Comparison) -> Iterator[str]:
    """The ways that were chosen for each objective."""
    ours = [each for each in found.outcomes if each.contender.kind == "ours" and each.runs]
    said = [f"for {each.contender.choice.objective}: {each.figures['way']}" for each in ours if "way" in each.runs[0]]
    if said:
        yield f"Chosen {'; '.join(said)}."


def _lines(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"| --- | {' | '.join(['---:'] * (len(heads) - 1))} |"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


def _tuned(found: Comparison) -> Iterator[str]:
    """What tuning came to, of systems that leave something open."""
    tuned = [each.contender for each in found.outcomes if each.contender.found]
    if tuned:
        said = (f"{each.name} " + " ".join(f"`{key}` {_value(value)}" for key, value in each.found) for each in tuned)
        yield f"Tuned: {', '.join(said)}."


def _value(value: Any) -> str:
    return "without limit" if value is None else str(value)


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
    learnt = any(each.figures.get("time_to_reward") for each in found.outcomes)
    one = all(len(each.runs) <= 1 for each in found.outcomes)
    columns = [(head, said) for head, said in _COLUMNS if not (one and head == "seeds")]
    heads = ["", *(head for head, _ in columns)] + (["reward s", "$ a point"] if learnt else [])
    rows = []
    for each in found.outcomes:
        if not each.runs:
            continue
        known = " *" if each.contender.choice.knows else ""
        cells = [each.contender.name + known, *(said(each.figures) for _, said in columns)]
        rows.append((each, cells + (_reward(each.figures["time_to_reward"]) if learnt else [])))
    return heads, rows


def _reward(target: dict[str, Any] | None) -> list[str]:
    """Time to the target, and dollars for a hundredth of reward."""
    if target is None:
        return ["", ""]
    return [f"{'' if target['reached'] else '~'}{target['seconds']:,.0f}", f"{target['usd_per_point']:,.2f}"]


_INTRODUCTION = """# Ways to run post-training, compared

Made by {command} ({made}).
Every way runs on the same simulator with the same costs and the same trajectories; [posttrain.md](posttrain.md) says
what it simulates.

- **Ours** is what `objective: throughput` chooses, and **ours, for reward** what `objective: reward` does
  ([posttrain.md](posttrain.md#an-objective)): before the run, by short runs on other trajectories, one of {ways}.
- **Others** are what their papers and code describe, in our own implementation of their decisions:
  [rivals.md](rivals.md) has the settings of each, with sources. What these leave open is tuned for each scenario, for
  settled throughput and for reward, by short runs on other trajectories; where the two differ, the second has a row
  of its own. Those with a fixed split have the best one in hindsight for the first seed, which is more than they have
  in practice; ours has not.
{left_out}- **Bounds.** *Oracle* is our policies with an estimator that knows what trajectories will come to,
  on the best fixed split in hindsight, with separate GPUs or with shared ones; *static best* is our policies without
  that knowledge. A star marks ways that know lengths in advance. The *ceiling* is proven: no way that trains on all
  samples can exceed it.
- **Measures.** *Tokens* and *samples* a second are of trained samples, *settled*: from half of the steps on, when
  plans have settled, up to the last two, which have engines to themselves as nothing new begins; in whole rounds of
  six, as batches that began together take turns in being long. *Reward* is the time to the reward that the scenario
  names, under its learning model, with ~ at the rate of settled steps, as the run was over before. *$ a point* is the
  price of all GPUs until then for each hundredth of reward; since all ways have the same GPUs it ranks as time does.
- **Assumptions.** Reward is a model, not a finding: a sample that is `stale_half` versions old teaches half as much.
  *Half the penalty* and *double the penalty* change that. A model that counts samples favours ways that give up long
  ones; *reward by tokens* counts the tokens of trained samples instead.
- **How sure.** {said}
  Ways within a tenth of the best by any measure are run with all seeds.
- *Behind* is the mean age of samples in weight versions. All asynchronous ways have the same bound; those with `late
  train` keep it on average only, as their authors do. *Given up* are samples that were begun and never trained on,
  mostly long ones.
"""
