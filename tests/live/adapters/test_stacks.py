"""Turns through a stack's address: sessions, engines that fail or register, streams, and the command that serves it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from steelyard.errors import UserError
from steelyard.live.access import Access
from steelyard.live.adapters.stacks import STACKS, serve_stack, stack_app
from steelyard.live.adapters.workers import WorkerFleet
from steelyard.live.rules import GatewayRules
from support.adapter_stack import PlainEngine, engines, stack, until

Test = Callable[[httpx.AsyncClient, list[PlainEngine], WorkerFleet], Awaitable[None]]
TOKENS = ("/inference/v1/generate", "token_ids", "X-Session-ID")
PATHS = {"slime": ("/generate", "input_ids", "X-SMG-Routing-Key"), "skyrl": TOKENS, "prime-rl": TOKENS}


def behind(name: str, test: Test, count: int = 2, router: str = "least-outstanding") -> None:
    async def run() -> None:
        async with engines(count) as own, stack(name, [each.url for each in own], router) as (client, fleet):
            await test(client, own, fleet)

    asyncio.run(run())


async def turn(client: httpx.AsyncClient, name: str, session: str | None, prompt: list[int]) -> httpx.Response:
    path, key, header = PATHS[name]
    return await client.post(path, json={key: prompt}, headers={header: session} if session is not None else {})


@pytest.mark.parametrize("name", STACKS)
def test_sessions_stay_and_samples_of_a_group_share_an_engine(name: str) -> None:
    async def sticky(client: httpx.AsyncClient, own: list[PlainEngine], _: WorkerFleet) -> None:
        own[0].held.clear()
        own[1].held.clear()
        first = [asyncio.ensure_future(turn(client, name, session, [1])) for session in ("a", "b")]
        await until(lambda: all(each.calls for each in own))
        own[0].held.set()
        own[1].held.set()
        await asyncio.gather(*first)
        for length in range(2, 6):
            await turn(client, name, "a", [1] * length)
        assert sorted(len(each.calls) for each in own) == [1, 5]

    async def prefix(client: httpx.AsyncClient, own: list[PlainEngine], _: WorkerFleet) -> None:
        for each in own:
            each.held.clear()
        prompts = {"x": list(range(64)), "y": list(range(100, 164))}
        waiting = []
        for sample in range(3):
            for group, prompt in prompts.items():
                waiting.append(asyncio.ensure_future(turn(client, name, f"{group} {sample}", prompt)))
                await until(lambda: sum(len(each.calls) for each in own) == len(waiting))
        for each in own:
            each.held.set()
        await asyncio.gather(*waiting)
        assert [len(each.calls) for each in own] == [3, 3]
        assert all(len(set(each.bodies)) == 1 for each in own)

    behind(name, sticky, router="sticky")
    behind(name, prefix, router="prefix-aware")


@pytest.mark.parametrize("name", STACKS)
def test_seats_are_freed_however_a_turn_ends(name: str) -> None:
    async def test(client: httpx.AsyncClient, own: list[PlainEngine], fleet: WorkerFleet) -> None:
        path, key, _ = PATHS[name]
        own[0].fails[path] = 500
        statuses = [(await turn(client, name, None, [1])).status_code for _ in range(6)]
        assert set(statuses) <= {200, 500}
        assert (await client.post(path, content=b"{")).status_code == 400
        assert (await client.post(path, content=b"[1]")).status_code == 400
        own[0].fails.clear()
        async with client.stream("POST", path, json={key: [1], "stream": True}) as answer:
            async for _ in answer.aiter_bytes():
                break
        await until(lambda: not any(fleet._elastic._counts.values()))

    behind(name, test)


def test_streams_come_as_they_are() -> None:
    async def test(client: httpx.AsyncClient, own: list[PlainEngine], _: WorkerFleet) -> None:
        answer = await client.post("/generate", json={"input_ids": [1], "stream": True})
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text == 'data: {"text": "se"}\n\ndata: [DONE]\n\n'

    behind("slime", test)


def test_a_turn_goes_elsewhere_if_its_engine_is_gone() -> None:
    async def run() -> None:
        async with engines(1) as own, stack("skyrl", ["http://127.0.0.1:9", own[0].url]) as (client, fleet):
            assert [(await turn(client, "skyrl", "a", [1])).status_code for _ in range(3)] == [200] * 3
            assert fleet.up == [False, True]
            fleet.set_up(1, False)
            assert (await turn(client, "skyrl", "a", [1])).status_code == 503

    asyncio.run(run())


def test_a_finished_session_is_routed_anew() -> None:
    async def test(client: httpx.AsyncClient, own: list[PlainEngine], fleet: WorkerFleet) -> None:
        assert (await turn(client, "skyrl", "task 1_0", [1])).status_code == 200
        assert fleet._elastic.forget_sessions() == 1
        await turn(client, "skyrl", "task 1_0", [1])
        finished = await client.post("/finish_session", params={"session_id": "task 1_0"})
        assert finished.status_code == 200
        assert fleet._elastic.forget_sessions() == 0
        assert (await client.post("/finish_session", params={"session_id": "unknown"})).status_code == 200

    behind("skyrl", test, router="sticky")


def test_slimes_engines_register_are_listed_and_leave() -> None:
    async def run() -> None:
        async with engines(2) as own, stack("slime", [], "round-robin") as (client, fleet):
            assert (await client.get("/health")).status_code == 503
            assert (await client.get("/workers")).json() == {"workers": [], "total": 0}
            assert (await turn(client, "slime", None, [1])).status_code == 503
            for each in (*own, own[0]):
                body = {"url": each.url, "worker_type": "regular"}
                assert (await client.post("/workers", json=body)).status_code == 200
            listed = (await client.get("/workers")).json()["workers"]
            assert [row["url"] for row in listed] == [each.url for each in own]
            for _ in range(4):
                await turn(client, "slime", None, [1])
            assert [each.asked("/generate") for each in own] == [2, 2]
            assert (await client.delete(f"/workers/{listed[0]['id']}")).status_code == 200
            assert (await client.delete(f"/workers/{listed[0]['id']}")).status_code == 404
            fleet.set_up(0, True)  # a probe finds it well, but it has left
            await turn(client, "slime", None, [1])
            assert [each.asked("/generate") for each in own] == [2, 3]
            assert (await client.post("/add_worker", params={"url": own[0].url})).status_code == 200
            assert (await client.get("/list_workers")).json() == {"urls": [each.url for each in own]}
            assert (await client.post("/remove_worker", params={"url": own[1].url})).status_code == 200
            await turn(client, "slime", None, [1])
            assert [each.asked("/generate") for each in own] == [3, 3]

    asyncio.run(run())


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"url": 3},
        {"url": "file:///etc/passwd"},
        {"url": "http://a:1/x"},
        {"url": "http://a:1", "worker_type": "prefill", "bootstrap_port": 9},
    ],
)
def test_registrations_are_checked(body: dict[str, Any]) -> None:
    async def test(client: httpx.AsyncClient, _: list[PlainEngine], fleet: WorkerFleet) -> None:
        assert (await client.post("/workers", json=body)).status_code == 400
        assert not fleet.workers

    behind("slime", test, count=0)


def test_clients_may_not_register_engines(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("client client-0123456789\nengine engine-0123456789\n")

    async def run() -> None:
        rules = GatewayRules(Access.read(file))
        async with engines(1) as own, stack("slime", [], rules=rules) as (client, _):
            for scope, status in (("client", 403), ("engine", 200)):
                headers = {"Authorization": f"Bearer {scope}-0123456789"}
                answer = await client.post("/workers", json={"url": own[0].url}, headers=headers)
                assert answer.status_code == status

    asyncio.run(run())


def test_mistakes_are_told() -> None:
    fleet = WorkerFleet()
    with pytest.raises(UserError, match="did you mean 'slime'"):
        stack_app("slim", fleet, GatewayRules())
    app = stack_app("slime", fleet, GatewayRules())
    with pytest.raises(UserError, match="--trusted-network"):
        asyncio.run(serve_stack(app, fleet, "0.0.0.0", 0, print, guarded=False))
    with pytest.raises(UserError, match="must be the URL of an engine"):
        WorkerFleet(["127.0.0.1"])


def test_the_command_serves_until_it_is_told_to_end() -> None:
    command = [sys.executable, "-m", "steelyard.live.adapters", "slime", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[1].rstrip(",")
            for _ in range(200):
                try:
                    assert httpx.get(f"{address}/workers").json() == {"workers": [], "total": 0}
                    break
                except httpx.ConnectError:
                    continue
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
