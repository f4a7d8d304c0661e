"""A trajectory spec compiled to tables, so that a turn of thousands of trajectories is a few dozen look-ups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steelyard.records import Floats, Ints
from steelyard.scenario.rollouts import ToolSpec, TrajectorySpec
from steelyard.workload.trajectories.chance import LEVELS, Levels
from steelyard.workload.trajectories.quantiles import seconds_table, tokens_table


@dataclass(frozen=True)
class Tools:
    """The properties of tools, one column each; odds are those of failure."""

    names: tuple[str, ...]
    begin: Floats  # cumulative shares while nothing is done
    end: Floats  # and when all is done
    error: Floats
    timeout: Floats
    harder: Floats  # logarithms
    slower: Floats
    limit: Floats
    advance: Floats
    rework: Floats
    insight: Floats
    _latency: Floats  # quantiles, one tool after the other
    _returned: Floats
    _error_returned: Floats

    def latency(self, tool: Ints, level: Levels) -> Floats:
        return self._latency.take(tool * LEVELS + level)

    def returned(self, tool: Ints, level: Levels) -> Floats:
        return self._returned.take(tool * LEVELS + level)

    def error_returned(self, tool: Ints, level: Levels) -> Floats:
        return self._error_returned.take(tool * LEVELS + level)


@dataclass(frozen=True)
class TrajectoryTables:
    """Everything that all trajectories share."""

    spec: TrajectorySpec
    tools: Tools
    prompt: Floats
    thinking: Floats
    call: Floats
    answer: Floats


def compile_plan(spec: TrajectorySpec, base_dir: Path) -> TrajectoryTables:
    """Tables for a spec; relative paths in it start from ``base_dir``."""
    return TrajectoryTables(
        spec=spec,
        tools=_tools(spec.tools, base_dir),
        prompt=np.rint(tokens_table(spec.prompt, base_dir)),
        thinking=tokens_table(spec.thinking, base_dir),
        call=tokens_table(spec.call, base_dir),
        answer=tokens_table(spec.answer, base_dir),
    )


def _tools(tools: tuple[ToolSpec, ...], base_dir: Path) -> Tools:
    def column(values: Iterable[float]) -> Floats:
        return np.fromiter(values, np.float64, len(tools))

    def shares(end: int) -> Floats:
        weights = column(tool.share[end] for tool in tools)
        return np.asarray(np.cumsum(weights / weights.sum()))

    return Tools(
        names=tuple(tool.name for tool in tools),
        begin=shares(0),
        end=shares(1),
        error=column(tool.error / (1 - tool.error - tool.timeout) for tool in tools),
        timeout=column(tool.timeout / (1 - tool.error - tool.timeout) for tool in tools),
        harder=np.log(column(tool.harder for tool in tools)),
        slower=np.log(column(tool.slower for tool in tools)),
        limit=column(tool.limit for tool in tools),
        advance=column(tool.advance for tool in tools),
        rework=column(tool.rework for tool in tools),
        insight=column(tool.insight for tool in tools),
        _latency=np.concatenate([seconds_table(tool.latency) for tool in tools]),
        _returned=np.concatenate([np.rint(tokens_table(tool.returned, base_dir)) for tool in tools]),
        _error_returned=np.concatenate(
            [np.rint(tokens_table(tool.error_returned or tool.returned, base_dir)) for tool in tools]
        ),
    )
