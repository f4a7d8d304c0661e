"""Trajectories of a gateway that was here before, taken up from what the core knows and what the journal has."""

from __future__ import annotations

from steelyard.balance.commands import Place
from steelyard.balance.events import Aborted, Ended
from steelyard.live.journal import StoredTrajectory
from steelyard.live.live_trajectory import LiveTrajectory
from steelyard.live.turn_runner import TurnRunner
from steelyard.live.wire import Message
from steelyard.records import Turn


def end_of(row: Message, stored: StoredTrajectory) -> Ended | Aborted:
    """The report of a trajectory that is over, which was lost."""
    if stored.fate != "ended":
        return Aborted(0.0, stored.name, row["epoch"])
    return Ended(0.0, stored.name, row["epoch"], Turn(stored.turns[-1].generated if stored.turns else 0))


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
        live.doing, live.turn = "tool", row["turns"] + 1
        live.last = turns[-1].generated if turns else 0
    elif row["doing"] == "paused":
        live.held = True
    elif len(turns) > row["turns"]:  # it was answered, and the report was lost
        runner.finish(live, turns[row["turns"]], {})
    elif row["replica"] is not None:
        live.placed = Place(live.name, row["replica"], epoch=live.epoch)
        live.place_came.set()
    return live
