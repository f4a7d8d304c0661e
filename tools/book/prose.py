"""Checks the prose of the book: python -m tools.book.prose

Three rules. No archaic or riddling words. One word for one thing: the glossary's. Short sentences: on average over a
page, and none beyond a limit. Code, tables and headings are not prose.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from steelyard.files.yamltext import read_yaml

ROOT = Path(__file__).parents[2]
MOST_WORDS = 45  # of a sentence
MOST_MEAN = 17.0  # words of a page's sentences, on average

_WORDS = read_yaml(Path(__file__).with_name("words.yaml"))
BANNED = re.compile(rf"\b(?:{'|'.join(_WORDS['banned'])})\b", re.IGNORECASE)
TERMS: dict[str, str] = _WORDS["terms"]
# Written by generators or being rewritten; each leaves the list when its page does.
NOT_YET = {
    *("ablations", "aiconfigurator", "comparison", "examples", "fidelity", "rivals", "studies"),
    "planner",
}

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^ {4}.*$", re.MULTILINE)
_NOT_PROSE = re.compile(r"^(\||#|!\[|<!--).*$", re.MULTILINE)
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_END = re.compile(r"(?<=[.!?:;])[)\"*]*\s+(?=[A-Z0-9`\"(*])")


class Finding(NamedTuple):
    """Something to be said otherwise."""

    page: str
    message: str

    def __str__(self) -> str:
        return f"{self.page}: {self.message}"


def pages() -> list[Path]:
    """The pages whose prose is checked."""
    written = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/how-to").glob("*.md")]
    others = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
    return sorted(page for page in (*written, *others) if page.stem not in NOT_YET)


def prose(text: str) -> str:
    """A page without code, tables, headings and addresses of links; a code span counts as one word."""
    text = _NOT_PROSE.sub("", _INDENTED.sub("", _FENCE.sub("", text)))
    return re.sub(r"`[^`]*`", "`code`", _LINK.sub(r"\1", text))


def sentences(text: str) -> list[str]:
    """The sentences of a page. Items of a list are told apart, and so are parts around colons and semicolons."""
    found = []
    for block in _BLOCK.split(prose(text)):
        words = re.sub(r"^\s*(?:[-*]|\d+\.)\s+", "", " ".join(block.split()))
        found += [each.strip() for each in _END.split(words) if len(each.split()) > 2]
    return found


def findings(page: str, text: str) -> Iterator[Finding]:
    """What is wrong with the prose of a page."""
    shown = prose(text)
    for match in BANNED.finditer(shown):
        yield Finding(page, f"{match[0]!r}: use a plain word")
    for wrong, right in TERMS.items():
        for match in re.finditer(rf"\b(?:{wrong})\b", shown, re.IGNORECASE):
            yield Finding(page, f"{match[0]!r}: the glossary says {right!r}")
    lengths = [(len(each.split()), each) for each in sentences(text)]
    for length, each in lengths:
        if length > MOST_WORDS:
            yield Finding(page, f"a sentence of {length} words: {each[:70]}...")
    mean = sum(length for length, _ in lengths) / max(1, len(lengths))
    if mean > MOST_MEAN:
        yield Finding(page, f"sentences have {mean:.1f} words on average; at most {MOST_MEAN:g}")


def main() -> int:
    """Check all pages."""
    found = [each for page in pages() for each in findings(page.name, page.read_text(encoding="utf-8"))]
    print("\n".join(map(str, found)) or "nothing found")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
