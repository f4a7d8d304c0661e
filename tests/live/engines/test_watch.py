"""Watching engines: emulated ones that slow down, hang and crash, and one whose process ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx

from steelyard.emulate.replica import EmulatedReplica
from steelyard.live.engines.api import EngineApi
from steelyard.live.engines.condition import Condition, Down, Quarantined, Slow, Up, WatchRules
from steelyard.live.engines.connect import connect
from steelyard.live.engines.http import CallLimits
from steelyard.live.engines.watch import EngineWatch
from support.emulated import served
from support.fake_engine import always, faked


@dataclass
class Ended:
    """A host whose process ends when it is told."""

    url: str
    ended: str = ""

    async def stop(self) -> None:
        pass


@dataclass
class Fleet:
    """Emulated engines with requests that never end, and a watch for each."""

    clients: list[httpx.AsyncClient]
    replicas: list[EmulatedReplica]
    watches: list[EngineWatch]

    async def until(self, engine: int, kind: type[Condition]) -> Condition:
        """Look at all engines until one has a condition."""
        for _ in range(400):
            await asyncio.gather(*(watch.look() for watch in self.watches))
            found = self.watches[engine].condition
            if isinstance(found, kind):
                return found
            await asyncio.sleep(0.03)
        raise AssertionError(f"still {found}")

    async def fault(self, engine: int, kind: str, factor: float = 1.0) -> None:
        await self.clients[engine].post("/emulate/fault", json={"kind": kind, "factor": factor})


def watched(test: Callable[[Fleet], Awaitable[None]], rules: WatchRules) -> None:
    async def run() -> None:
        async with served(1.0, replicas=3) as (clients, replicas):
            watches: list[EngineWatch] = []
            watches += [
                EngineWatch(connect("emulated", str(each.base_url), limits=CallLimits(look=2.0)), None, watches, rules)
                for each in clients
            ]
            body = {"prompt": "a", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
            running = [
                asyncio.ensure_future(client.post("/v1/completions", json=body, timeout=60)) for client in clients
            ]
            while not all(replica.engine.running for replica in replicas):
                await asyncio.sleep(0.005)
            try:
                await test(Fleet(clients, replicas, watches))
            finally:
                for each in running:
                    each.cancel()
                for watch in watches:
                    await watch.api.close()
                await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(run())


def test_a_slow_engine_is_found_among_its_peers_and_recovers() -> None:
    async def test(fleet: Fleet) -> None:
        await fleet.fault(1, "slow", 20.0)
        found = await fleet.until(1, Slow)
        assert isinstance(found, Slow) and found.factor > 3
        assert [watch.condition for watch in (fleet.watches[0], fleet.watches[2])] == [Up(), Up()]
        await fleet.fault(1, "none")
        await fleet.until(1, Up)

    watched(test, WatchRules())


def test_a_hung_engine_is_infinitely_slow() -> None:
    async def test(fleet: Fleet) -> None:
        await fleet.until(0, Up)
        await fleet.fault(0, "hang")
        assert await fleet.until(0, Slow) == Slow(float("inf"))  # it still says that it is healthy

    watched(test, WatchRules(stall_seconds=0.5))


def test_a_pause_on_purpose_is_not_slow() -> None:
    async def test(fleet: Fleet) -> None:
        await fleet.until(0, Up)
        fleet.watches[0].paused = True
        await fleet.watches[0].api.pause("keep")
        for _ in range(20):
            await asyncio.gather(*(watch.look() for watch in fleet.watches))
            assert fleet.watches[0].condition == Up()
            await asyncio.sleep(0.03)

    watched(test, WatchRules(stall_seconds=0.2))


def test_a_crash_is_down_after_three_looks() -> None:
    async def test(fleet: Fleet) -> None:
        fleet.replicas[2].crash()
        await asyncio.sleep(0.1)
        found = [await fleet.watches[2].look() for _ in range(3)]
        assert found == [Up(), Up(), Down("3 looks in a row failed")]
        assert fleet.watches[2].load is None and await fleet.watches[0].look() == Up()

    watched(test, WatchRules())


def test_changes_are_told_once() -> None:
    async def run() -> None:
        async with faked("vllm") as (url, engine):
            api: EngineApi = connect("vllm", url)
            host = Ended(url)
            watch = EngineWatch(api, host)
            changes = watch.changes(0.001)
            assert await anext(changes) == Up()
            assert watch.load is not None and watch.load.running == 3
            waiting = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            watch.quarantine("old weights")
            assert await waiting == Quarantined("old weights")
            watch.release()
            assert await anext(changes) == Up()
            engine.instead["/health"] = always(503, "")
            assert await anext(changes) == Down("3 looks in a row failed")
            del engine.instead["/health"]
            assert await anext(changes) == Up()
            engine.instead["/metrics"] = always(500, "")  # health alone counts
            waiting = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0.1)
            assert not waiting.done() and watch.load is None
            host.ended = "ended with exit code 1"
            assert await waiting == Down("ended with exit code 1")
            await changes.aclose()
            await api.close()

    asyncio.run(run())


def test_engines_that_tell_no_load_are_up() -> None:
    async def run() -> None:
        async with faked("generic") as (url, engine):
            engine.missing.add("/metrics")
            watch = EngineWatch(connect("generic", url))
            assert [await watch.look() for _ in range(3)] == [Up()] * 3
            await watch.api.close()

    asyncio.run(run())
