"""Plain words: no archaic or riddling English in the code."""

from __future__ import annotations

import re

from support.paths import ROOT

ARCHAIC = re.compile(
    r"\b(foret(old|ells?|elling)|whoever|whosoever|heedless|unheeded|unsays?|oftener|gone on with|let down|dealt out"
    r"|hither(to)?|thither|whence|thence)\b",
    re.IGNORECASE,
)
SOURCES = sorted(path for folder in ("src", "bench", "studies", "tools") for path in (ROOT / folder).rglob("*.py"))


def test_no_archaic_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if ARCHAIC.search(line)
    ]
    assert len(SOURCES) > 500 and not found, "\n".join(found)


def test_the_check_sees_them() -> None:
    assert ARCHAIC.search("as the profile foretells") and ARCHAIC.search("# Whoever asks")
    assert not ARCHAIC.search("a prediction of the profile")
