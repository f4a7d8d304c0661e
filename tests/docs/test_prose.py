"""The prose of the book: plain words, one word for one thing, short sentences (tools/book/prose.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.paths import ROOT
from tools.book.prose import MOST_MEAN, MOST_WORDS, NOT_YET, TERMS, findings, pages, prose, sentences

PAGES = pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_plain(page: Path) -> None:
    found = list(findings(page.name, page.read_text(encoding="utf-8")))
    assert not found, "\n".join(map(str, found))


def test_most_pages_are_checked_and_every_exception_exists() -> None:
    assert len(PAGES) >= 40
    here = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert here >= NOT_YET, "these pages are gone: take them off the list"


def test_what_the_glossary_says_is_never_refused() -> None:
    for right in TERMS.values():
        assert not list(findings("", f"A sentence with {right} in it is plain."))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("A run is made anew.", "plain word"),
        ("We leverage a cache.", "plain word"),
        ("The handover takes a step.", "hand-over"),
        ("Each roll-out has a prompt.", "rollout"),
        ("word " * (MOST_WORDS + 1) + ".", "a sentence of"),
        ("One two three four five six seven eight nine. " * 2 + "word " * 40 + ".", "on average"),
    ],
)
def test_it_finds(text: str, wrong: str) -> None:
    assert any(wrong in str(each) for each in findings("page", text))


def test_code_tables_headings_and_addresses_are_no_prose() -> None:
    text = "# A heading anew\n\n```\nanew\n```\n\n| anew |\n\n    anew\n\nSee [this page](anew.md) and `anew`.\n"
    assert "anew" not in prose(text) and not list(findings("page", text))


def test_sentences_are_told_apart() -> None:
    text = "One two three. Four five six: Seven eight nine.\n\n- A first item here\n- A second item here\n"
    assert len(sentences(text)) == 5 and MOST_MEAN < MOST_WORDS
