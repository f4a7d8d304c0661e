"""Live runs on the console and as a page: steps, lost engines, and how the reward rose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from steelyard.live.figures import LiveFigures

Curve = Sequence[tuple[float, float]]
"""Points of a line: (seconds, value)."""

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 760, 320, 56, 40, 16
_COLOURS = ("#3b7dd8", "#d9822b", "#5a9e54", "#8a63b8")
_TICKS = 5
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 860px; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }
td:first-child, th:first-child { text-align: left; }
svg { max-width: 100%; height: auto; }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1rem 0; }
.cards div { flex: 1 1 9rem; border: 1px solid #ddd; border-radius: 8px; padding: .6rem .9rem; }
.cards b { display: block; font-size: 1.5rem; font-weight: 600; }
.cards span { color: #666; font-size: .85rem; }
ol.told { padding-left: 0; list-style: none; }
ol.told li { padding: .25rem 0; border-bottom: 1px solid #eee; }
ol.told time { display: inline-block; width: 5.5rem; color: #888; font-variant-numeric: tabular-nums; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #1b1b1b; } td, th { border-color: #444; } }
"""


def curves_svg(curves: Mapping[str, Curve], x: str, y: str) -> str:
    """Lines over time, one for each name."""
    points = [point for curve in curves.values() for point in curve]
    last = max((seconds for seconds, _ in points), default=1.0) or 1.0
    most = max((value for _, value in points), default=1.0) or 1.0
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-size="12">']
    lines.append(f'<title>{escape(y)} by {escape(x)}</title><rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>')
    for tick in range(_TICKS + 1):
        share = tick / _TICKS
        across, up = _x(share), _y(share)
        lines.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 12}" y1="{up:.1f}" y2="{up:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{up + 4:.1f}" text-anchor="end">{_short(most * share)}</text>')
        lines.append(f'<text x="{across:.1f}" y="{_HEIGHT - 22}" text-anchor="middle">{_short(last * share)}</text>')
    for curve, colour in zip(curves.values(), _COLOURS, strict=False):
        path = " ".join(f"{_x(seconds / last):.1f},{_y(value / most):.1f}" for seconds, value in curve)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
    for place, (name, colour) in enumerate(zip(curves, _COLOURS, strict=False)):
        lines.append(f'<text x="{_LEFT + 12}" y="{_TOP + 14 + 16 * place}" fill="{colour}">{escape(name)}</text>')
    lines.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 4}" text-anchor="middle">{escape(x)}</text>')
    lines.append(f'<text x="14" y="{_HEIGHT / 2}" transform="rotate(-90 14 {_HEIGHT / 2})" text-anchor="middle">')
    return "\n".join([*lines, f"{escape(y)}</text></svg>"]) + "\n"


def _short(value: float) -> str:
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.3g}{letter}"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - 12 - _LEFT)


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP)


def progress_curve(found: LiveFigures) -> Curve:
    """Tokens that were trained on by each second."""
    total, points = 0, [(0.0, 0.0)]
    for step in found.steps:
        total += step.tokens
        points.append((step.synced, float(total)))
    return points


def live_page(title: str, verdict: str, figures: Mapping[str, str], tables: Sequence[Sequence[Sequence[str]]]) -> str:
    """A page of its own: a verdict, figures (SVG or HTML) with captions, tables whose first row is the head."""
    parts = [f"<h1>{escape(title)}</h1><p>{escape(verdict)}</p>"]
    parts += [f"{f'<h2>{escape(caption)}</h2>' if caption else ''}{figure}" for caption, figure in figures.items()]
    for rows in [each for each in tables if len(each) > 1]:
        head = "".join(f"<th>{escape(each)}</th>" for each in rows[0])
        body = "".join(f"<tr>{''.join(f'<td>{escape(each)}</td>' for each in row)}</tr>" for row in rows[1:])
        parts.append(f"<table><tr>{head}</tr>{body}</table>")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>{body}</body></html>\n'


def step_rows(found: LiveFigures) -> list[list[str]]:
    """Steps as a table."""
    head = ["step", "samples complete, s", "trained, s", "engines have weights, s", "samples", "tokens"]
    return [
        head,
        *(
            [
                str(each.step),
                f"{each.complete:,.1f}",
                f"{each.trained:,.1f}",
                f"{each.synced:,.1f}",
                f"{each.samples:,}",
                f"{each.tokens:,}",
            ]
            for each in found.steps
        ),
    ]


def recovery_rows(found: LiveFigures, speed: float) -> list[list[str]]:
    """Lost engines as a table, in seconds of the machine's clock."""
    head = ["engine", "lost at, s of the run", "up again after, s of this machine"]
    return [
        head,
        *(
            [str(each.replica), f"{each.at:,.1f}", "never" if each.seconds is None else f"{each.seconds / speed:.2f}"]
            for each in found.recoveries
        ),
    ]


def change_rows(found: LiveFigures, simulated: Mapping[str, Any]) -> list[list[str]]:
    """Changes of plan as a table, live and simulated."""
    head = ["change of plan", "after step", "outcome", "took, s", "predicted gain of a step, s", "realised, s"]
    rows = [head]
    for each in found.changes:
        gains = [_seconds(each.predicted), _seconds(each.realised)]
        rows.append([f"live: {each.what}", str(each.step), each.outcome, _seconds(each.seconds), *gains])
    for change in simulated.get("reallocations", ()):
        gains = [_seconds(change["predicted"]), _seconds(change["realised"])]
        step = [str(change["step"]), change["outcome"], _seconds(change["seconds"])]
        rows.append([f"simulated: {change['what']}", *step, *gains])
    return rows


def _seconds(value: float | None) -> str:
    return "not known" if value is None else f"{value:,.1f}"
