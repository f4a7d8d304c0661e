"""HTML elements that several sections of the page share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from steelyard.report.words import Share, count, percent


class BarPart(NamedTuple):
    """One part of a stacked bar."""

    style: str
    share: float
    name: str
    meaning: str


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], classes: str = "") -> str:
    """A table of HTML cells. A cell that already is a table element is used as it is."""
    top = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    body = "".join(
        "<tr>" + "".join(c if c.startswith(("<th", "<td")) else f"<td>{c}</td>" for c in row) + "</tr>" for row in rows
    )
    made = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll {classes}">{made}</div>'


def text_table(head: Sequence[str], rows: Iterable[Sequence[str | Share]]) -> str:
    """A table of plain text with a bar behind each share; empty without rows."""
    cells = [[_cell(each) for each in row] for row in rows]
    return html_table(head, cells) if cells else ""


def _cell(content: str | Share) -> str:
    if isinstance(content, Share) and content.value is not None:
        return bar_cell(str(content), content.value, 1)
    return escape(str(content))


def bar_cell(text: str, value: float, full: float) -> str:
    """A cell with a bar behind its text."""
    share = 100 * value / full if full else 0.0
    return f'<td class="load" style="--share:{share:.1f}%">{escape(text)}</td>'


def cut_note(shown: int, total: int, noun: str) -> str:
    """A note on how many rows were left out; empty if none."""
    return f"<p>The first {count(shown)} of {count(total)} {noun}.</p>" if shown < total else ""


def share_bar(title: str, parts: Sequence[BarPart], foot: str) -> str:
    """A stacked bar with a legend."""
    bar = "".join(
        f'<span class="{part.style}" style="flex-grow:{part.share:.6f}" '
        f'title="{part.name} {percent(part.share)}"></span>'
        for part in parts
        if part.share > 0
    )
    legend = "".join(
        f'<li class="{part.style}{"" if part.share else " none"}">'
        f"<b>{percent(part.share)}</b> {part.name} <small>{part.meaning}</small></li>"
        for part in parts
    )
    return (
        f'<section class="shares"><h3>{title}</h3><div class="bar" aria-hidden="true">{bar}</div><ul>{legend}</ul>'
        f"<p><small>{escape(foot)}</small></p></section>"
    )


def figure_boxes(figures: Iterable[tuple[str, str]], layout: str) -> str:
    """Empty boxes for figures that the page's script draws, by name and title."""
    boxes = (
        f'<figure id="fig-{name}"><figcaption>{escape(title)}</figcaption>'
        '<div class="readout"></div>'
        '<div class="plot"><noscript>The figures need JavaScript.</noscript></div></figure>'
        for name, title in figures
    )
    return f'<div class="figures {layout}">{"".join(boxes)}</div>'
