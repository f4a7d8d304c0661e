"""Trajectories of a gateway that was here before, taken up from what the core knows and what the journal has."""

from __future__ import annotations

from steelyard.balance.commands import Place
from steelyard.balance.events import Aborted, Ended
from steelyard.live.journal import StoredTrajectory
from steelyard.live.live_trajectory import LiveTrajectory
from steelyard.live.turn_runner import TurnRunner
from steelyard.live.wire import Message
from steelyard.records import Turn


def end_of(stored: StoredTrajectory, epoch: int) -> Ended | Aborted:
    """The report of a trajectory that is over, which was lost."""
    if stored.fate != "ended":
        return Aborted(0.0, stored.name, epoch)
    return Ended(0.0, stored.name, epoch, Turn(stored.turns[-1].generated if stored.turns else 0))


def taken_up(row: Message, stored: StoredTrajectory | None, runner: TurnRunner) -> LiveTrajectory:
    """A trajectory where it stood. A turn whose report was lost is reported."""
    turns = () if stored is None else stored.turns
    live = LiveTrajectory(
        row["name"],
        "" if stored is None else stored.group,
        row["version"],
        row["context"] if stored is None else stored.context,
        row["epoch"],
        row["turns"],
        sum(turn.generated for turn in turns[: row["turns"]]),
        turns[row["turns"] - 1].generated if 0 < row["turns"] <= len(turns) else 0,
    )
    if row["doing"] == "tool":
        live.doing, live.turn = "tool", max(row["turns"] + 1, len(turns))
        live.last = turns[-1].generated if turns else 0
    elif row["doing"] == "paused":
        live.held = True
    elif len(turns) > row["turns"]:  # it was answered, and the report was lost
        live.turn = len(turns) - 1  # reports of several may be missing, if an engine was given up meanwhile
        runner.finish(live, turns[-1], {})
    elif row["replica"] is not None:
        live.placed = Place(live.name, row["replica"], epoch=live.epoch)
        live.place_came.set()
    return live
