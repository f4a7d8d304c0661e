"""Tail policies: what to do about the last few trajectories of a step, which all others would wait for."""

from steelyard.balance.commands import Cap, Merge, Reconfigure, Repack, Resume, TrajectoryMove
from steelyard.balance.events import Paused
from steelyard.balance.tail.commands import (
    AbortRest,
    Defer,
    StartAgain,
    StartMore,
    TailCommand,
    Train,
)
from steelyard.balance.tail.events import Room, RoundBegan, TailEvent
from steelyard.balance.tail.groups import Group, Round
from steelyard.balance.tail.policies import (
    Divided,
    Opening,
    OverSampling,
    PartialRollout,
    Plain,
    TailBatching,
    TailPolicy,
)
from steelyard.balance.tail.reconfigure import Reconfiguring, WideReplicas
from steelyard.balance.tail.repack import Repacking, gather
from steelyard.balance.tail.tail import Tail

__all__ = [
    "AbortRest",
    "Cap",
    "Defer",
    "Divided",
    "Group",
    "Merge",
    "Opening",
    "OverSampling",
    "PartialRollout",
    "Paused",
    "Plain",
    "Reconfigure",
    "Reconfiguring",
    "Repack",
    "Repacking",
    "Resume",
    "Room",
    "Round",
    "RoundBegan",
    "StartAgain",
    "StartMore",
    "Tail",
    "TailBatching",
    "TailCommand",
    "TailEvent",
    "TailPolicy",
    "Train",
    "TrajectoryMove",
    "WideReplicas",
    "gather",
]
