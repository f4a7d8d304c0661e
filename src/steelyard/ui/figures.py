"""A run's charts on the page: those of its report, in the shape that the report's script draws from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steelyard.sim import Result


def chart_data(result: Result) -> dict[str, dict[str, Any]]:
    """Latencies and load over time, by name, ready for JSON."""
    plots = result.plot
    charts = (plots.ttft(), plots.tpot(), plots.e2e(), plots.requests(), plots.throughput(), plots.batch(), plots.kv())
    return {each.name: each.data() for each in charts}
