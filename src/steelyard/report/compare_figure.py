"""A bar for each way to run post-training, with the bounds as lines."""

from __future__ import annotations

from html import escape

from steelyard.posttrain.compare_choices import Contender, Kind
from steelyard.posttrain.compare_outcomes import Comparison
from steelyard.quoting import printable

_ROW, _LEFT, _PLOT, _RIGHT, _TOP = 20.0, 190.0, 520.0, 110.0, 58.0
_COLOURS: dict[Kind, str] = {"ours": "#0f7f6c", "bound": "#8592a0", "rival": "#c2590a", "change": "#a9c3dc"}
_NAMES: dict[Kind, str] = {
    "ours": "ours",
    "bound": "bounds, and others that know lengths",
    "rival": "others",
    "change": "ours, one thing changed",
}
_STYLE = (
    "text{font:11px system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;fill:#52606d}"
    ".h{font-size:15px;font-weight:600;fill:#17212b}.r{text-anchor:end}.b{stroke:#52606d;stroke-dasharray:3 3}"
)


def comparison_svg(found: Comparison) -> str:
    """Throughput, the highest first; equal bytes for equal figures."""
    rows = sorted((each for each in found.outcomes if each.runs), key=lambda each: -each.throughput)
    most = max((each.throughput for each in rows), default=1.0)
    width, height = _LEFT + _PLOT + _RIGHT, _TOP + _ROW * len(rows) + 12
    title = f"{printable(found.scenario.name)}: tokens of trained samples per second"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect width="{width:g}" height="{height:g}" rx="10" fill="#fff"/>',
        f'<text class="h" x="18" y="25">{escape(title)}</text>',
        *_legend(),
    ]
    for each in rows:
        if each.contender.kind == "bound":
            x = _LEFT + _PLOT * each.throughput / most
            parts.append(f'<line class="b" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4:g}" y2="{height - 10:g}"/>')
    for place, each in enumerate(rows):
        y, value = _TOP + _ROW * place, each.throughput
        length, colour = _PLOT * value / most, _colour(each.contender)
        parts += [
            f'<text class="r" x="{_LEFT - 8:g}" y="{y + 14:g}">{escape(each.contender.name)}</text>',
            f'<rect x="{_LEFT:g}" y="{y + 3:g}" width="{length:.1f}" height="{_ROW - 6:g}" rx="2" fill="{colour}"/>',
            f'<text x="{_LEFT + length + 6:.1f}" y="{y + 14:g}">{value:,.0f}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _colour(who: Contender) -> str:
    """Contenders that know lengths in advance are bounds, not rivals, and have another colour."""
    return _COLOURS["bound" if who.choice.knows else who.kind]


def _legend() -> list[str]:
    parts, x = [], 18.0
    for kind, name in _NAMES.items():
        parts.append(f'<rect x="{x:g}" y="36" width="10" height="10" rx="2" fill="{_COLOURS[kind]}"/>')
        parts.append(f'<text x="{x + 15:g}" y="45">{name}</text>')
        x += 32 + 6 * len(name)
    return parts
