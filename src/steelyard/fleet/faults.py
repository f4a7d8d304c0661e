"""What goes wrong with a fleet: crashes, slow GPUs, narrow links.

When an engine crashes, all that is on it is lost, down to the tokens of steps that had not ended. Its requests start
over: they go back to the router, prompt and all, and find no more of their work done than the prefix cache of their
new place happens to hold. Their clients keep what they have seen: tokens that come again are not shown again, so the
first token stays the first one, and the next new one ends a long gap. While no replica is there requests wait for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from steelyard.cost.step import StepTime
from steelyard.engine import FINISHED, Request, StepCost
from steelyard.fleet.links import Link
from steelyard.fleet.presence import Presence
from steelyard.fleet.retries import Retries
from steelyard.fleet.together import Together
from steelyard.fleet.uptime import SERVES, State


@dataclass(frozen=True)
class Crash:
    """An engine dies, and comes back empty; or never, with an infinite ``back_after``."""

    at: float
    replica: int
    back_after: float


@dataclass(frozen=True)
class Slow:
    """Steps that an engine decides upon meanwhile take longer on the GPU."""

    at: float
    until: float
    replica: int
    factor: float  # on GPU time


@dataclass(frozen=True)
class Narrow:
    """A link gives less than its bandwidth."""

    at: float
    until: float
    link: Link
    factor: float  # on bandwidth


Fault = Crash | Slow | Narrow


@dataclass(frozen=True)
class Slowed:
    """A step's cost on a GPU that takes longer for everything."""

    cost: StepCost
    factor: float

    def decode_line(self, n: int, kv: int, longest: int) -> tuple[float, float, int]:
        a, b, kv_max = self.cost.decode_line(n, kv, longest)
        return a * self.factor, b * self.factor, kv_max

    def decode_host(self, n: int) -> tuple[float, float, float]:
        prepare, launch, tail = self.cost.decode_host(n)
        return prepare, launch, tail * self.factor

    def mixed(self, n: int, kv: int, longest: int, chunks: list[tuple[int, int]]) -> StepTime:
        time = self.cost.mixed(n, kv, longest, chunks)
        return time._replace(gpu=time.gpu * self.factor, tail=time.tail * self.factor)


class Faults:
    """Has faults happen when they are due."""

    def __init__(self, together: Together, presence: Presence, retries: Retries, faults: Sequence[Fault]) -> None:
        self._together, self._presence, self._retries = together, presence, retries
        self._faults = faults
        self.crashed = 0
        self._dies = [inf] * len(together.engines)  # when each crashes next
        self._costs = [engine.cost for engine in together.engines]
        self._slowed: list[dict[int, float]] = [{} for _ in together.engines]  # factors on each, by fault
        self._narrowed: dict[int, list[float]] = {}  # factors on each link, by its id

    def announce(self) -> None:
        """Put all of them on the clock."""
        for k, fault in enumerate(self._faults):
            if isinstance(fault, Crash):
                self._announce_crash(fault)
            elif isinstance(fault, Slow):
                self._announce_slow(fault, k)
            else:
                self._announce_narrow(fault)

    def undone(self, replica: int) -> list[Request]:
        """Of the requests that an engine has finished, those whose last step the next crash cuts short."""
        engine, dies = self._together.engines[replica], self._dies[replica]
        if not engine.finished or not engine.log.ends or engine.log.ends[-1] <= dies:
            return []
        return [r for r in engine.finished if r.status == FINISHED and engine.end_of(r) > dies]

    def _announce_crash(self, crash: Crash) -> None:
        self._dies[crash.replica] = min(self._dies[crash.replica], crash.at)
        self._together.at(crash.at, lambda now: self._crash(crash, now))

    def _announce_slow(self, slow: Slow, k: int) -> None:
        self._together.at(slow.at, lambda now: self._slow(slow.replica, k, slow.factor, now))
        if slow.until < inf:
            self._together.at(slow.until, lambda now: self._slow(slow.replica, k, 1.0, now))

    def _announce_narrow(self, narrow: Narrow) -> None:
        self._together.at(narrow.at, lambda now: self._narrow(narrow, True, now))
        if narrow.until < inf:
            self._together.at(narrow.until, lambda now: self._narrow(narrow, False, now))

    def _crash(self, crash: Crash, now: float) -> None:
        replica, uptime = crash.replica, self._presence.uptime
        self._together.run_to(replica, now)
        later = (each.at for each in self._faults if isinstance(each, Crash) and each.replica == replica)
        self._dies[replica] = min((at for at in later if at > now), default=inf)
        state = uptime.states[replica]
        if state not in SERVES:
            return
        self.crashed += 1
        lost = self._retries.lose_all(replica, now)
        if state is State.UP:
            self._presence.close(replica)
        back = state is State.UP and crash.back_after < inf
        uptime.set(replica, State.DOWN if back else State.OFF, now)
        if back:
            self._presence.expect(replica, now + crash.back_after)
        self._together.sleep(replica)
        self._retries.send_again(lost, now)

    def _slow(self, replica: int, fault: int, factor: float, now: float) -> None:
        engine = self._together.run_to(replica, now)
        factors = self._slowed[replica]
        factors[fault] = factor
        total = float(np.prod([factors[k] for k in sorted(factors)]))
        engine.cost = self._costs[replica] if total == 1.0 else Slowed(self._costs[replica], total)
        self._together.sleep(replica)

    def _narrow(self, narrow: Narrow, begins: bool, now: float) -> None:
        assert self._together.handover is not None
        factors = self._narrowed.setdefault(id(narrow.link), [])
        (factors.append if begins else factors.remove)(narrow.factor)
        self._together.handover.network.change(narrow.link, float(np.prod(sorted(factors))), now)
        self._together.await_transfer()
