"""Keeps engines as they should be: up, and with the newest weights. Both are targets, compared with what engines say.

What should be is in the store and in the core. What is, engines are asked again and again. So it does not matter at
which moment a controller or an engine was killed: the difference is seen, and made good.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from steelyard.balance.events import ReplicaDown, ReplicaUp, WeightsPublished
from steelyard.files.jsontext import json_row
from steelyard.live.control import ControlServer
from steelyard.live.engines.api import EngineApi, EngineError, WeightUpdate
from steelyard.live.wire import Message

log = logging.getLogger("steelyard.keeper")

_LOOK_SECONDS = 0.2  # between two looks at an engine that is up or down; chosen
_MISSES = 5  # looks in a row without an answer until an engine counts as down; chosen


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
    drained: bool = False  # an operator has taken it out
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while its weights change
    task: asyncio.Task[None] | None = None
    follow: Callable[[EngineApi], EngineApi] = lambda api: api  # its client now: another one if it has moved


Update = Callable[[KeptEngine, WeightUpdate], Awaitable[str]]
"""Gives an engine other weights. Returns why it must not be used with them; empty if it may."""


class Keeper:
    """Engines of a run, by number. Runs in the controller's process."""

    def __init__(self, server: ControlServer, update: Update) -> None:
        self.engines: dict[int, KeptEngine] = {}
        self._server, self._update = server, update
        self._target = WeightUpdate("0", "")
        self._syncing: asyncio.Task[None] | None = None
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

    def remove(self, number: int) -> None:
        """An engine is not wanted any more. Its turns go elsewhere."""
        engine = self.engines.pop(number)
        if engine.task is not None:
            engine.task.cancel()
        self._take_down(engine)

    def drain(self, number: int, drained: bool) -> None:
        """Take an engine out, whose turns go elsewhere, or back. It stays so for the next controller."""
        engine = self.engines[number]
        engine.drained = drained
        numbers = [each.number for each in self.engines.values() if each.drained]
        self._server.controller.store.keep("drained", json.dumps({"engines": numbers}))
        if drained:
            self._take_down(engine)

    def fact(self, name: str, value: Any) -> None:
        """A trainer tells that there are new weights."""
        if name == "weights" and int(value["version"]) > int(self._target.version):
            self._server.controller.store.keep("weights", json.dumps(value))
            self._target = _update_of(value)
            self._sync()

    def rows(self) -> Message:
        """Engines as the gateway knows them: address, epoch, version of weights. Also those that are about to be up,
        since turns may be placed there before the next notice."""
        rollouts = self._server.controller.core.placement.rollouts
        found: Message = {}
        for number, engine in self.engines.items():
            replica = rollouts.replicas.get(number)
            if replica is not None:
                found[str(number)] = _row(engine, replica.epoch)
            elif engine.epoch >= rollouts.next_epoch(number):
                found[str(number)] = _row(engine, engine.epoch)
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

    async def _tend(self, engine: KeptEngine) -> None:
        """Look at an engine for ever. It is brought up when it answers, and counts as down when it does not."""
        while True:
            healthy = await engine.api.health()
            engine.misses = 0 if healthy else engine.misses + 1
            if not healthy:
                await self._follow(engine)
            if engine.misses == _MISSES:
                engine.version = -1  # it may come back as another process
                self._take_down(engine)
            if self.is_up(engine.number) and (engine.drained or (healthy and await self._has_changed(engine))):
                self._take_down(engine)
            elif healthy and not self.is_up(engine.number) and not (engine.quarantined or engine.drained):
                engine.version = -1
                await self._bring_up(engine)
            await asyncio.sleep(_LOOK_SECONDS)

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
            if not await self._bring_to_target(engine):
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
        try:
            if target.version == "0" or await engine.api.weight_version() == target.version:
                engine.version = int(target.version)
                return True
            engine.quarantined = await self._update(engine, target)
        except EngineError as problem:
            log.warning("engine %d: %s", engine.number, problem)
            return False
        if engine.quarantined:
            log.error("engine %d is not used: %s", engine.number, engine.quarantined)
            return False
        engine.version = int(target.version)
        return True

    def _take_down(self, engine: KeptEngine) -> None:
        replica = self._server.controller.core.placement.rollouts.replicas.get(engine.number)
        if replica is not None:
            self._server.tell(ReplicaDown(self._server.now(), engine.number, replica.epoch))

    # -- weights ------------------------------------------------------------------------------------------------

    def _sync(self) -> None:
        if self._syncing is None or self._syncing.done():
            self._syncing = asyncio.ensure_future(self._publish())
            self._syncing.add_done_callback(_raise_errors)

    async def _publish(self) -> None:
        """Bring engines to the newest weights, then report that they have them. At least one engine must."""
        while int(self._target.version) > self._server.controller.core.published:
            target = self._target
            await asyncio.gather(*(self._sync_one(engine) for engine in list(self.engines.values())))
            while not any(self.is_up(number) for number in self.engines):
                await asyncio.sleep(_LOOK_SECONDS)
            version = int(target.version)
            self._server.tell(WeightsPublished(self._server.now(), version))
            await self._server.decided()
            self._server.notify({"published": version})

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


def _row(engine: KeptEngine, epoch: int) -> Message:
    return {"url": engine.api.url, "epoch": epoch, "version": max(engine.version, 0), "gpus": engine.tp}


def _update_of(value: Message) -> WeightUpdate:
    return WeightUpdate(str(value["version"]), str(value["path"]))


def _raise_errors(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.result()
