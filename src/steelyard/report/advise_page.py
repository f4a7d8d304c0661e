"""The page of an advice: replicas over time above the arrivals and the misses, for each fleet."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from steelyard.quoting import printable
from steelyard.report.advise import HEADS, advice_cells, introduction
from steelyard.report.markup import html_table
from steelyard.report.words import percent, seconds
from steelyard.search.advise import AdviceRow, FleetAdvice

_LEFT, _PLOT, _HIGH, _GAP = 60.0, 820.0, 90.0, 26.0
_COLOURS = {"fixed": "#8592a0", "policy": "#0f7f6c", "bound": "#a9c3dc"}
_STYLE = (
    "body{font:14px system-ui,sans-serif;color:#17212b;margin:2rem auto;max-width:72rem;padding:0 1rem}"
    "table{border-collapse:collapse}th,td{padding:.25rem .7rem;text-align:right;border-bottom:1px solid #dde3ea}"
    "td:first-child,th:first-child,td:last-child,th:last-child{text-align:left}.scroll{overflow-x:auto}"
    "svg{max-width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:#52606d}.advice{font-size:16px}"
)


def advice_page(found: FleetAdvice) -> str:
    """A page of its own, without scripts; equal bytes for equal figures."""
    title = escape(printable(f"{found.trace} on {found.scenario}"))
    told = "".join(f"<p>{escape(printable(line))}</p>" for line in introduction(found))
    rows = [[escape(printable(cell)) for cell in advice_cells(row, found)] for row in found.rows]
    figures = "".join(_figure(row, found) for row in found.rows)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"</head><body><h1>{title}</h1>{told}{html_table(HEADS, rows)}"
        f'<p class="advice">{escape(printable(found.sentence))}</p>{_hours(found)}{figures}</body></html>\n'
    )


def _hours(found: FleetAdvice) -> str:
    """Latencies by hour of the part that was judged."""
    heads = ("", "from", "requests", "missed", "TTFT p95", "TTFT p99", "TPOT p95", "TPOT p99")
    rows = [
        [
            escape(row.name),
            seconds(hour.start),
            f"{hour.requests:,}",
            percent(hour.missed),
            *(seconds(each) for each in (hour.ttft_p95, hour.ttft_p99, hour.tpot_p95, hour.tpot_p99)),
        ]
        for row in found.rows
        for hour in row.judged.hours
    ]
    return f"<h2>By hour</h2>{html_table(heads, rows)}"


def _figure(row: AdviceRow, found: FleetAdvice) -> str:
    """Replicas, arrivals and misses over the whole trace; the part for tuning is shaded."""
    top, middle, low = 20.0, 20.0 + _HIGH + _GAP, 20.0 + 2 * (_HIGH + _GAP)
    height = low + _HIGH / 2 + 24
    scale = _PLOT / found.seconds
    most = max(size for each in found.rows for _, size in each.held)
    busiest = max(found.arrivals, default=1.0) or 1.0
    shares = [m / a if a else 0.0 for m, a in zip(row.misses, found.arrivals, strict=True)]
    colour = _COLOURS[row.kind]
    steps = [(at * scale, size / most) for at, size in row.held if at <= found.seconds] + [(_PLOT, None)]
    return "".join(
        (
            f"<h2>{escape(row.name)}</h2>",
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _PLOT + 10:g} {height:g}" role="img">',
            f"<title>{escape(row.name)}: replicas, arrivals and misses over time</title>",
            f'<rect x="{_LEFT:g}" y="{top:g}" width="{found.split * scale:.1f}" height="{height - top - 24:g}" '
            'fill="#f3f5f8"/>',
            f'<path d="{_staircase(steps, top)}" fill="none" stroke="{colour}" stroke-width="1.6"/>',
            _axis(top, _HIGH, str(most), "replicas"),
            f'<path d="{_area([each / busiest for each in found.arrivals], middle, _HIGH)}" fill="#a9c3dc"/>',
            _axis(middle, _HIGH, f"{busiest / found.bucket:.3g}/s", "arrivals"),
            f'<path d="{_area(shares, low, _HIGH / 2)}" fill="#c2590a"/>',
            _axis(low, _HIGH / 2, "100 %", "missed"),
            f'<text x="{_LEFT:g}" y="{height - 6:g}">0</text>'
            f'<text x="{_LEFT + _PLOT:g}" y="{height - 6:g}" text-anchor="end">{seconds(found.seconds)}</text>'
            f'<text x="{_LEFT + found.split * scale:.1f}" y="{height - 6:g}" text-anchor="middle">judged from here'
            "</text>",
            "</svg>",
        )
    )


def _staircase(steps: Sequence[tuple[float, float | None]], top: float) -> str:
    parts: list[str] = []
    for x, share in steps:
        if share is None:
            parts.append(f"H{_LEFT + x:.1f}")
            continue
        y = top + _HIGH * (1 - share)
        parts.append(f"M{_LEFT + x:.1f} {y:.1f}" if not parts else f"H{_LEFT + x:.1f}V{y:.1f}")
    return "".join(parts)


def _area(shares: Sequence[float], top: float, high: float) -> str:
    """One bar for each bucket, as an outline."""
    width, base = _PLOT / len(shares), top + high
    parts = [f"M{_LEFT:g} {base:g}"]
    for i, share in enumerate(shares):
        parts.append(f"V{base - high * min(share, 1.0):.1f}H{_LEFT + (i + 1) * width:.1f}")
    return "".join([*parts, f"V{base:g}Z"])


def _axis(top: float, high: float, most: str, name: str) -> str:
    x = _LEFT - 6
    return (
        f'<text x="{x:g}" y="{top + 9:g}" text-anchor="end">{most}</text>'
        f'<text x="{x:g}" y="{top + high:g}" text-anchor="end">0</text>'
        f'<text x="{_LEFT + 4:g}" y="{top - 5:g}">{name}</text>'
    )
