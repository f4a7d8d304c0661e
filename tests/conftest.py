"""Asserts in the shared helpers are explained like those in the tests; no cache of the user's is read or written; every
simulation of a test is checked for what must hold in any result."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest.register_assert_rewrite("support")
os.environ["STEELYARD_CACHE"] = ""
settings.register_profile("any machine", deadline=None)  # how long an example takes says nothing on a busy one
settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in a browser come first: they are the longest, and workers take from each other's end, so that a module of
    them stays with one worker, its browser and its server."""
    items.sort(key=lambda item: not item.path.name.startswith("test_browser"))


@pytest.fixture(scope="session", autouse=True)
def checked_results() -> Iterator[None]:
    """Results are checked where runs make them, in serving and in post-training."""
    from steelyard.posttrain.check import check_posttrain
    from steelyard.posttrain.result import PosttrainResult
    from steelyard.sim import run
    from steelyard.sim.check import check
    from steelyard.sim.result import Result

    make, make_posttrain = run._Run.result, PosttrainResult.of

    def checked(of: run._Run, *asked: Any) -> Result:
        scaled = any(pool.prepared.sources.factors for pool in of.setup.pools)
        check(result := make(of, *asked), scaled=scaled)
        return result

    def checked_posttrain(*parts: Any) -> PosttrainResult:
        check_posttrain(result := make_posttrain(*parts))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run._Run, "result", checked)
        patch.setattr(PosttrainResult, "of", checked_posttrain)
        yield


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """A real browser for the tests of a module."""
    from support.browser import started

    with started() as found:
        yield found
