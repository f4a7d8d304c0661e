"""A post-training run on the console, and a timeline of busy GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steelyard.posttrain.result import PosttrainResult
from steelyard.posttrain.role_figures import Floats
from steelyard.posttrain.roles import Role

_BINS = 240
_WIDTH, _HEIGHT, _LEFT, _GAP = 960, 64, 90, 34
_ROLLOUT, _TRAINING, _WAIT, _SYNC, _IDLE = "#3b7dd8", "#d9822b", "#f2d9bd", "#555555", "#eeeeee"


def print_posttrain(summary: dict[str, Any], console: Console) -> None:
    """The headline figures."""
    said = (
        f": {summary['steps']} steps, {summary['mode']}, {summary['gpus']} GPUs "
        f"({summary['rollout_gpus']} roll out, {summary['training_gpus']} train)"
    )
    console.print(Text.assemble((summary["name"], "bold"), said))
    table = Table(show_header=False, box=None, pad_edge=False)
    parts = summary["step_seconds"]
    said = ", ".join(f"{name.replace('_', ' ')} {value:,.1f}" for name, value in parts.items() if name != "total")
    table.add_row("a step", f"{parts['total']:,.1f} s: {said}")
    tokens = f"{summary['tokens_per_second']:,.0f} tokens/s ({summary['settled_tokens_per_second']:,.0f} once settled)"
    table.add_row("samples", f"{summary['samples_per_second']:.2f}/s, {tokens}")
    for stage, shares in summary["gpu_time"].items():
        table.add_row(f"{stage} GPUs", ", ".join(f"{share:.0%} {name}" for name, share in shares.items()))
    spread = summary["trajectory_seconds"]
    took = f"{spread['p50']:,.1f} s (p50), {spread['p99']:,.1f} (p99), {spread['max']:,.1f} (max)"
    table.add_row("a trajectory", took)
    table.add_row("tail", f"{summary['tail_share']:.0%} of a batch's time is for its last tenth")
    ages = ", ".join(f"{count} by {age}" for age, count in summary["staleness"].items())
    table.add_row("versions behind", ages)
    if "tail" in summary:
        lost, versions = summary["tail"]["thrown_away"], summary["tail"]["versions_per_sample"]
        mixed = sum(count for number, count in versions.items() if int(number) > 1)
        table.add_row("thrown away", f"{lost['samples']:,} samples, {lost['share']:.1%} of the tokens")
        table.add_row("of several versions", f"{mixed:,} samples")
    for each in summary.get("reallocations", ()):
        came = "" if each["realised"] is None else f", realised {each['realised']:,.1f}"
        said = f"{each['what']}: {each['outcome']}, {each['seconds']:,.1f} s"
        table.add_row(f"after step {each['step']}", f"{said}; gain {each['predicted']:,.1f} s a step predicted{came}")
    if summary["moves"]:
        table.add_row("moves", f"{summary['moves']:,} of {summary['moved_tokens']:,} tokens")
    cost = summary["cost"]
    each = f"${cost['usd_per_step']:,.2f} a step, ${cost['usd_per_million_tokens']:,.2f} a million tokens"
    table.add_row("cost", f"{each} ({cost['gpu_hours']:,.1f} GPU-hours at ${cost['usd_per_gpu_hour']:,.2f})")
    if (target := summary.get("time_to_reward")) is not None:
        said = "" if target["reached"] else ", at the rate of the later steps"
        table.add_row(f"reward {target['reward']:g}", f"after {target['seconds']:,.0f} s{said}")
    for line in chosen_lines(summary["chosen"]) if "chosen" in summary else ():
        table.add_row("chosen", line)
    table.add_row("times from", times_from(**summary["times_from"]))
    console.print(table)


def chosen_lines(chosen: Mapping[str, Any]) -> Iterator[str]:
    """Which way was chosen for the objective, how far ahead it is, and what the others came to."""
    lead = "" if chosen["lead"] is None else f", {chosen['lead']:+.1%} against the next"
    sure = "" if chosen["sure"] else " (with another seed they change places)"
    yield f"{chosen['way']}, for {chosen['objective']}{lead}{sure}"
    for each in chosen["ways"]:
        if each["refused"]:
            yield f"  {each['way']}: not possible: {each['refused']}"
            continue
        worth = f", {fmean(each['fresh']):,.2f} samples/s as if fresh" if each["fresh"] else ""
        yield f"  {each['way']}: {fmean(each['tokens']):,.0f} tokens/s{worth}"


def times_from(rollout: Sequence[str], training: Mapping[str, float]) -> str:
    """The sources of operator times, in words."""
    shares = ", ".join(f"{share:.0%} {name}" for name, share in training.items())
    return f"{', '.join(rollout)} (rollout); {shares} (training)"


def timeline_svg(result: PosttrainResult) -> str:
    """Shares of busy GPUs over time, rollout above and training below, syncs as lines. If GPUs change roles, both
    are shares of the most GPUs that the stage ever had, and the GPUs it has are grey behind it."""
    steps = result.records
    end = steps[-1].synced
    edges = np.linspace(0.0, end, _BINS + 1)
    rolling = _rollout_share(result, edges)
    most = max(step.training_gpus for step in steps)
    spans = [(step, span) for step in steps for span in step.spans]
    shares = [step.training_gpus / most for step, _ in spans]
    waits = [(step.time.split.bubble + step.time.split.imbalance) / step.time.split.total for step, _ in spans]
    training = _covered(edges, [span for _, span in spans], shares)
    useful = _covered(edges, [span for _, span in spans], [s * (1 - w) for s, w in zip(shares, waits, strict=True)])
    height = 2 * _HEIGHT + 2 * _GAP + 16
    head = f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {head}>',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        *(_band("", 16, _held(result, edges, "rollout"), _IDLE) if _changed(result) else ()),
        *_band("rollout", 16, rolling, _ROLLOUT),
        *(_band("", 16 + _HEIGHT + _GAP, _held(result, edges, "training"), _IDLE) if _changed(result) else ()),
        *_band("training", 16 + _HEIGHT + _GAP, training, _WAIT),
        *_band("", 16 + _HEIGHT + _GAP, useful, _TRAINING),
    ]
    for step in steps:
        x, bottom = _x(step.trained / end), height - _GAP + 4
        place = f'x1="{x:.1f}" x2="{x:.1f}" y1="12" y2="{bottom}"'
        parts.append(f'<line {place} stroke="{_SYNC}" stroke-dasharray="2 3"/>')
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<text x="{_x(share):.1f}" y="{height - 12}" text-anchor="middle">{share * end:,.0f} s</text>')
    return "\n".join([*parts, "</svg>", ""])


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - 20)


def _band(name: str, top: float, shares: Sequence[float] | Floats, colour: str) -> list[str]:
    points = [f"{_x(0):.1f},{top + _HEIGHT:.1f}"]
    for i, share in enumerate(shares):
        y = top + _HEIGHT * (1 - min(1.0, float(share)))
        points += [f"{_x(i / _BINS):.1f},{y:.1f}", f"{_x((i + 1) / _BINS):.1f},{y:.1f}"]
    points.append(f"{_x(1):.1f},{top + _HEIGHT:.1f}")
    area = f'<polygon points="{" ".join(points)}" fill="{colour}"/>'
    label = f'<text x="8" y="{top + _HEIGHT / 2 + 4:.1f}">{name}</text>'
    return [area, label] if name else [area]


def _rollout_share(result: PosttrainResult, edges: Floats) -> Floats:
    total = np.zeros(len(edges) - 1)
    for each in result.held:
        if len(each.busy_from):
            spans = list(zip(each.busy_from.tolist(), each.busy_until.tolist(), strict=True))
            total += each.gpus * _covered(edges, spans)
    return total / _most(result, "rollout")


def _changed(result: PosttrainResult) -> bool:
    return any(each.since > 0 for each in result.held)


def _held(result: PosttrainResult, edges: Floats, role: Role) -> Floats:
    """GPUs of a stage over time, as a share of the most it ever had."""
    own = [each for each in result.held if each.role == role]
    spans = [(each.since, min(each.until, float(edges[-1]))) for each in own]
    return _covered(edges, spans, [float(each.gpus) for each in own]) / _most(result, role)


def _most(result: PosttrainResult, role: Role) -> int:
    """The most GPUs that a stage had at any time."""
    own = [each for each in result.held if each.role == role]
    return max(sum(each.gpus for each in own if each.since <= one.since < each.until) for one in own)


def _covered(edges: Floats, spans: Sequence[tuple[float, float]], heights: Sequence[float] | None = None) -> Floats:
    """The share of each bin that spans cover, weighted by their heights."""
    found = np.zeros(len(edges) - 1)
    for i, (start, stop) in enumerate(spans):
        inside = np.clip(np.minimum(edges[1:], stop) - np.maximum(edges[:-1], start), 0.0, None)
        found += inside * (1.0 if heights is None else heights[i])
    return found / np.diff(edges)
