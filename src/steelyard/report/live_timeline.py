"""What the GPUs of a live run did, second by second, as pictures: their roles, and each engine."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from steelyard.live.fleet_history import EngineLife, FleetHistory

_WIDTH, _LEFT, _RIGHT = 760, 56, 12
_ROLES = (("training", "#8a63b8"), ("rollout", "#3b7dd8"), ("on the way", "#e8e2d5"))
_UP, _LOST = "#3b7dd8", "#d2453d"
_ROW = 16  # pixels of an engine


def roles_svg(history: FleetHistory) -> str:
    """GPUs by role over time, stacked."""
    height, bottom, top = 240, 36, 26
    lines = _begin(height, "GPUs by role, by second of the run")
    scale = (height - bottom - top) / history.gpus
    for span in history.roles:
        x, width = _x(span.since, history), _x(span.until, history) - _x(span.since, history)
        y = float(height - bottom)
        shares = (span.training, span.rollout, history.gpus - span.training - span.rollout)
        for count, (_, colour) in zip(shares, _ROLES, strict=True):
            y -= count * scale
            lines.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{count * scale:.1f}" fill="{colour}"/>'
            )
    for share in (0.0, 0.5, 1.0):
        at = height - bottom - share * history.gpus * scale
        lines.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{history.gpus * share:.0f}</text>')
    for place, (name, colour) in enumerate(_ROLES):
        x = _LEFT + 110 * place
        lines.append(f'<rect x="{x}" y="6" width="12" height="12" fill="{colour}" stroke="#999" stroke-width=".5"/>')
        lines.append(f'<text x="{x + 17}" y="16">{name}</text>')
    return _end(lines, height, history)


def engines_svg(history: FleetHistory) -> str:
    """Each engine: when it was up, and when it was lost."""
    height = _ROW * len(history.engines) + 46
    lines = _begin(height, "engines, by second of the run")
    for place, engine in enumerate(history.engines):
        lines += _engine_row(engine, 8 + _ROW * place, history)
    return _end(lines, height, history)


def _engine_row(engine: EngineLife, y: float, history: FleetHistory) -> list[str]:
    lines = [f'<text x="{_LEFT - 6}" y="{y + 11}" text-anchor="end">{engine.number}: TP{engine.tp}</text>']
    for up in engine.up:
        x, width = _x(up.since, history), max(1.0, _x(up.until, history) - _x(up.since, history))
        lines.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 4}" rx="2" fill="{_UP}"/>')
        if up.lost:
            x += width
            lines.append(f'<path d="M{x - 4:.1f} {y + 2} l8 8 m0 -8 l-8 8" stroke="{_LOST}" stroke-width="2.5"/>')
    return lines


def _x(second: float, history: FleetHistory) -> float:
    return _LEFT + second / history.seconds * (_WIDTH - _RIGHT - _LEFT)


def _begin(height: int, title: str) -> list[str]:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-size="12">'
    return [head, f'<title>{escape(title)}</title><rect width="{_WIDTH}" height="{height}" fill="#fff"/>']


def _end(lines: list[str], height: int, history: FleetHistory) -> str:
    for tick in range(6):
        second = history.seconds * tick / 5
        x = _x(second, history)
        lines.append(f'<text x="{x:.1f}" y="{height - 18}" text-anchor="middle">{second:,.0f}</text>')
    for change in history.changed:
        x = _x(change, history)
        ends = f'x1="{x:.1f}" x2="{x:.1f}" y1="22" y2="{height - 34}"'
        lines.append(f'<line {ends} stroke="#222" stroke-dasharray="3 3"/>')
    lines.append(f'<text x="{_WIDTH / 2}" y="{height - 3}" text-anchor="middle">seconds of the run</text></svg>')
    return "\n".join(lines) + "\n"


def cards(rows: Sequence[tuple[str, str]]) -> str:
    """Headline figures: a value and what it is."""
    body = "".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for value, what in rows)
    return f'<div class="cards">{body}</div>'
