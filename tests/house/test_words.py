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
# Rooms whose words are still to be made plain. Take a room off as soon as it is; add none.
LATER = {"balance", "posttrain"}
SOURCES = sorted(path for folder in ("src", "bench", "studies", "tools") for path in (ROOT / folder).rglob("*.py"))


def room_of(path: Path) -> str:
    """The room of a source file, or its top folder."""
    parts = path.relative_to(ROOT).parts
    return parts[2].removesuffix(".py") if parts[0] == "src" else parts[0]


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if room_of(path) not in LATER], ids=lambda path: str(path.relative_to(ROOT))
)
def test_no_archaic_words(path: Path) -> None:
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    found = [f"line {number}: {line.strip()}" for number, line in lines if ARCHAIC.search(line)]
    assert not found, found


def test_the_check_sees_them() -> None:
    assert ARCHAIC.search("as the profile foretells") and ARCHAIC.search("# Whoever asks")
    assert not ARCHAIC.search("a prediction of the profile")
