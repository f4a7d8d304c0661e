"""Keeps engines as they should be: up, and with the newest weights. Both are targets, compared with what engines say.

What should be is in the store and in the core. What is, engines are asked again and again. So it does not matter at
which moment a controller or an engine was killed: the difference is seen, and made good.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from steelyard.balance.events import ReplicaDown, ReplicaUp, WeightsPublished
from steelyard.balance.kinds import Event
from steelyard.files.jsontext import json_row
from steelyard.live.control import ControlServer
from steelyard.live.engines.api import EngineApi, EngineError, WeightUpdate
from steelyard.live.engines.condition import WatchRules
from steelyard.live.hanging import HangWatch
from steelyard.live.wire import Message

log = logging.getLogger("steelyard.keeper")

_LOOK_SECONDS = 0.2  # between two looks at an engine that is up or down; chosen
_SLEEP_LEVEL = 1  # keeps weights in the host's memory, so that an engine can say which it has; chosen
_MISSES = 5  # looks in a row without an answer until an engine counts as down; chosen
_QUARANTINE_SECONDS = 30.0  # until an engine with wrong weights is given them again; chosen


@dataclass(eq=False)
class KeptEngine:
    """An engine that the run wants: where it is, and what it can hold."""

    number: int
    tp: int
    seats: int
    tokens: int
    api: EngineApi
    version: int = -1  # of its weights; -1: not known
    epoch: int = -1  # that it was last brought up with
    misses: int = 0
    quarantined: str = ""  # why it must not be used
    retried: float = 0.0  # when it is given its weights again, if it is quarantined
    hung: bool = False  # it made no tokens, and has made none since
    drained: bool = False  # an operator has taken it out
    since: float = 0.0  # second of the run before which it is not used: its GPUs are not free, or it starts faster here
    lent: bool = False  # its GPUs are lent to training, and it sleeps
    asleep: bool = False  # it was put to sleep by this controller
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while its weights change
    task: asyncio.Task[None] | None = None
    follow: Callable[[EngineApi], EngineApi] = lambda api: api  # its client now: another one if it has moved

    @property
    def wanted(self) -> bool:
        """Whether it should be up."""
        return not (self.quarantined or self.drained or self.lent)


Update = Callable[[KeptEngine, WeightUpdate], Awaitable[str]]
"""Gives an engine other weights. Returns why it must not be used with them; empty if it may."""


class Keeper:
    """Engines of a run, by number. Runs in the controller's process.

    ``step_over`` says what is reported together with weights that engines have from now on.
    """

    def __init__(self, server: ControlServer, update: Update, rules: WatchRules | None = None) -> None:
        self.engines: dict[int, KeptEngine] = {}
        self._server, self._update = server, update
        self._hanging = HangWatch(rules or WatchRules())
        self._target = WeightUpdate("0", "")
        self._syncing: asyncio.Task[None] | None = None
        self.before_publishing: Callable[[int], Awaitable[None]] = _nothing
        self.after_publishing: Callable[[int], None] = lambda version: None
        self.step_over: Callable[[float, int], Sequence[Event]] = lambda at, version: ()
        server.facts = self.fact

    # -- what is wanted -----------------------------------------------------------------------------------------

    def begin(self, engines: Sequence[KeptEngine]) -> None:
        """Take care of engines, and of the newest weights that a trainer has told of."""
        known = self._server.controller.store.fact("weights")
        if known is not None:
            self._target = _update_of(json_row(known, "store"))
        drained = json_row(self._server.controller.store.fact("drained") or "{}", "store").get("engines", ())
        for engine in engines:
            engine.drained = engine.number in drained
            self.add(engine)
        self._sync()

    def add(self, engine: KeptEngine) -> None:
        """Take care of one more engine."""
        self.engines[engine.number] = engine
        engine.task = asyncio.ensure_future(self._tend(engine))
        engine.task.add_done_callback(self._fail)

    async def remove(self, number: int) -> None:
        """An engine is not wanted any more. Its turns go on elsewhere."""
        engine = self.engines.pop(number)
        if engine.task is not None:
            engine.task.cancel()
        await self._break_off(engine)
        self._take_down(engine)

    def drain(self, number: int, drained: bool) -> None:
        """Take an engine out, whose turns go elsewhere, or back. It stays so for the next controller."""
        engine = self.engines[number]
        engine.drained = drained
        numbers = [each.number for each in self.engines.values() if each.drained]
        self._server.controller.store.keep("drained", json.dumps({"engines": numbers}))
        if drained:
            self._take_down(engine)

    async def lend(self, number: int) -> None:
        """Free an engine's GPUs: its turns go elsewhere, and it sleeps. One that was started anew sleeps again."""
        engine = self.engines[number]
        engine.lent = True
        async with engine.busy:
            if self.is_up(number):
                await self._break_off(engine)
                self._take_down(engine)
                await self._server.decided()
            if not engine.asleep or await engine.api.ready():
                await engine.api.sleep(_SLEEP_LEVEL)
                engine.asleep = True

    async def take_back(self, number: int) -> None:
        """Wake an engine that was lent, and bring it up with the newest weights."""
        engine = self.engines[number]
        async with engine.busy:
            if engine.lent and not await engine.api.ready():
                await engine.api.wake()
            engine.lent = engine.asleep = False
        if engine.wanted and not self.is_up(number):
            engine.version = -1
            await self._bring_up(engine)

    def fact(self, name: str, value: Any) -> None:
        """A trainer tells that there are new weights."""
        if name == "weights" and int(value["version"]) > int(self._target.version):
            self._server.controller.store.keep("weights", json.dumps(value))
            self._target = _update_of(value)
            for engine in self.engines.values():
                engine.retried = 0.0
            self._sync()

    def rows(self) -> Message:
        """Engines as the gateway knows them: address, epoch, version of weights. Also those that are about to be up,
        since turns may be placed there before the next notice."""
        core = self._server.controller.core
        rollouts = core.placement.rollouts
        found: Message = {}
        for number, engine in self.engines.items():
            replica = rollouts.replicas.get(number)
            if replica is not None:
                found[str(number)] = _row(engine, replica.epoch, core.published)
            elif engine.epoch >= rollouts.next_epoch(number):
                found[str(number)] = _row(engine, engine.epoch, core.published)
        return found

    async def published(self, version: int) -> None:
        """Wait until engines have weights of a version."""
        while self._server.controller.core.published < version:
            await asyncio.sleep(_LOOK_SECONDS)

    async def close(self) -> None:
        """Stop looking after engines."""
        tasks = [each.task for each in self.engines.values() if each.task is not None]
        for task in [*tasks, *([self._syncing] if self._syncing else [])]:
            task.cancel()
        for each in self.engines.values():
            await each.api.close()

    # -- engines ------------------------------------------------------------------------------------------------

    def is_up(self, number: int) -> bool:
        """Whether the core places turns on an engine."""
        return number in self._server.controller.core.placement.rollouts.replicas

    def is_served(self, number: int) -> bool:
        """Whether there is nothing to wait for: it is up, or it is out on purpose."""
        engine = self.engines[number]
        return self.is_up(number) or not engine.wanted

    async def _tend(self, engine: KeptEngine) -> None:
        """Look at an engine for ever. It is brought up when it answers, and counts as down when it does not."""
        while True:
            healthy = await engine.api.health()
            engine.misses = 0 if healthy else engine.misses + 1
            if not healthy:
                await self._follow(engine)
            if engine.misses == _MISSES:  # it may come back as another process
                engine.version, engine.quarantined, engine.hung = -1, "", False
                self._take_down(engine)
            if healthy and self.is_up(engine.number):
                await self._look_after(engine)
            elif healthy and await self._may_be_used(engine):
                engine.version = -1
                await self._bring_up(engine)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _look_after(self, engine: KeptEngine) -> None:
        """An engine that turns run on is taken down if it is not what it should be."""
        if engine.version < 0:  # it was brought up by a controller before this one, which may have left it paused
            async with engine.busy:
                good = await self._bring_to_target(engine)
            self._server.notify({"engines": self.rows()}, "gateway")
            if not good:
                self._take_down(engine)
        elif engine.drained or await self._has_changed(engine):
            self._take_down(engine)
        elif await self._hanging.hangs(engine.number, engine.api, engine.busy.locked):
            log.error("engine %d hangs: it has requests and makes no tokens", engine.number)
            engine.hung = True
            self._take_down(engine)

    async def _may_be_used(self, engine: KeptEngine) -> bool:
        """Whether an engine that is down may be brought up. One that hung must have made a token."""
        if engine.drained or engine.lent or self._server.now() < engine.since:
            return False
        if engine.quarantined and time.monotonic() < engine.retried:
            return False
        if engine.hung and await self._hanging.generates(engine.api):
            self._hanging.forget(engine.number)
            engine.hung = False
        return not engine.hung

    async def _follow(self, engine: KeptEngine) -> None:
        """An engine does not answer: it may have been started at another address."""
        found = engine.follow(engine.api)
        if found is not engine.api:
            self._take_down(engine)
            before, engine.api, engine.version = engine.api, found, -1
            await before.close()

    async def _has_changed(self, engine: KeptEngine) -> bool:
        """Whether an engine says that it has other weights than it was given: it was started anew, unnoticed."""
        if engine.busy.locked() or engine.version < 0:
            return False
        try:
            told = await engine.api.weight_version()
        except EngineError:
            return False  # the next look tells
        return told is not None and not engine.busy.locked() and told != str(engine.version)

    async def _bring_up(self, engine: KeptEngine) -> None:
        async with engine.busy:
            if engine.drained or engine.lent or self.is_up(engine.number) or not await self._bring_to_target(engine):
                return
            rollouts = self._server.controller.core.placement.rollouts
            engine.epoch = rollouts.next_epoch(engine.number)
            self._server.notify({"engines": self.rows()}, "gateway")
            up = ReplicaUp(self._server.now(), engine.number, engine.tp, engine.seats, engine.tokens, engine.epoch)
            self._server.tell(up)
            await self._server.decided()

    async def _bring_to_target(self, engine: KeptEngine) -> bool:
        """Give an engine the newest weights. Returns whether it may be used."""
        target = self._target
        if engine.version == int(target.version):
            return True
        self._server.controller.store.check()  # a controller that was replaced must not touch engines
        try:
            engine.quarantined = "" if target.version == "0" else await self._update(engine, target)
        except EngineError as problem:
            log.warning("engine %d: %s", engine.number, problem)
            return False
        if engine.quarantined:
            log.error("engine %d is not used: %s", engine.number, engine.quarantined)
            engine.retried = time.monotonic() + _QUARANTINE_SECONDS
            return False
        engine.version = int(target.version)
        return True

    async def _break_off(self, engine: KeptEngine) -> None:
        """Have an engine answer its requests with the tokens so far, so that other engines go on from there."""
        with suppress(EngineError):
            await engine.api.abort()

    def _take_down(self, engine: KeptEngine) -> None:
        replica = self._server.controller.core.placement.rollouts.replicas.get(engine.number)
        if replica is not None:
            self._server.tell(ReplicaDown(self._server.now(), engine.number, replica.epoch))

    def _fail(self, task: asyncio.Task[None]) -> None:
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            self._server.fail(problem)

    # -- weights ------------------------------------------------------------------------------------------------

    def _sync(self) -> None:
        if self._syncing is None or self._syncing.done():
            self._syncing = asyncio.ensure_future(self._publish())
            self._syncing.add_done_callback(self._fail)

    async def _publish(self) -> None:
        """Bring engines to the newest weights, then report that they have them. At least one engine must."""
        while int(self._target.version) > self._server.controller.core.published:
            target = self._target
            await asyncio.gather(*(self._sync_one(engine) for engine in list(self.engines.values())))
            while not any(self.is_up(number) for number in self.engines):
                await asyncio.sleep(_LOOK_SECONDS)
            version = int(target.version)
            await self.before_publishing(version)
            at = self._server.now()
            self._server.tell(*self.step_over(at, version), WeightsPublished(at, version))
            await self._server.decided()
            self._server.notify({"published": version})
            self.after_publishing(version)

    async def _sync_one(self, engine: KeptEngine) -> None:
        async with engine.busy:
            if self._target.version == "0":  # the run begins: wait for all that are wanted
                while not await engine.api.health():
                    await asyncio.sleep(_LOOK_SECONDS)
            elif self.is_up(engine.number) and not await self._bring_to_target(engine):
                self._take_down(engine)
        while self._target.version == "0" and not (self.is_up(engine.number) or engine.drained):
            await asyncio.sleep(_LOOK_SECONDS)
        self._server.notify({"engines": self.rows()}, "gateway")


async def _nothing(_: int) -> None:
    pass


def _row(engine: KeptEngine, epoch: int, published: int) -> Message:
    """An engine for the gateway. One that this controller has not asked yet has what all had last, as far as known."""
    version = max(published, 0) if engine.version < 0 else engine.version
    return {"url": engine.api.url, "epoch": epoch, "version": version, "gpus": engine.tp}


def _update_of(value: Message) -> WeightUpdate:
    return WeightUpdate(str(value["version"]), str(value["path"]))
