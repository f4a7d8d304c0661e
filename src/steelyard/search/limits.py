"""Limits that sizing can work with: at least one, and none that contradicts another."""

from __future__ import annotations

from itertools import permutations

from steelyard.errors import UserError
from steelyard.scenario import Scenario
from steelyard.scenario.search import SearchScenario
from steelyard.scenario.slo import RunLimit


def check_limits(scenario: Scenario | SearchScenario) -> None:
    """Raise UserError unless there is a limit that a load could break, and none that contradicts another."""
    limits = scenario.slo.on_run()
    if not limits:
        raise UserError(
            f"{scenario.source}: slo: no limit that a rate could break; give at least one, such as ttft_p95: 1.0"
        )
    for one, other in permutations(limits, 2):
        why = _contradicts(one, other)
        if why:
            raise UserError(
                f"{scenario.source}: slo: {one.name} of {one.seconds:g} s contradicts {other.name} of "
                f"{other.seconds:g} s: {why}"
            )


def _contradicts(one: RunLimit, other: RunLimit) -> str:
    """Why the first limit cannot be meant beside the second; empty if it can."""
    if one.seconds >= other.seconds:
        return ""
    both = one.percentile is not None and other.percentile is not None
    if both and one.metric == other.metric and (one.percentile or 0) > (other.percentile or 0):
        return "a higher percentile is never shorter; leave out the looser limit, or mend one of them"
    if one.percentile == other.percentile and one.metric == "e2e" and other.metric in ("ttft", "queue"):
        return "no request ends before its first token; raise the one or lower the other"
    if one.percentile == other.percentile and (one.metric, other.metric) == ("attft", "ttft"):
        return "a visible answer does not begin before its own first token; raise the one or lower the other"
    return ""
