"""Relative differences as bars with their intervals, in one SVG figure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from steelyard.report.serving_words import signed, state
from steelyard.search.compare.comparison import ColumnDifference
from steelyard.search.compare.figures import BY_NAME
from steelyard.search.compare.judging import RELEVANT, Judged

_WIDTH, _ROW, _TOP, _BOTTOM = 900.0, 22.0, 6.0, 26.0
_LEFT, _RIGHT = 190.0, 250.0
_SPANS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # to either side; what lies beyond the last is cut there


def difference_bars(difference: ColumnDifference) -> str:
    """A bar for each figure with a relative difference, with its interval over seeds."""
    shown = [each for each in difference.figures if each.relative is not None]
    if not shown:
        return '<div class="empty">no relative differences</div>'
    span = _span(shown)
    height = _TOP + _ROW * len(shown) + _BOTTOM
    parts = [_frame(span, height)]
    parts += [_bar(each, _TOP + _ROW * i, span) for i, each in enumerate(shown)]
    return f'<svg viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img" class="bars-of">{"".join(parts)}</svg>'


def _span(shown: Sequence[Judged]) -> float:
    """The smallest range that shows all differences."""
    most = max(abs(each.relative or 0.0) for each in shown)
    return next((span for span in _SPANS if most <= 0.95 * span), _SPANS[-1])


def _x(relative: float, span: float) -> float:
    middle, half = (_LEFT + _WIDTH - _RIGHT) / 2, (_WIDTH - _RIGHT - _LEFT) / 2
    return middle + half * max(-1.0, min(1.0, relative / span))


def _frame(span: float, height: float) -> str:
    foot = height - _BOTTOM
    low, high = _x(-RELEVANT, span), _x(RELEVANT, span)
    marks = [f'<rect class="band" x="{low:.1f}" y="0" width="{high - low:.1f}" height="{foot:.1f}"/>']
    for share in (-1.0, -0.5, 0.0, 0.5, 1.0):
        x, kind = _x(share * span, span), "axis" if share == 0 else "grid"
        marks.append(f'<path class="{kind}" d="M{x:.1f} 0V{foot:.1f}"/>')
        name = "0" if share == 0 else f"{share * span * 100:+g} %"
        marks.append(f'<text x="{x:.1f}" y="{height - 8:.1f}" text-anchor="middle">{name}</text>')
    return "".join(marks)


def _bar(each: Judged, top: float, span: float) -> str:
    relative, middle = each.relative or 0.0, top + _ROW / 2
    left, right = sorted((_x(0.0, span), _x(relative, span)))
    kind = state(each) or "unclear"
    parts = [
        f'<text x="{_LEFT - 10:.0f}" y="{middle + 4:.1f}" text-anchor="end">{escape(BY_NAME[each.name].label)}</text>',
        f'<rect class="{kind}" x="{left:.1f}" y="{top + 5:.1f}" width="{right - left:.1f}" '
        f'height="{_ROW - 10:.1f}" rx="2"/>',
    ]
    if each.relative_interval is not None:
        low, high = (_x(end, span) for end in each.relative_interval)
        ends = "".join(f"M{x:.1f} {middle - 4:.1f}v8" for x in (low, high))
        parts.append(f'<path class="whisker" d="M{low:.1f} {middle:.1f}H{high:.1f}{ends}"/>')
    words = f"{signed(relative)} {each.verdict}"
    parts.append(f'<text class="{kind}" x="{_WIDTH - _RIGHT + 16:.0f}" y="{middle + 4:.1f}">{escape(words)}</text>')
    return f"<g>{''.join(parts)}</g>"
