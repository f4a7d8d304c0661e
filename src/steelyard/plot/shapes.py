"""Marks of a chart as SVG paths."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import isfinite

from steelyard.plot.canvas import BOTTOM, TOP, Scale
from steelyard.plot.marks import Marks


def drawn(each: Marks, across: Scale, up: Scale, height: float) -> str:
    """One series."""
    foot, hue = height - BOTTOM, f"h{each.hue}"
    runs = _runs(each)
    if each.kind in ("line", "steps", "band"):
        return "".join(_curve(each, run, across, up, foot, hue) for run in runs)
    known = [i for run in runs for i in run]
    xs, ys = ([f(float(column[i])) for i in known] for f, column in ((across, each.x), (up, each.y)))
    if each.kind == "dots":
        return _dots(each, known, xs, ys, hue)
    if each.kind == "rules":
        path = "".join(f"M{x:.1f} {foot:g}V{TOP:g}" for x in xs)
        return f'<path class="rules {hue}" d="{path}"/>'
    assert each.ends is not None
    ends = [across(float(each.ends[i])) for i in known]
    if each.kind == "spans":
        path = "".join(f"M{x:.1f} {foot:g}V{TOP:g}H{end:.1f}V{foot:g}Z" for x, end in zip(xs, ends, strict=True))
        return f'<path class="spans {hue}" d="{path}"/>'
    floors = [foot if each.low is None else up(float(each.low[i])) for i in known]
    path = "".join(
        f"M{x:.1f} {floor:.1f}V{y:.1f}H{max(end - 1, x + 1.5):.1f}V{floor:.1f}Z"
        for x, end, y, floor in zip(xs, ends, ys, floors, strict=True)
    )
    return f'<path class="bars {hue}" d="{path}"/>'


def _runs(each: Marks) -> list[list[int]]:
    """Marks next to each other that have values: a line breaks where one is missing."""
    runs: list[list[int]] = [[]]
    for i, (x, y) in enumerate(zip(each.x.tolist(), each.y.tolist(), strict=True)):
        if isfinite(x) and isfinite(y):
            runs[-1].append(i)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _curve(each: Marks, run: list[int], across: Scale, up: Scale, foot: float, hue: str) -> str:
    xs, tops = ([f(float(column[i])) for i in run] for f, column in ((across, each.x), (up, each.y)))
    lows = None if each.low is None else [up(float(each.low[i])) for i in run]
    stepped = each.kind == "steps"
    top = "M" + _path(xs, tops, stepped)
    below = f"V{foot:g}H{xs[0]:.1f}Z"
    if lows is not None:
        below = "L" + _path(xs[::-1], lows[::-1], stepped, back=True) + "Z"
    if each.kind == "band":
        return f'<path class="band {hue}" d="{top}{below}"/>'
    filled = f'<path class="{"steps" if stepped else "area"} fill {hue}" d="{top}{below}"/>' if each.fill else ""
    return f'{filled}<path class="line {hue}" d="{top}"/>'


def _path(xs: Sequence[float], ys: Sequence[float], stepped: bool, back: bool = False) -> str:
    if not stepped:
        return "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys, strict=True))
    parts = [f"{xs[0]:.1f} {ys[0]:.1f}"]
    for x, y in list(zip(xs, ys, strict=True))[1:]:
        parts.append(f"V{y:.1f}H{x:.1f}" if back else f"H{x:.1f}V{y:.1f}")
    return "".join(parts)


def _dots(each: Marks, known: Sequence[int], xs: Sequence[float], ys: Sequence[float], hue: str) -> str:
    if not each.labels and not any(each.hollow):
        path = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in zip(xs, ys, strict=True))
        return f'<path class="dots {hue}" d="{path}"/>'
    made = []
    for i, x, y in zip(known, xs, ys, strict=True):
        kind = "ring" if each.hollow and each.hollow[i] else "disc"
        told = f"<title>{escape(each.labels[i])}</title>" if each.labels else ""
        made.append(f'<circle class="{kind} {hue}" cx="{x:.1f}" cy="{y:.1f}" r="4">{told}</circle>')
    return "".join(made)
