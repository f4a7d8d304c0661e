"""Carries out the hybrid pool's moves in the controller's process: engines give up their GPUs and get them back.

What should be is the state of each replica in the core's pool. What is, engines and the trainer tell. Both are compared
again and again, so it does not matter at which moment a controller, an engine or the trainer was killed. The trainer
does its part of a move. It tells with the fact ``left`` that a replica's GPUs are free; no engine wakes before that.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from steelyard.balance.kinds import Event
from steelyard.balance.pool import (
    Drain,
    Drained,
    Failed,
    HybridPool,
    Leave,
    Member,
    MemberState,
    PoolFormed,
    RollBack,
    Serving,
    StepEnded,
    Tick,
    WakeAt,
)
from steelyard.balance.settings import CoreSettings
from steelyard.files.jsontext import json_row
from steelyard.live.control import ControlServer
from steelyard.live.engines.api import EngineError
from steelyard.live.keeper import Keeper
from steelyard.live.measure import StepMeasure
from steelyard.records import Ints

log = logging.getLogger("steelyard.pool")

_LOOK_SECONDS = 0.5  # between two looks at a replica whose state has not changed; chosen
_LONGEST_SLEEP = 60.0  # of the clock that tells of deadlines; chosen
LEFT = "left"
"""The fact that a replica's GPUs are not used for training any more, with its epoch."""


TrainWith = Callable[[Ints], tuple[tuple[int, float], ...]]
"""Seconds of training on samples of these lengths, by number of replicas; empty if nobody knows."""


@dataclass(frozen=True)
class LivePool:
    """The pool of a run: its replicas, and the engines of each hybrid one."""

    formed: Callable[[float], PoolFormed]
    engines: Mapping[int, tuple[int, ...]]
    train_with: TrainWith = lambda lengths: ()


class PoolKeeper:
    """Beside the keeper of engines. Create it before the server opens its store, and begin when that is open."""

    def __init__(self, server: ControlServer, keeper: Keeper, settings: CoreSettings, spec: LivePool) -> None:
        self._server, self._keeper, self._spec = server, keeper, spec
        self._steps = settings.rounds.steps
        self._measure = StepMeasure(settings.rounds)
        self._tokens = {tp: speed.decode[0][1] for tp, speed in settings.speeds}  # seconds of a token, alone
        self._news = {replica: asyncio.Event() for replica in spec.engines}
        self._deadline = asyncio.Event()  # has changed
        self._left: dict[int, int] = {}  # by replica: the epoch in which it has left training
        self._tasks: list[asyncio.Task[None]] = []
        for kind in (Drain, Leave, RollBack):
            server.on(kind, self._changed)
        server.on(WakeAt, lambda _: self._deadline.set())
        self._other_facts = server.facts
        server.facts = self.fact

    def begin(self) -> None:
        """Form the pool, or go on with it."""
        controller = self._server.controller
        self._measure.begin(controller)
        self._keeper.step_over = self.step_over
        left = json_row(controller.store.fact(LEFT) or "{}", "store")
        self._left = {int(replica): int(epoch) for replica, epoch in left.items()}
        if self._pool is None:
            self._server.tell(self._spec.formed(self._server.now()))
        else:
            self._hold()
        duties: list[Coroutine[Any, Any, None]] = [self._tend(replica) for replica in self._spec.engines]
        self._tasks = [asyncio.ensure_future(each) for each in (*duties, self._tick())]
        for task in self._tasks:
            task.add_done_callback(self._over)

    def close(self) -> None:
        """Stop."""
        for task in self._tasks:
            task.cancel()

    def fact(self, name: str, value: Any) -> None:
        """The trainer tells that a replica's GPUs are free. Other facts are the keeper's."""
        if name != LEFT:
            self._other_facts(name, value)
        else:
            self._left[int(value["replica"])] = int(value["epoch"])
            self._server.controller.store.keep(LEFT, json.dumps(self._left))
            self._news[int(value["replica"])].set()

    def step_over(self, at: float, version: int) -> Sequence[Event]:
        """What is measured of the step that made these weights. After the last step nothing is moved."""
        if self._pool is None or not 0 < version < self._steps:
            return ()
        replicas = self._server.controller.core.placement.rollouts.replicas.values()
        found = self._measure.step_over(at, version - 1, replicas)
        if found is None:
            return ()
        recent, fastest = found.recent, min((self._tokens[each.tp] for each in replicas), default=0.0)
        return (
            StepEnded(
                at,
                version - 1,
                found.train,
                recent.seconds,
                found.seconds,
                min(1.0, recent.wanted),
                recent.longest(fastest),
                self._spec.train_with(recent.measured(0).context),
            ),
        )

    # -- moves --------------------------------------------------------------------------------------------------

    @property
    def _pool(self) -> HybridPool | None:
        return self._server.controller.core.pool

    def _changed(self, command: Drain | Leave | RollBack) -> None:
        self._news[command.replica].set()

    def _hold(self) -> None:
        """Engines that should sleep are not brought up by the keeper meanwhile."""
        assert self._pool is not None
        for replica, numbers in self._spec.engines.items():
            for number in numbers:
                self._keeper.engines[number].lent = self._pool.members[replica].state is not MemberState.ROLLOUT

    async def _tend(self, replica: int) -> None:
        """Compare for ever what a replica's engines should do with what they do."""
        while True:
            self._news[replica].clear()
            if self._pool is not None:
                member = self._pool.members[replica]
                epoch, draining = member.epoch, member.state is MemberState.DRAINING
                try:
                    await self._make_good(member)
                except EngineError as problem:
                    log.warning("replica %d: %s", replica, problem)
                    if draining:
                        await self._tell(Failed(self._server.now(), replica, epoch, str(problem)))
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._news[replica].wait()

    async def _make_good(self, member: Member) -> None:
        replica, epoch, engines = member.replica, member.epoch, self._spec.engines[member.replica]
        match member.state:
            case MemberState.ROLLOUT:
                return
            case MemberState.LEAVING | MemberState.ROLLED_BACK:
                if self._left.get(replica, -1) < epoch:
                    return  # training has not left its GPUs yet
                await asyncio.gather(*(self._keeper.take_back(number) for number in engines))
                if all(self._keeper.is_up(each) or not self._keeper.engines[each].wanted for each in engines):
                    await self._tell(Serving(self._server.now(), replica, epoch))
            case state:
                await asyncio.gather(*(self._keeper.lend(number) for number in engines))
                if state is MemberState.DRAINING:
                    await self._tell(Drained(self._server.now(), replica, epoch))

    async def _tell(self, event: Event) -> None:
        self._server.tell(event)
        await self._server.decided()

    async def _tick(self) -> None:
        """Tell the pool whenever one of its deadlines has passed."""
        while True:
            self._deadline.clear()
            if self._pool is not None and self._pool.wake_at <= self._server.now():
                await self._tell(Tick(self._server.now()))
            until = _LOOK_SECONDS if self._pool is None else self._pool.wake_at - self._server.now()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(_LONGEST_SLEEP, max(0.01, until / self._server.speed))):
                    await self._deadline.wait()

    def _over(self, task: asyncio.Task[None]) -> None:
        """Without its pool a run would not be what was asked for."""
        if not task.cancelled() and task.exception() is not None and not self._server.failure.done():
            self._server.failure.set_exception(task.exception() or RuntimeError("the pool's keeper has ended"))
