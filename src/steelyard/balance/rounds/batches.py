"""Whole batches: training waits for every trajectory of a batch.

One rule makes every mode: a batch may begin once none of its samples can be more than ``staleness`` weight versions old
when it is trained on. With 0, rollout and training take turns. With 1, they overlap by one batch. With more, they
hardly wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from steelyard.balance.commands import Abort, RoundCommand, Start, TrainOn
from steelyard.balance.events import (
    Aborted,
    Begun,
    Called,
    Ended,
    Moved,
    PartTrained,
    Returned,
    TrainerReady,
    WeightsPublished,
)
from steelyard.balance.rounds.protocol import RoundInput, RoundSettings

_OF_NO_CONCERN = (Called, Returned, Moved)


@dataclass(slots=True)
class _Group:
    """Samples of a prompt that have begun and were not trained on yet."""

    name: str
    batch: int
    running: dict[str, int] = field(default_factory=dict)  # the version that each began with
    done: list[str] = field(default_factory=list)  # in order of ending
    version: int = 0  # of the weights that its first ended sample began with


class BatchRounds:
    """Starts batches one after the other and gives training whole groups, the oldest batches first."""

    counts_tokens = False

    def __init__(self, settings: RoundSettings) -> None:
        self._settings = settings
        self._started = 0  # batches
        self._groups: dict[str, _Group] = {}
        self._group_of: dict[str, _Group] = {}  # by trajectory that has not ended
        self._ready: list[_Group] = []  # whole groups, in the order in which they became so
        self._step = -1  # the step that samples are gathered for
        self._part = 0
        self._wanted = 0  # groups that the step still lacks
        self._waiting = False  # whether the training job waits for a part

    def decide(self, event: RoundInput) -> list[RoundCommand]:
        if type(event) in _OF_NO_CONCERN:  # most events
            return []
        commands: list[RoundCommand] = []
        match event:
            case WeightsPublished():
                commands += self._start(event.version)
            case Begun() if event.group:
                group = self._groups.get(event.group)
                if group is None:  # not started, or complete without it
                    return [Abort((event.trajectory,))]
                group.running[event.trajectory] = event.version
                self._group_of[event.trajectory] = group
            case Ended():
                self._end(event.trajectory)
            case Aborted():
                commands += self._replace(event.trajectory)
            case TrainerReady() if event.step > self._step:
                self._step, self._part, self._wanted, self._waiting = event.step, 0, self._settings.groups, True
            case PartTrained() if (event.step, event.part + 1) == (self._step, self._part):
                self._waiting = self._wanted > 0
            case _:
                return commands
        return commands + self._hand_out()

    def unfinished(self) -> list[str]:
        return list(self._groups)

    def _start(self, version: int) -> list[RoundCommand]:
        """Start the batches that may begin with weights of this version."""
        settings, commands = self._settings, list[RoundCommand]()
        while self._started < min(version + settings.staleness + 1, settings.steps):
            first = self._started * settings.groups
            groups = tuple(str(place) for place in range(first, first + settings.groups))
            self._groups |= {name: _Group(name, self._started) for name in groups}
            commands.append(Start(groups, settings.size, self._started))
            self._started += 1
        return commands

    def _end(self, trajectory: str) -> None:
        group = self._group_of.pop(trajectory, None)
        if group is None:
            return
        version = group.running.pop(trajectory)
        if not group.done:
            group.version = version
        group.done.append(trajectory)
        if len(group.done) == self._settings.size:
            self._ready.append(self._groups.pop(group.name))

    def _replace(self, trajectory: str) -> list[RoundCommand]:
        """A sample was lost: another one of its group begins."""
        group = self._group_of.pop(trajectory, None)
        if group is None:
            return []
        del group.running[trajectory]
        return [Start((group.name,), 1, group.batch)]

    def _hand_out(self) -> list[RoundCommand]:
        """The next part, once there are enough groups for it."""
        if not self._waiting:
            return []
        least, wanted = self._settings.least_part, self._wanted
        needed = least if wanted >= 2 * least else wanted
        if len(self._ready) < needed:
            return []
        latest = max(0, self._step - self._settings.staleness)
        own = [group for group in self._ready if group.version <= latest]
        if len(own) < needed:  # older groups, which are still running, must be trained on first
            return []
        later = [group for group in self._ready if group.version > latest]
        most = wanted if len(own) >= wanted else wanted - least
        part, self._ready = own[:most], own[most:] + later
        self._wanted -= len(part)
        self._waiting = False
        self._part += 1
        names = tuple(name for group in part for name in group.done)
        return [TrainOn(self._step, self._part - 1, names, last=not self._wanted)]
