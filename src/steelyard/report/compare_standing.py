"""How ways to run post-training stand to ours, measure by measure, in words and as a table."""

from __future__ import annotations

from collections.abc import Iterator
from math import isinf

from steelyard.posttrain.compare_outcomes import (
    ASSUMPTIONS,
    CONFIDENCE,
    METRICS,
    Comparison,
    Metric,
    Outcome,
    SpeedRatio,
)

_HEADS = {"cost of a point of reward": "cost", "time to reward": "reward"}


def verdict(found: Comparison) -> Iterator[str]:
    """Who is first by each measure, and where ours is against the bounds."""
    ours = found.find("ours")
    if not ours.runs:
        return
    if not found.settles:
        yield (
            f"{found.scenario.steps} steps are too few to settle: who is faster cannot be said. Give 15 or more "
            "(--steps)."
        )
        return
    for metric in METRICS:
        if len(found.ranked(metric)) > 1:
            yield _first(found, metric)
    if len(found.fair()) == 1:
        yield "No other way was run that knows no lengths in advance."
    changed = [_differs(found, metric) for metric in ASSUMPTIONS]
    if said := [each for each in changed if each]:
        yield f"Under other assumptions about learning: {'; '.join(said)}."
    yield from _against_bounds(found, ours)


def _first(found: Comparison, metric: Metric) -> str:
    """Who is best by a measure, and how sure that is."""
    best, ours = found.ranked(metric)[0], found.ours(metric)
    name = metric.name[0].upper() + metric.name[1:]
    others = [each for each in found.ranked(metric) if each is not ours]
    ratio = found.ratio(ours, others[0], metric)
    level = [each.contender.name for each in others if found.ratio(ours, each, metric).even]
    if best is ours and not level:
        return f"{name}: ours is first, {_lead(ratio)} ahead of {others[0].contender.name}."
    ahead = [each for each in others if found.ratio(ours, each, metric).mean < 1 and each.contender.name not in level]
    if ahead:
        said = ", ".join(
            f"{each.contender.name} ({_lead(found.ratio(each, ours, metric))} ahead of ours)" for each in ahead
        )
        return f"{name}: first is {said}."
    return f"{name}: ours is even with {', '.join(level)}."


def _differs(found: Comparison, metric: Metric) -> str:
    ranked, ours = found.ranked(metric), found.ours(metric)
    if len(ranked) < 2:
        return ""
    others = [each for each in ranked if each is not ours]
    ratio = found.ratio(ours, others[0], metric)
    if ratio.even:
        return f"{metric.name}: ours is even with {others[0].contender.name}"
    if ratio.mean > 1:
        return f"{metric.name}: ours is first, {_lead(ratio)} ahead of {others[0].contender.name}"
    return f"{metric.name}: {others[0].contender.name} is {_lead(found.ratio(others[0], ours, metric))} ahead of ours"


def _against_bounds(found: Comparison, ours: Outcome) -> Iterator[str]:
    if found.bounds:
        oracle = found.oracle
        which = "it knows lengths" if oracle is not ours else "knowing lengths gains nothing"
        share = 1 / found.ratio(oracle, ours).mean
        yield f"Ours reaches {share:.1%} of the best that could know all lengths ({which})."
    if found.ceiling is not None:
        rate = ours.runs[0]["tokens_per_second"]  # of the scenario's own seed
        yield (
            f"No way that trains on all samples can exceed {found.ceiling:,.0f} tokens/s over the whole run: its GPUs "
            f"have at least so much to do. Ours reaches {rate / found.ceiling:.1%} of that."
        )


def _lead(ratio: SpeedRatio) -> str:
    """A lead with its interval."""
    if isinf(ratio.high):
        return f"{ratio.mean - 1:.1%} (one seed)"
    return f"{ratio.mean - 1:.1%} ({ratio.low - 1:.1%} to {ratio.high - 1:.1%})"


def standing(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: each way's speed relative to ours by all measures, with intervals; the fastest first."""
    metrics = [each for each in (*METRICS, *ASSUMPTIONS) if found.fair(each)]
    heads = ["", *(_HEADS.get(each.name, each.name) for each in metrics)]
    ranked = {metric.name: found.ranked(metric) for metric in metrics}
    names = dict.fromkeys(each.contender.name for metric in metrics for each in ranked[metric.name])
    rows = []
    for name in names:
        if any(name == metric.of_ours for metric in metrics):
            continue
        one, cells = found.find(name), [name]
        for metric in metrics:
            place = [each.contender.name for each in ranked[metric.name]]
            cells.append(_cell(found.ratio(one, found.ours(metric), metric)) if name in place else "")
        rows.append(cells)
    return heads, rows


def _cell(ratio: SpeedRatio) -> str:
    if ratio.even and not isinf(ratio.high):
        return f"even ({ratio.mean:.3f})"
    return f"{ratio.mean:.2f}" + ("" if isinf(ratio.high) else f" ({ratio.low:.2f}-{ratio.high:.2f})")


SAID = f"""Each cell of the first table is a way's speed against ours by that measure, with the interval in which the
  ratio lies with {CONFIDENCE:.0%} confidence (Student's t over common seeds; with fewer than three seeds, by the spread
  of all ways together). *Even* is an interval that includes 1. Ours is the way chosen for throughput in the columns of
  tokens and samples, and the way chosen for reward in the others."""
