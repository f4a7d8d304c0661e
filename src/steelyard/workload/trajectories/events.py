"""Trajectories from a log of events (docs/balance.md), as a live system or `steelyard posttrain --log` writes it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from steelyard.errors import UserError
from steelyard.files.jsontext import required
from steelyard.records import Trajectory, Turn
from steelyard.workload.traces.lines import seconds, tokens
from steelyard.workload.trajectories.rows import name_of, turn_of, turns_of


@dataclass
class _Open:
    """A trajectory that has not ended."""

    prompt: str
    prompt_tokens: int
    policy: str
    turns: list[Turn] = field(default_factory=list)
    called: float | None = None  # when its tool was


class EventReader:
    """Assembles trajectories from a log, line by line. Those that never end are skipped."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    def take(self, row: dict[str, Any], where: str) -> Trajectory | None:
        """Process a line of the log; returns the trajectory that it ends, if any. Other events are ignored."""
        kind = row["kind"]
        if kind not in ("Begun", "Called", "Returned", "Ended"):
            return None
        name = name_of(row, "trajectory", where)
        if name is None:
            raise UserError(f"{where}: {kind}: trajectory is missing")
        if kind == "Begun":
            self._begin(name, row, where)
            return None
        each = self._open.get(name)
        if each is None:  # it started before the log
            return None
        at = seconds(required(row, "at", where), "at", where)
        if kind == "Called":
            each.called = at
            return None
        turn = turn_of(required(row, "turn", where), f"{where}: turn")
        if kind == "Returned":
            if turn.latency is None and each.called is not None:
                if at < each.called:
                    raise UserError(f"{where}: at is {at:g}, but the tool was called later, at {each.called:g}")
                turn = replace(turn, latency=at - each.called)
            each.turns.append(turn)
            return None
        del self._open[name]
        turns = (*each.turns, turn)
        return Trajectory(name, each.prompt, each.prompt, turns, each.prompt_tokens, each.policy)

    def _begin(self, name: str, row: dict[str, Any], where: str) -> None:
        """Start a trajectory, or resume it after some turns."""
        prompt = name_of(row, "prompt", where)
        if prompt is None:
            raise UserError(f"{where}: Begun: prompt is missing")
        size = tokens(required(row, "prompt_tokens", where), "prompt_tokens", where)
        turns = turns_of(row.get("turns", []), where)
        version = tokens(row.get("version", 0), "version", where)
        before = self._open.get(name)
        policy = before.policy if before is not None and turns else f"version-{version}"
        self._open[name] = _Open(prompt, size, policy, turns)
