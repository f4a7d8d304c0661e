"""Faults of a fleet: crashes, slow GPUs, slow links.

A crash loses everything on an engine, including steps that have not ended. Its requests go back to the router and start
over from the prompt; only the prefix cache of their new replica can save work. Clients keep the tokens they have seen
and do not get them again. So the first token keeps its time, and the next new token comes after a long gap. While no
replica is up, requests wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from steelyard.cost.step import StepTime
from steelyard.engine import FINISHED, Request, StepCost
from steelyard.fleet.driver import FleetDriver
from steelyard.fleet.links import Link
from steelyard.fleet.presence import Presence
from steelyard.fleet.retries import Retries
from steelyard.fleet.uptime import SERVES, ReplicaState


@dataclass(frozen=True)
class Crash:
    """An engine crashes and restarts empty after ``back_after`` seconds; never if that is infinite."""

    at: float
    replica: int
    back_after: float


@dataclass(frozen=True)
class SlowGpu:
    """Steps scheduled between ``at`` and ``until`` take longer on the GPU."""

    at: float
    until: float
    replica: int
    factor: float  # on GPU time


@dataclass(frozen=True)
class SlowLink:
    """A link has less than its bandwidth between ``at`` and ``until``."""

    at: float
    until: float
    link: Link
    factor: float  # on bandwidth


Fault = Crash | SlowGpu | SlowLink


@dataclass(frozen=True)
class SlowedCost:
    """The cost of steps on a GPU that is slower by a factor."""

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
    """Schedules faults and applies them."""

    def __init__(self, driver: FleetDriver, presence: Presence, retries: Retries, faults: Sequence[Fault]) -> None:
        self._driver, self._presence, self._retries = driver, presence, retries
        self._faults = faults
        self.crashed = 0
        self._next_crash = [inf] * len(driver.engines)  # by replica: second of its next crash
        self._costs = [engine.cost for engine in driver.engines]
        self._gpu_factors: list[dict[int, float]] = [{} for _ in driver.engines]  # by replica: factor of each fault
        self._link_factors: dict[int, list[float]] = {}  # by id of a link: its factors

    def announce(self) -> None:
        """Schedule all faults."""
        for k, fault in enumerate(self._faults):
            if isinstance(fault, Crash):
                self._announce_crash(fault)
            elif isinstance(fault, SlowGpu):
                self._announce_slow_gpu(fault, k)
            else:
                self._announce_slow_link(fault)

    def undone(self, replica: int) -> list[Request]:
        """Finished requests whose last step ends after the engine's next crash."""
        engine, crash_at = self._driver.engines[replica], self._next_crash[replica]
        if not engine.finished or not engine.log.ends or engine.log.ends[-1] <= crash_at:
            return []
        return [r for r in engine.finished if r.status == FINISHED and engine.end_of(r) > crash_at]

    def _announce_crash(self, crash: Crash) -> None:
        self._next_crash[crash.replica] = min(self._next_crash[crash.replica], crash.at)
        self._driver.at(crash.at, lambda now: self._crash(crash, now))

    def _announce_slow_gpu(self, slow: SlowGpu, k: int) -> None:
        self._driver.at(slow.at, lambda now: self._slow_gpu(slow.replica, k, slow.factor, now))
        if slow.until < inf:
            self._driver.at(slow.until, lambda now: self._slow_gpu(slow.replica, k, 1.0, now))

    def _announce_slow_link(self, fault: SlowLink) -> None:
        self._driver.at(fault.at, lambda now: self._slow_link(fault, True, now))
        if fault.until < inf:
            self._driver.at(fault.until, lambda now: self._slow_link(fault, False, now))

    def _crash(self, crash: Crash, now: float) -> None:
        replica, uptime = crash.replica, self._presence.uptime
        self._driver.run_to(replica, now)
        later = (each.at for each in self._faults if isinstance(each, Crash) and each.replica == replica)
        self._next_crash[replica] = min((at for at in later if at > now), default=inf)
        state = uptime.states[replica]
        if state not in SERVES:
            return
        self.crashed += 1
        lost = self._retries.empty(replica, now)
        if state is ReplicaState.UP:
            self._presence.close(replica)
        back = state is ReplicaState.UP and crash.back_after < inf
        uptime.set(replica, ReplicaState.DOWN if back else ReplicaState.OFF, now)
        if back:
            self._presence.start_at(replica, now + crash.back_after)
        self._driver.sleep(replica)
        self._retries.send_again(lost, now)

    def _slow_gpu(self, replica: int, fault: int, factor: float, now: float) -> None:
        engine = self._driver.run_to(replica, now)
        factors = self._gpu_factors[replica]
        factors[fault] = factor
        total = float(np.prod([factors[k] for k in sorted(factors)]))
        engine.cost = self._costs[replica] if total == 1.0 else SlowedCost(self._costs[replica], total)
        self._driver.sleep(replica)

    def _slow_link(self, fault: SlowLink, begins: bool, now: float) -> None:
        assert self._driver.handover is not None
        factors = self._link_factors.setdefault(id(fault.link), [])
        (factors.append if begins else factors.remove)(fault.factor)
        self._driver.handover.network.change(fault.link, float(np.prod(sorted(factors))), now)
        self._driver.await_transfer()
