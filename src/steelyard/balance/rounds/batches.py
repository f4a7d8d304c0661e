"""Rounds without a tail policy: groups begin as admission allows, and a batch is made of those that have ended.

One rule makes every mode. A group begins once there is room for it by the admission formula, and it is trained on at
most ``staleness`` weight versions later. With 0 and no other limit, rollout and training take turns. With 1, they
overlap by one batch. With more, they hardly wait for each other.

The formula alone bounds the average: groups that take long are overtaken. ``late`` says what happens to them. With
``wait``, a step leaves room for groups that would be too old for the next one, and for as many of each later step as
the steps until then could not take.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import inf

from steelyard.balance.admission import capacity
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
_NOBODY = -1  # the version of a group of which no sample has begun


@dataclass(slots=True)
class _Group:
    """Samples of a prompt that were started and not trained on yet."""

    name: str
    batch: int
    coming: int  # samples that have not begun
    versions: dict[str, int] = field(default_factory=dict)  # that each sample began with
    done: list[str] = field(default_factory=list)  # in order of ending
    version: int = _NOBODY  # the oldest of them


class BatchRounds:
    """Starts groups in the order of prompts, and gives training those that have ended."""

    counts_tokens = False

    def __init__(self, settings: RoundSettings) -> None:
        self._settings = settings
        self._most = inf if settings.concurrency is None else settings.concurrency
        self._version = -1  # of the engines' weights
        self._started = 0  # groups
        self._dropped = 0  # groups
        self._under_way = self._accepted = 0  # samples that were started and have not ended, and those that have
        self._groups: dict[str, _Group] = {}
        self._group_of: dict[str, _Group] = {}  # by trajectory that has not ended
        self._ready: dict[str, _Group] = {}  # whole groups, in the order in which they became so
        self._versions: Counter[int] = Counter()  # groups that have begun and were not trained on, by version
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
                self._version = max(self._version, event.version)
                commands += self._drop_late()
            case Begun() if event.group:
                commands += self._begin(event)
            case Ended():
                self._end(event.trajectory)
            case Aborted():
                commands += self._replace(event.trajectory)
            case TrainerReady() if event.step > self._step:
                self._step, self._part, self._wanted, self._waiting = event.step, 0, self._settings.groups, True
                commands += self._drop_late()
            case PartTrained() if (event.step, event.part + 1) == (self._step, self._part):
                self._waiting = self._wanted > 0
            case _:
                return commands
        return commands + self._start() + self._hand_out()

    def unfinished(self) -> list[str]:
        return list(self._groups)

    # Who begins

    def _start(self) -> list[RoundCommand]:
        """Start as many groups as may begin, but no more than the run needs."""
        settings, commands = self._settings, list[RoundCommand]()
        if self._version < 0:
            return []
        batch = settings.groups * settings.size
        room = capacity(self._most, self._under_way, settings.staleness, self._version, batch, self._accepted)
        until = min(self._started + int(room // settings.size), settings.steps * settings.groups + self._dropped)
        while self._started < until:
            number = self._started // settings.groups
            last = min(until, (number + 1) * settings.groups)
            names = tuple(str(place) for place in range(self._started, last))
            self._groups |= {name: _Group(name, number, settings.size) for name in names}
            self._under_way += len(names) * settings.size
            self._started = last
            commands.append(Start(names, settings.size, number))
        return commands

    def _begin(self, event: Begun) -> list[RoundCommand]:
        group = self._groups.get(event.group)
        if group is None or not group.coming:  # not started, dropped, or complete without it
            return [Abort((event.trajectory,))]
        group.coming -= 1
        group.versions[event.trajectory] = event.version
        self._group_of[event.trajectory] = group
        self._dated(group)
        return self._drop([group]) if self._late(group) else []

    def _replace(self, trajectory: str) -> list[RoundCommand]:
        """A sample was lost: another one of its group begins."""
        group = self._group_of.pop(trajectory, None)
        if group is None:
            return []
        del group.versions[trajectory]
        group.coming += 1
        self._dated(group)
        return [Start((group.name,), 1, group.batch)]

    def _end(self, trajectory: str) -> None:
        group = self._group_of.pop(trajectory, None)
        if group is None:
            return
        self._under_way -= 1
        self._accepted += 1
        group.done.append(trajectory)
        if len(group.done) == self._settings.size:
            self._ready[group.name] = self._groups.pop(group.name)

    # Who is too old

    def _dated(self, group: _Group) -> None:
        """Count a group by its oldest version, whose samples have changed."""
        self._uncounted(group)
        group.version = min(group.versions.values(), default=_NOBODY)
        if group.versions:
            self._versions[group.version] += 1

    def _uncounted(self, group: _Group) -> None:
        """It has another version now, or is gone."""
        if group.version != _NOBODY:
            self._versions[group.version] -= 1
            if not self._versions[group.version]:
                del self._versions[group.version]

    def _late(self, group: _Group) -> bool:
        """Whether it is dropped, since the step that is gathered for would find it too old."""
        due = max(self._step, self._version) - self._settings.staleness
        return self._settings.late == "drop" and _NOBODY < group.version < due

    def _drop_late(self) -> list[RoundCommand]:
        return self._drop([group for group in (*self._groups.values(), *self._ready.values()) if self._late(group)])

    def _drop(self, groups: list[_Group]) -> list[RoundCommand]:
        """Forget groups, so that others begin in their place. Samples that have not begun are aborted when they do."""
        for group in groups:
            self._groups.pop(group.name, None)
            self._ready.pop(group.name, None)
            self._uncounted(group)
            for name in group.versions:
                self._group_of.pop(name, None)
            self._accepted -= len(group.done)
            self._under_way -= self._settings.size - len(group.done)
            self._dropped += 1
        names = tuple(name for group in groups for name in group.versions)
        return [Abort(names)] if names else []

    # What the training job gets

    def _hand_out(self) -> list[RoundCommand]:
        """The next part, once there are enough groups for it."""
        if not self._waiting:
            return []
        least, wanted = self._settings.least_part, self._wanted
        needed = least if wanted >= 2 * least else wanted
        if len(self._ready) < needed:
            return []
        chosen = self._choose()
        if len(chosen) < needed:  # older groups, which are still running, must be trained on first
            return []
        part = chosen[: wanted if len(chosen) >= wanted else wanted - least]
        for group in part:
            del self._ready[group.name]
            self._uncounted(group)
        self._wanted -= len(part)
        self._waiting = False
        self._part += 1
        names = tuple(name for group in part for name in group.done)
        return [TrainOn(self._step, self._part - 1, names, last=not self._wanted)]

    def _choose(self) -> list[_Group]:
        """Whole groups that this step may take, the oldest first."""
        ready = sorted(self._ready.values(), key=lambda group: group.version)
        if self._settings.late != "wait":
            return ready
        room, chosen = self._room(), list[_Group]()
        for group in ready:
            could_wait = max(0, group.version + self._settings.staleness - self._step)  # steps
            if all(room[:could_wait]):
                room[:could_wait] = [each - 1 for each in room[:could_wait]]
                chosen.append(group)
        return chosen

    def _room(self) -> list[int]:
        """For this step and each later one: how many groups this step may take that could wait for longer than until
        then. The steps up to then take all others."""
        staleness, groups = self._settings.staleness, self._settings.groups
        newest, room = max(self._versions, default=0), list[int]()
        for step in range(self._step, newest + staleness):
            due = sum(count for version, count in self._versions.items() if version + staleness <= step)
            room.append(max(0, self._wanted + (step - self._step) * groups - due))
        return room
