"""Inputs that once led to a traceback, a hang, a lost device or an absurd result (`tools.fuzz` judges them)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.fuzz.campaign import tried
from tools.fuzz.case import Case

KEPT = sorted((Path(__file__).parent / "regressions").glob("*.json"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_it_stays_repaired(path: Path) -> None:
    case = Case.from_text(path.read_text(encoding="utf-8"))
    _, failure = tried(case)
    assert failure is None, f"{case.why}\nnow: {failure.kind}: {failure.words}"
