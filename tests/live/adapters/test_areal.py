"""AReaL's routing strategy: who gets the next group of sessions; and AReaL's own router, where it is installed."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import httpx
import orjson
import pytest
from starlette.types import Receive, Scope, Send

from steelyard.errors import UserError
from steelyard.live.adapters.areal import (
    LOADS,
    ListeningRouter,
    SteelyardStrategy,
    install,
    router_app,
    router_command,
)
from steelyard.live.adapters.calls import answer, body_of

KEY = "a-key-of-the-operator"
ADMIN = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(autouse=True)
def usual_loop() -> Iterator[None]:
    """Importing AReaL sets another event loop for the whole process."""
    policy = asyncio.get_event_loop_policy()
    yield
    asyncio.set_event_loop_policy(policy)


@dataclass
class Proxy:
    """As AReaL's ``WorkerInfo``."""

    worker_addr: str


PROXIES = [Proxy("http://a:1"), Proxy("http://b:1")]


def picked(strategy: SteelyardStrategy, proxies: list[Proxy] = PROXIES) -> str:
    found = strategy.pick(proxies)
    assert found in proxies
    assert found is not None
    return found.worker_addr


def test_groups_count_from_the_pick_to_their_end() -> None:
    strategy = SteelyardStrategy()
    assert strategy.pick([]) is None
    first, second = picked(strategy), picked(strategy)
    assert {first, second} == {"http://a:1", "http://b:1"}
    strategy.begun("g1", first)
    strategy.begun("g2", second)
    picked(strategy)
    assert strategy.loads() == {first: 2, second: 1}
    strategy.ended("g2")
    strategy.ended("g2")
    strategy.ended("unknown")
    assert strategy.loads() == {first: 2, second: 0}
    assert [picked(strategy), picked(strategy)] == [second, second]


def test_a_pick_that_came_to_nothing_is_forgotten_in_time() -> None:
    now = 0.0
    strategy = SteelyardStrategy(clock=lambda: now)
    for _ in range(4):
        picked(strategy, PROXIES[:1])
    strategy.begun("g", "http://a:1")
    now = 1000.0
    picked(strategy, PROXIES[:1])
    assert strategy.loads() == {"http://a:1": 2}


def test_a_proxy_that_comes_back_starts_without_load() -> None:
    strategy = SteelyardStrategy()
    for place in range(6):
        strategy.begun(f"g{place}", picked(strategy))
    strategy.gone("http://a:1")
    assert strategy.loads() == {"http://b:1": 3}
    strategy.ended("g0")
    assert [picked(strategy) for _ in range(3)] == ["http://a:1"] * 3
    assert strategy.loads() == {"http://a:1": 3, "http://b:1": 3}


def test_models_on_some_proxies_share_the_counts() -> None:
    strategy = SteelyardStrategy()
    for _ in range(3):
        picked(strategy, PROXIES[1:])
    assert [picked(strategy) for _ in range(3)] == ["http://a:1"] * 3


def test_routers_that_need_more_than_it_is_told_are_refused() -> None:
    for name in LOADS:
        assert Counter(picked(SteelyardStrategy(name)) for _ in range(2))
    with pytest.raises(UserError, match="routing strategy"):
        SteelyardStrategy("prefix-aware")


class FakeRouter:
    """The calls of AReaL's router that are listened to, and its registries."""

    def __init__(self, strategy: SteelyardStrategy) -> None:
        self._strategy = strategy
        self._keys: dict[str, str] = {}
        self.state: Any = SimpleNamespace(session_registry=self, worker_registry=self)

    async def lookup_by_key(self, key: str) -> str | None:
        return self._keys.get(key)

    async def register_session(self, key: str, session: str, worker: str) -> None:
        self._keys[key] = worker

    async def revoke_session(self, session: str) -> bool:
        return self._keys.pop(KEY, None) is not None

    async def get_by_id(self, name: str) -> Proxy | None:
        return PROXIES[int(name)] if name in ("0", "1") else None

    async def __call__(self, connection: Scope, receive: Receive, send: Send) -> None:
        told = orjson.loads(await body_of(receive) or b"{}")
        if connection["path"] == "/route" and KEY not in self._keys:
            self._keys[KEY] = picked(self._strategy)
        if told.get("fails"):
            await answer(send, {}, 500)
        else:
            await answer(send, {"worker_addr": self._keys.get(KEY)})


def test_every_group_is_chosen_for_and_its_end_is_heard() -> None:
    strategy = SteelyardStrategy()
    fake = FakeRouter(strategy)

    async def run() -> None:
        app = ListeningRouter(fake, fake.state, strategy, KEY)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://r") as client:
            await groups(client, strategy)
            begun = {"group_id": "g9", "worker_addr": "http://a:1", "sessions": [], "fails": True}
            await client.post("/register_session", json=begun)  # refused, so nothing has begun
            strategy.ended("g9")
            assert strategy.loads() == {"http://a:1": 1, "http://b:1": 1}
            assert (await client.post("/unregister", json={"worker_id": "1"})).status_code == 200
            assert strategy.loads() == {"http://a:1": 1}
            assert (await client.post("/route", content=b"{")).status_code == 400

    asyncio.run(run())


