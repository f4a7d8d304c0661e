"""Plain words: no archaic or riddling English in the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.paths import ROOT

ARCHAIC = re.compile(
    r"\b(foret(old|ells?|elling)|whoever|whosoever|heedless|unheeded|unsays?|oftener|gone on with|let down|dealt out"
    r"|hither(to)?|thither|whence|thence)\b",
    re.IGNORECASE,
)
SOURCES = sorted(path for folder in ("src", "bench", "studies", "tools") for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_archaic_words(path: Path) -> None:
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    found = [f"line {number}: {line.strip()}" for number, line in lines if ARCHAIC.search(line)]
    assert not found, found


def test_the_check_sees_them() -> None:
    assert ARCHAIC.search("as the profile foretells") and ARCHAIC.search("# Whoever asks")
    assert not ARCHAIC.search("a prediction of the profile")
