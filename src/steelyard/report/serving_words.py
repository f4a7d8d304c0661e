"""A comparison of serving in words: figures, differences, and which of them matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from steelyard.report.verdict import METRICS
from steelyard.search.compare.comparison import ColumnDifference, ComparedColumn, ServingComparison
from steelyard.search.compare.figures import BY_NAME, FIGURES, Unit
from steelyard.search.compare.judging import CONFIDENCE, RELEVANT, Judged
from steelyard.words import UNKNOWN, count, dollars, percent, plural, seconds, significant

KEY_FIGURES = (
    *("ttft.p95", "attft.p95", "tpot.p95", "itl.p99", "e2e.p95", "throughput.output_tokens_per_s"),
    *("goodput.share", "unserved", "gpus", "cost.usd_per_million_tokens", "preemptions"),
)
"""Figures that get a sentence if they differ."""
_NEVER_ALL = 1 - 1e-9  # probabilities are not rounded to certainty
NO_BOTTLENECK = "none"
_INSTEAD = 3  # others that get one if none of these differs
_WRITE: dict[Unit, Callable[[float | None], str]] = {
    "seconds": seconds,
    "rate": significant,
    "share": percent,
    "dollars": dollars,
    "count": lambda value: count(value) if value is None or value == round(value) else significant(value),
}


@dataclass(frozen=True)
class Cell:
    """One column's figure as text, and how it stands against the base's."""

    value: str
    difference: str = ""
    relative: str = ""
    interval: str = ""
    verdict: str = ""
    sure: str = ""
    state: str = ""  # better, worse, other, or empty


@dataclass(frozen=True)
class FigureRow:
    """One figure of all columns, the base first."""

    group: str
    label: str
    cells: Sequence[Cell]


def rows(found: ServingComparison) -> Iterator[FigureRow]:
    """All rows: figures, limits, what binds, and whether runs were steady."""
    by_column = [{each.name: each for each in difference.figures} for difference in found.differences]
    for figure in FIGURES:
        if any(figure.name in figures for figures in by_column):
            base = Cell(written(figure.name, found.base.mean(figure.name)))
            others = (figures.get(figure.name, Judged(figure.name, None, None)) for figures in by_column)
            yield FigureRow(figure.group, figure.label, [base, *map(_cell, others)])
    limits = dict.fromkeys(name for column in found.columns for name in column.runs[0].limits)
    for name in limits:
        yield FigureRow("SLO", _limit_label(name), [_limit_cell(column, name) for column in found.columns])
    yield FigureRow("State", "Bottleneck", [Cell(bottleneck_of(column)) for column in found.columns])
    yield FigureRow("State", "Steady", [Cell(_steady(column)) for column in found.columns])


def written(name: str, value: float | None) -> str:
    """A value of this figure."""
    return _WRITE[BY_NAME[name].unit](value)


def _cell(each: Judged) -> Cell:
    return Cell(
        written(each.name, each.here),
        _difference(each),
        signed(each.relative),
        _interval(each),
        each.verdict,
        _sure(each),
        state(each),
    )


def _sure(each: Judged) -> str:
    """How sure a difference that matters is real."""
    if each.sure is None or not each.matters or BY_NAME[each.name].setting:
        return ""
    return "exact" if each.p == 0 else f"{percent(min(each.sure, _NEVER_ALL))} sure"


def state(each: Judged) -> str:
    """How a difference is coloured."""
    return {"better": "better", "worse": "worse", "higher": "other", "lower": "other"}.get(each.verdict, "")


def _difference(each: Judged) -> str:
    if each.difference is None:
        return UNKNOWN
    sign = "+" if each.difference > 0 else "-" if each.difference < 0 else ""
    if BY_NAME[each.name].unit == "share":
        return f"{sign}{significant(abs(100 * each.difference))} points"
    return f"{sign}{written(each.name, abs(each.difference))}"


def signed(relative: float | None) -> str:
    """A relative difference with its sign."""
    return UNKNOWN if relative is None else f"{_tenths(relative):+.1f} %"


def _tenths(relative: float) -> float:
    """Per cent, rounded as it is shown, without a zero below zero."""
    return round(relative * 100, 1) + 0.0


def _interval(each: Judged) -> str:
    """The interval of the relative difference over seeds."""
    bounds = each.relative_interval
    if bounds is None or bounds[0] == bounds[1]:
        return ""
    return f"{_tenths(bounds[0]):+.1f} to {_tenths(bounds[1]):+.1f} %"


def _limit_label(name: str) -> str:
    metric, _, percentile = name.partition("_")
    return f"{METRICS[metric][0]} {percentile} within its limit"


def _limit_cell(column: ComparedColumn, name: str) -> Cell:
    limits = [run.limits[name] for run in column.runs if name in run.limits]
    if not limits:
        return Cell("no limit")
    met, of = sum(each.met for each in limits), len(limits)
    text = (
        f"{seconds(limits[0].limit)}: {'met' if met == of else 'missed' if not met else f'met in {met} of {of} runs'}"
    )
    return Cell(text, state="better" if met == of else "worse")


def bottleneck_of(column: ComparedColumn) -> str:
    """What binds a column, and in how many runs if they differ."""
    causes = Counter(run.bottleneck or NO_BOTTLENECK for run in column.runs)
    if len(causes) == 1:
        return next(iter(causes))
    return ", ".join(f"{cause} in {number} of {len(column.runs)}" for cause, number in causes.most_common())


def _steady(column: ComparedColumn) -> str:
    steady = sum(not run.unsteady for run in column.runs)
    if steady in (0, len(column.runs)):
        return "yes" if steady else "no"
    return f"in {steady} of {len(column.runs)} runs"


def sentences(difference: ColumnDifference) -> list[tuple[str, str]]:
    """A sentence, with its state, for each key figure whose difference matters, or else for the first figures that
    do."""
    matter = {each.name: each for each in difference.figures if each.matters}
    told = [matter[name] for name in KEY_FIGURES if name in matter] or list(matter.values())[:_INSTEAD]
    return [(_sentence(each), state(each)) for each in told]


def _sentence(each: Judged) -> str:
    figure, ratio = BY_NAME[each.name], each.relative
    values = f"from {written(each.name, each.base)} to {written(each.name, each.here)}"
    if ratio is None:
        return f"{figure.label}: {values}: {each.verdict}"
    way = "higher" if ratio > 0 else "lower"
    if figure.setting:
        return f"{figure.label}: {significant(abs(100 * ratio), 2)} % {way}, {values}: {each.verdict}"
    sure = [f"{_span(each.relative_interval)} over seeds"] if _interval(each) else []
    if each.with_costs is not None:
        sure.append(f"{_span(each.with_costs)} with the stated errors of costs")
    held = "" if each.holds_with_costs is not False else ", but the errors of costs may turn it"
    known = f" ({'; '.join(sure)})" if sure else ""
    return f"{figure.label}: {significant(abs(100 * ratio), 2)} % {way}{known}, {values}: {each.verdict}{held}"


def _span(bounds: tuple[float, float] | None) -> str:
    """An interval: without signs if all of it lies on one side."""
    if bounds is None:
        return UNKNOWN
    low, high = (100 * each for each in bounds)
    if low * high <= 0:
        return f"{_tenths(bounds[0]):+.1f} to {_tenths(bounds[1]):+.1f} %"
    near, far = sorted((abs(low), abs(high)))
    return f"{significant(near, 2)} to {significant(far, 2)} %"


def tally(difference: ColumnDifference) -> str:
    """How many figures are better, worse and so on."""
    counts = Counter(each.verdict for each in difference.figures)
    if difference.pairing == "single":
        return "not judged: whether a difference is real takes several runs of both"
    parts = [f"{word} in {plural(counts[word], 'figure')}" for word in ("better", "worse") if counts[word]]
    other = counts["higher"] + counts["lower"]
    parts += [f"{plural(other, 'neutral figure')} changed"] if other else []
    parts += [f"no clear difference in {counts['no clear difference']}"] if counts["no clear difference"] else []
    small = counts["too small to matter"]
    parts += [f"{small} too small to matter (below {100 * RELEVANT:g} %)"] if small else []
    return ", ".join(parts)


def method(found: ServingComparison) -> str:
    """How differences were judged."""
    runs, confidence = max(len(column.runs) for column in found.columns), f"{100 * CONFIDENCE:.0f} %"
    if all(difference.pairing == "single" for difference in found.differences):
        return "Differences are of single runs. Whether one is real takes several seeds."
    return (
        f"Means over {plural(runs, 'seed')}, the same for all. Intervals are Student's over seeds, {confidence} for a "
        f"figure by itself. Verdicts hold for all figures of a column together with {confidence} (Holm's correction), "
        f"and a difference must also be at least {100 * RELEVANT:g} % to be called better or worse. More --seeds tell "
        "smaller differences."
    )
