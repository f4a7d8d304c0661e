"""What the documentation shows: blocks of code by page, and every command in them or in the text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
WALKTHROUGHS = [ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
"""Pages that are carried out as written, from the first block to the last (tests/docs/test_walkthroughs.py)."""
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page not in WALKTHROUGHS),
]

_FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`((?:steelyard|python -m|make) [^`]+)`")


class Block(NamedTuple):
    """A fenced block: its page, first line, language and text; the name of the file that it is, if it is one."""

    page: Path
    line: int
    language: str
    text: str
    title: str = ""

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


class Command(NamedTuple):
    """A command line as shown, in a block or in the text."""

    page: Path
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.name}: {' '.join(self.words)}"


def blocks(*languages: str) -> list[Block]:
    """All blocks in these languages, page by page."""
    return [block for page in PAGES for block in blocks_of(page) if block.language in languages]


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, match.start()) + 2, match[1], match[3], match[2] or "")
        for match in _FENCE.finditer(text)
    ]


def commands() -> list[Command]:
    """Every command of ours and of make, once per page."""
    found: dict[Command, None] = {}
    for block in blocks("", "sh"):
        for line in lines_of(block.text):
            found |= dict.fromkeys(_commands(block.page, line))
    for page in PAGES:
        for span in _SPAN.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
            found |= dict.fromkeys(_commands(page, " ".join(span.split())))
    return list(found)


def lines_of(text: str) -> Iterator[str]:
    """Lines without their comments; an indented one continues the one before."""
    whole = ""
    for line in text.splitlines():
        line = re.sub(r"(^|\s)#.*", "", line)
        if line.startswith(" "):
            whole += line
        else:
            yield whole
            whole = line
    yield whole


def _commands(page: Path, line: str) -> Iterator[Command]:
    for part in line.split(" ; "):
        words = shlex.split(part)
        if words and (words[0] in ("steelyard", "make") or words[:2] == ["python", "-m"]):
            yield Command(page, tuple(words))
