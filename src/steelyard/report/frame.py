"""The frame that all pages share: one template, one style sheet, one script, all inside the page.

All text comes from Python, so that it can be read without the script. Figures are SVG, which the script draws again at
the width of the screen. The page's policy lets no script run but this one, and nothing be asked of a network.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib.metadata import version
from pathlib import Path

from steelyard.files.reading import read_text
from steelyard.quoting import printable


@dataclass(frozen=True)
class Page:
    """What a page says: its title, a line below it, what comes first, and its sections by title. Sections without
    content are left out."""

    title: str
    lede: Sequence[str]
    top: str
    sections: Mapping[str, str]
    made: str = ""  # by which version, with which seed; this one's if not given

    def html(self) -> str:
        """The whole file."""
        present = {title: content for title, content in self.sections.items() if content}
        dot = '</span><span class="dot" aria-hidden="true"> · </span><span>'
        script = _read("page.js")
        parts = {
            "title": escape(printable(self.title)),
            "lede": f"<span>{dot.join(escape(printable(each)) for each in self.lede)}</span>",
            "nav": "".join(f'<a href="#{anchor(title)}">{escape(title)}</a>' for title in present),
            "body": "\n".join([self.top, *(_section(title, content) for title, content in present.items())]),
            "foot": escape(self.made or f"Simulated by Steelyard {version('steelyard')}."),
            "css": _read("page.css"),
            "js": script,
            "digest": f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        }
        return _fill(_read("page.html"), parts)


def made_with_seed(seed: int) -> str:
    """The foot of a page of what this version has simulated."""
    return f"Simulated by Steelyard {version('steelyard')} with seed {seed}."


def anchor(title: str) -> str:
    """The name of a section in addresses."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"


def _section(title: str, content: str) -> str:
    return f'<section id="{anchor(title)}"><h2>{escape(title)}</h2>{content}</section>'


def _read(name: str) -> str:
    return read_text(Path(__file__).parent / name)


def _fill(template: str, parts: Mapping[str, str]) -> str:
    """Replace {{name}} in one pass, so that braces in a user's text are never replaced."""
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], template)
