"""Inputs that once led to a traceback, a hang, a lost device or an absurd result (`tools.fuzz` judges them)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.fuzz.campaign import tried
from tools.fuzz.case import Case

KEPT = sorted((Path(__file__).parent / "regressions").glob("*.json"))
OPEN = {"capture-minus-signs", "trace-duplicate-ids"}
"""Faults that are known and not repaired yet."""


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_it_stays_repaired(path: Path) -> None:
    if path.stem in OPEN:
        pytest.xfail("to be repaired")
    case = Case.from_text(path.read_text(encoding="utf-8"))
    _, failure = tried(case)
    assert failure is None, f"{case.why}\nnow: {failure.kind}: {failure.words}"


def test_open_faults_are_kept() -> None:
    assert {path.stem for path in KEPT} >= OPEN
