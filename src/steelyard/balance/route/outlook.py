"""When each replica will be done with all it has: columns over replicas, kept up as trajectories come and go.

A step for n requests takes about ``base + share * n`` seconds. So a trajectory with L tokens to give decodes for
``base * L``, plus ``share * min(L, L')`` for each other one on its replica that has L' to give; and the last one there
is done after ``base * L`` and its tools, plus ``share`` times all the tokens that the replica has to give. Where seats
or cache let only c of them run at once, it is no sooner than ``base / c + share`` for each of these tokens.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from steelyard.balance.rollouts import Replica
from steelyard.balance.route.speed import BucketSpeed

_TYPICAL = 64  # requests beside which the share of one is taken
_SHARE, _TAIL, _WORK, _CROWD, _PHI, _ROOM, _BASE, _PREFILL, _MOVE, _REACH = range(10)


@dataclass(frozen=True, slots=True)
class Task:
    """What a trajectory asks for: tokens to give, seconds of tools meanwhile, context cached somewhere, and not."""

    tokens: float
    tools: float
    cached: int
    new: int

    @property
    def context(self) -> int:
        return self.cached + self.new


class _Here:
    """One replica's part: who counts there, and what that sums up to."""

    __slots__ = ("alone", "base", "capacity", "context", "number", "read", "seats", "share", "tasks", "work")

    def __init__(self, replica: Replica, speed: BucketSpeed) -> None:
        self.number = replica.number
        self.seats = replica.seats
        self.capacity = replica.capacity
        self.base = speed.step(1, 0)
        self.share = (speed.step(_TYPICAL, 0) - self.base) / (_TYPICAL - 1)
        self.read = speed.read
        self.tasks: dict[str, Task] = {}
        self.alone: list[float] = []  # seconds each would take alone, rising
        self.work = 0.0
        self.context = 0

    def count(self, name: str, task: Task) -> None:
        self.tasks[name] = task
        self.work += task.tokens
        self.context += task.context
        insort(self.alone, self.base * task.tokens + task.tools)

    def discount(self, name: str) -> None:
        task = self.tasks.pop(name)
        self.work = self.work - task.tokens if self.tasks else 0.0
        self.context -= task.context
        del self.alone[bisect_left(self.alone, self.base * task.tokens + task.tools)]

    def terms(self) -> tuple[float, float, float, float, float]:
        """Share with the reading of context, tail, work, seconds by token when crowded, and the end to the eighth."""
        count = len(self.tasks)
        mean = self.context / count if count else 0.0
        share = self.share + self.read * mean
        at_once = max(1.0, min(self.seats, self.capacity / mean if mean else inf))
        crowd = self.base / at_once + share
        tail = self.alone[-1] if self.alone else 0.0
        return share, tail, self.work, crowd, max(tail + share * self.work, crowd * self.work) ** 8


class Outlook:
    """How much later a trajectory would let each replica be done, as rise of the sum of (when it is done) ** 8."""

    def __init__(self) -> None:
        self._here: list[_Here] = []
        self._slots: dict[int, int] = {}  # by replica
        self._where: dict[str, int] = {}  # replicas by trajectory
        self._columns: npt.NDArray[np.float64] = np.zeros((10, 0))

    def __contains__(self, number: int) -> bool:
        return number in self._slots

    def up(self, replica: Replica, speed: BucketSpeed) -> None:
        """A replica is new."""
        self._slots[replica.number] = len(self._here)
        self._here.append(_Here(replica, speed))
        self._columns = np.hstack([self._columns, np.zeros((10, 1))])
        self._columns[_BASE:, -1] = self._here[-1].base, speed.prefill, speed.move, speed.reach
        self._sum_up(len(self._here) - 1)

    def gone(self, number: int) -> None:
        """A replica is no more; nothing of what counted there counts anywhere."""
        slot = self._slots[number]
        for name in self._here.pop(slot).tasks:
            del self._where[name]
        self._columns = np.delete(self._columns, slot, axis=1)
        self._slots = {here.number: index for index, here in enumerate(self._here)}

    def set_room(self, number: int, tokens: float) -> None:
        """A replica can take a context of up to so many tokens now."""
        self._columns[_ROOM, self._slots[number]] = tokens

    def has_room(self, tokens: int) -> bool:
        """Whether any replica can take such a context."""
        return bool((self._columns[_ROOM] >= tokens).any())

    def count(self, name: str, number: int, task: Task) -> None:
        """From now on a trajectory counts on this replica."""
        slot = self._slots[number]
        self._where[name] = number
        self._here[slot].count(name, task)
        self._sum_up(slot)

    def discount(self, name: str) -> None:
        """A trajectory counts nowhere for now."""
        number = self._where.pop(name, None)
        if number is not None:
            slot = self._slots[number]
            self._here[slot].discount(name)
            self._sum_up(slot)

    def best(self, task: Task, home: int | None, resident: bool) -> int:
        """The replica with the least rise among ``home`` and those with room; the first of equals.

        Prompts hold everybody up, so what a context takes to be there counts in full: a cached part is brought over
        or computed again, whichever is faster, and costs nothing on its home where it is ``resident``.
        """
        columns = self._columns
        slot = None if home is None else self._slots[home]
        bring = np.minimum(columns[_REACH] + columns[_MOVE] * task.cached, columns[_PREFILL] * task.cached)
        if resident:
            bring[slot] = 0.0
        done = columns[_BASE] * task.tokens
        done += task.tools
        np.maximum(done, columns[_TAIL], out=done)
        work = columns[_WORK] + task.tokens
        done += columns[_SHARE] * work
        np.maximum(done, columns[_CROWD] * work, out=done)
        done += columns[_PREFILL] * task.new
        done += bring
        done *= done
        done *= done
        done *= done
        done -= columns[_PHI]
        barred = columns[_ROOM] < task.context
        if slot is not None:
            barred[slot] = False
        done[barred] = inf
        return self._here[int(done.argmin())].number

    def rise(self, number: int, task: Task, resident: bool) -> float:
        """The same for one replica."""
        share, tail, work, crowd, phi, _, base, prefill, move, reach = self._columns[:, self._slots[number]].tolist()
        work += task.tokens
        bring = 0.0 if resident else min(reach + move * task.cached, prefill * task.cached)
        done = max(max(tail, base * task.tokens + task.tools) + share * work, crowd * work)
        return float((done + prefill * task.new + bring) ** 8 - phi)

    def _sum_up(self, slot: int) -> None:
        self._columns[:_ROOM, slot] = self._here[slot].terms()
