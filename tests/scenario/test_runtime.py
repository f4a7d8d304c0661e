"""An engine's release: its defaults count where a scenario gives none."""

from __future__ import annotations

from typing import Any

import pytest

from steelyard import Scenario, UserError, scenario_from_dict, simulate
from steelyard.scenario.runtime import release_of


def scenario(**engine: Any) -> Scenario:
    return scenario_from_dict(
        {
            "model": "llama-3.1-8b",
            "fleet": {"gpu": "h100"},
            "engine": engine,
            "workload": {"arrivals": {"kind": "poisson", "rate": 1}, "requests": 1, "prompt": 9, "output": 9},
        }
    )


@pytest.mark.parametrize(
    ("version", "share", "ahead"),
    [("0.12.0", 0.9, False), ("0.13", 0.9, False), ("0.14.1", 0.9, True), ("v0.19.0", 0.9, True), ("0.20", 0.92, True)],
)
def test_a_release_has_its_own_defaults(version: str, share: float, ahead: bool) -> None:
    engine = scenario(runtime={"version": version}).engine
    assert (engine.gpu_memory_utilization, engine.async_scheduling) == (share, ahead)
    own = scenario(runtime={"name": "vllm", "version": version}, gpu_memory_utilization=0.5, async_scheduling=not ahead)
    assert (own.engine.gpu_memory_utilization, own.engine.async_scheduling) == (0.5, not ahead)


def test_without_one_defaults_are_those_of_the_release_that_was_measured() -> None:
    plain, named = scenario().engine, scenario(runtime={"version": "0.26.0"}).engine
    assert named.model_dump(exclude={"runtime"}) == plain.model_dump(exclude={"runtime"})


@pytest.mark.parametrize("version", ["0.9.2", "1.0", "new", "0.33", "0.26x5"[:2], ""])
def test_a_release_that_is_not_known_is_refused(version: str) -> None:
    with pytest.raises(
        UserError, match=r"engine\.runtime\.version: not a version whose defaults are known; 0\.12 to 0\.32"
    ):
        scenario(runtime={"version": version})


def test_a_lone_prompt_is_split_up_to_0_30() -> None:
    """300 tokens at most 100 a step, with nobody else there: three steps, or one."""
    for version, steps in (("0.30", 3), ("0.31", 1)):
        asked = {"long_prefill_token_threshold": 100, "runtime": {"version": version}}
        given = scenario(**asked)
        work = {"arrivals": {"kind": "poisson", "rate": 1}, "requests": 1, "prompt": 300, "output": 1}
        result = simulate(given.replace(workload=work, cost={"source": "analytic"}))
        assert result.steps["prefill_tokens"].tolist() == [300 // steps] * steps


def test_only_vllm_has_releases_here() -> None:
    with pytest.raises(UserError, match=r"engine\.runtime\.name"):
        scenario(runtime={"name": "sglang", "version": "0.26"})
    with pytest.raises(UserError, match=r"engine\.runtime"):
        scenario(runtime=0.26)


@pytest.mark.parametrize(
    ("text", "release"), [("0.28.1rc1.dev500+g51da", (0, 28)), ("v0.19", (0, 19)), ("0.99999", None), (0.26, None)]
)
def test_versions_are_read(text: Any, release: tuple[int, int] | None) -> None:
    assert release_of(text) == release
