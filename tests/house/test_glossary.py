"""The glossary stays small and plain."""

from __future__ import annotations

import re

from support.paths import ROOT

ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split(" | "))
    for line in (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith(("| term", "| ---"))
]


def test_at_most_forty_terms_each_once() -> None:
    terms = [term for row in ROWS for term in row[0].split(", ")]
    assert 30 <= len(terms) <= 40 and len(set(terms)) == len(terms)


def test_each_has_one_sentence() -> None:
    for term, meaning in ROWS:
        assert re.fullmatch(r"[A-Z*][^.]*\.", meaning), term


def test_it_is_linked() -> None:
    for page in ("README.md", "docs/architecture.md"):
        assert "glossary.md" in (ROOT / page).read_text(encoding="utf-8")
