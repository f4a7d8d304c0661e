"""The first cases of `make fuzz`: hostile inputs for all commands and formats, and none may do harm."""

from __future__ import annotations

import pytest

from tools.fuzz.campaign import case_of, tried

CASES, PARTS = 200, 8


@pytest.mark.parametrize("part", range(PARTS))
def test_no_case_does_harm(part: int) -> None:
    failures = []
    for number in range(part, CASES, PARTS):
        _, failure = tried(case_of(0, number))
        if failure is not None:
            failures.append(f"{failure.kind}: python -m tools.fuzz --only {number}: {failure.words}")
    assert not failures, "\n".join(failures)