async def groups(client: httpx.AsyncClient, strategy: SteelyardStrategy) -> None:
    """Six groups begin, and four end."""
    start = {"api_key": KEY, "path": "/rl/start_session"}
    workers = []
    for place in range(6):
        worker = (await client.post("/route", json=start)).json()["worker_addr"]
        sessions = [{"session_api_key": f"k{place}", "session_id": f"s{place}"}]
        body = {"group_id": f"g{place}", "worker_addr": worker, "sessions": sessions}
        assert (await client.post("/register_session", json=body)).status_code == 200
        workers.append(worker)
    assert Counter(workers) == {"http://a:1": 3, "http://b:1": 3}
    for place in range(4):
        assert (await client.post("/remove_session", json={"group_id": f"g{place}"})).status_code == 200
    assert strategy.loads() == {"http://a:1": 1, "http://b:1": 1}


def test_the_command_of_the_router_is_replaced() -> None:
    seen = []

    class Controller:
        async def _async_fork_on_guard(
            self, guard_addr: str, role: str, worker_index: int, raw_cmd: list[str], health_path: str = "/health"
        ) -> tuple[str, int]:
            seen.append((role, raw_cmd, health_path))
            return "host", 1

    install(Controller)
    command = ["python", "-m", "areal.experimental.inference_service.router", "--admin-api-key", "k"]
    found = asyncio.run(
        Controller()._async_fork_on_guard(guard_addr="g", role="router", worker_index=0, raw_cmd=command)
    )
    assert found == ("host", 1)
    assert seen == [("router", ["python", "-m", "steelyard.live.adapters.areal", "--admin-api-key", "k"], "/health")]
    gateway = ["python", "-m", "areal.experimental.inference_service.gateway", "--router-addr", "r"]
    assert router_command(gateway) == gateway


# -- with AReaL itself ------------------------------------------------------------------------------------------------


def test_it_has_the_methods_of_areals_strategy() -> None:
    theirs = pytest.importorskip("areal.experimental.inference_service.router.strategies")
    wanted = inspect.signature(theirs.RoutingStrategy.pick)
    assert list(inspect.signature(SteelyardStrategy.pick).parameters) == list(wanted.parameters)
    state = pytest.importorskip("areal.experimental.inference_service.router.state")
    workers = [state.WorkerInfo("1", "http://a:1"), state.WorkerInfo("2", "http://b:1")]
    strategy = SteelyardStrategy()
    assert [strategy.pick(workers), strategy.pick(workers)] == workers


def test_areals_router_asks_it_for_every_group() -> None:
    router = pytest.importorskip("areal.experimental.inference_service.router.app")
    config = pytest.importorskip("areal.experimental.inference_service.router.config")
    streaming = pytest.importorskip("areal.experimental.inference_service.gateway.streaming")

    async def run() -> None:
        strategy = SteelyardStrategy()
        usual = router.get_strategy
        app = router_app(config.RouterConfig(admin_api_key=KEY), strategy)
        assert router.get_strategy is usual
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://r", headers=ADMIN) as client:
            names = [
                (await client.post("/register", json={"worker_addr": each.worker_addr})).json()["worker_id"]
                for each in PROXIES
            ]
            await groups(client, strategy)
            for place in range(4):  # as AReaL's gateway asks
                told = {"admin_api_key": KEY, "client": client}
                worker = await streaming.query_router("", KEY, "/rl/start_session", **told)
                sessions = [{"session_api_key": f"n{place}", "session_id": f"n{place}"}]
                await streaming.register_session_in_router(
                    "", sessions, worker, 2.0, KEY, group_id=f"n{place}", client=client
                )
                found = await streaming.query_router("", session_id=f"n{place}", **told)
                assert found == worker
                await streaming.revoke_session_in_router("", KEY, f"n{place}", client=client)
            assert strategy.loads() == {"http://a:1": 1, "http://b:1": 1}
            wrong = {"Authorization": "Bearer another-key"}
            assert (await client.post("/route", json={"api_key": KEY}, headers=wrong)).status_code == 403
            await client.post("/unregister", json={"worker_id": names[0]})
            assert strategy.loads() == {"http://b:1": 1}
            assert (await client.get("/health")).json()["workers"] == 1

    asyncio.run(run())


def test_the_first_choice_for_the_admin_key_is_kept() -> None:
    """As the gateway of human feedback needs it: starting sessions changes nothing for its own chat."""
    pytest.importorskip("areal.experimental.inference_service.router.app")
    config = pytest.importorskip("areal.experimental.inference_service.router.config")

    async def run() -> None:
        app = router_app(config.RouterConfig(admin_api_key=KEY), SteelyardStrategy("round-robin"))
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://r", headers=ADMIN) as client:
            for each in PROXIES:
                await client.post("/register", json={"worker_addr": each.worker_addr})

            async def route(path: str) -> str:
                found = await client.post("/route", json={"api_key": KEY, "path": path})
                return str(found.json()["worker_addr"])

            kept = await route("/chat/completions")
            started = {await route("/rl/start_session") for _ in range(4)}
            assert len(started) == 2
            assert {await route("/chat/completions") for _ in range(3)} == {kept}

    asyncio.run(run())


def test_areals_controller_can_be_told() -> None:
    theirs = pytest.importorskip("areal.experimental.inference_service.controller.controller")
    found = inspect.signature(theirs.RolloutControllerV2._async_fork_on_guard)
    assert list(found.parameters) == ["self", "guard_addr", "role", "worker_index", "raw_cmd", "health_path"]
    source = inspect.getsource(theirs.RolloutControllerV2)
    assert '"areal.experimental.inference_service.router"' in source
