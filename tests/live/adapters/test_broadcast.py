"""Operations on all engines: done everywhere or taken back, and refused while an engine is down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from steelyard.emulate.replica import EmulatedReplica
from steelyard.live.access import Access
from steelyard.live.adapters.broadcast import Broadcast, Operation
from steelyard.live.adapters.calls import Beside
from steelyard.live.adapters.workers import WorkerFleet
from steelyard.live.rules import GatewayRules
from support.adapter_stack import PlainEngine, engines, running, stack, until
from support.emulated import served

Test = Callable[[httpx.AsyncClient, list[PlainEngine], WorkerFleet], Awaitable[None]]


def behind(name: str, test: Test, count: int = 3, rules: GatewayRules | None = None) -> None:
    async def run() -> None:
        async with engines(count) as own, stack(name, [each.url for each in own], rules=rules) as (client, fleet):
            await test(client, own, fleet)

    asyncio.run(run())


def asked(own: list[PlainEngine], path: str) -> list[int]:
    return [each.asked(path) for each in own]


@pytest.mark.parametrize("name", ["skyrl", "prime-rl"])
def test_a_pause_that_fails_somewhere_is_taken_back(name: str) -> None:
    async def test(client: httpx.AsyncClient, own: list[PlainEngine], _: WorkerFleet) -> None:
        own[1].fails["/pause"] = 500
        answer = await client.post("/pause", params={"mode": "keep"})
        assert answer.status_code == 500
        assert own[1].url.removeprefix("http://") in answer.json()["error"]["message"]
        assert asked(own, "/pause") == asked(own, "/resume") == [1, 1, 1]
        own[1].fails.clear()
        assert (await client.post("/pause", params={"mode": "keep"})).json() == {"status": "paused"}
        assert asked(own, "/resume") == [1, 1, 1]

    behind(name, test)


def test_weights_are_not_updated_while_an_engine_is_down() -> None:
    async def test(client: httpx.AsyncClient, own: list[PlainEngine], fleet: WorkerFleet) -> None:
        fleet.set_up(2, False)
        answer = await client.post("/update_weights", json={"weight_dir": None})
        assert answer.status_code == 503 and "down" in answer.json()["error"]["message"]
        assert asked(own, "/update_weights") == [0, 0, 0]
        assert (await client.post("/resume")).status_code == 200  # who is up must not stay paused
        assert asked(own, "/resume") == [1, 1, 0]
        for engine in range(3):
            fleet.set_up(engine, False)
        assert (await client.post("/resume")).status_code == 503

    behind("prime-rl", test)


def test_engines_that_disagree_are_told_of_one_by_one() -> None:
    async def test(client: httpx.AsyncClient, own: list[PlainEngine], _: WorkerFleet) -> None:
        for each in own:
            each.fails["/load_lora_adapter"] = 404
        answer = await client.post("/load_lora_adapter", json={})
        assert answer.status_code == 404  # prime-rl tries again at 404
        own[0].fails["/load_lora_adapter"] = 500
        answer = await client.post("/load_lora_adapter", json={})
        assert answer.status_code == 502
        assert answer.json()["error"]["message"].count("told to fail") == 3

    behind("prime-rl", test)


def test_an_engine_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    async def run() -> None:
        async with engines(2) as own:
            fleet = WorkerFleet([each.url for each in own])
            broadcast = Broadcast(fleet, Access(), {"/pause": Operation(undo="/resume")}, patience=0.2)
            async with (
                running(Beside([broadcast], broadcast)) as url,
                httpx.AsyncClient(base_url=url, timeout=20) as client,
            ):
                own[1].held.clear()
                answer = await client.post("/pause")
                assert answer.status_code == 502 and "0.2 s" in answer.json()["error"]["message"]
                assert own[0].asked("/resume") == own[1].asked("/resume") == 1  # it may have paused after all
                own[1].held.set()

    asyncio.run(run())


def test_an_engine_that_is_gone_is_told_of() -> None:
    async def run() -> None:
        async with engines(1) as own, stack("skyrl", [own[0].url, "http://127.0.0.1:9"]) as (client, _):
            answer = await client.post("/update_weights", json={"update_info": {}})
            assert answer.status_code == 502 and "127.0.0.1:9: not reached" in answer.json()["error"]["message"]

    asyncio.run(run())


def test_each_engine_gets_ranks_of_its_own() -> None:
    async def skyrl(client: httpx.AsyncClient, own: list[PlainEngine], _: WorkerFleet) -> None:
        assert (await client.get("/get_world_size")).json() == {"world_size": 6}
        told = {"master_address": "a", "master_port": 1, "rank_offset": 1, "world_size": 7}
        assert (await client.post("/init_weight_transfer_engine", json={"init_info": told})).status_code == 200
        infos = [orjson.loads(each.bodies[-1])["init_info"] for each in own]
        assert infos == [{**told, "rank_offset": offset} for offset in (1, 3, 5)]
        bad: list[Any] = [{}, {"init_info": {}}, {"init_info": {"rank_offset": "1"}}]
        for body in bad:
            assert (await client.post("/init_weight_transfer_engine", json=body)).status_code == 400

    async def prime_rl(client: httpx.AsyncClient, own: list[PlainEngine], _: WorkerFleet) -> None:
        told = {"host": "a", "port": 1, "rank_offset": 0, "inference_world_size": 12, "timeout": 9}
        assert (await client.post("/init_broadcaster", json=told)).status_code == 200
        bodies = [orjson.loads(each.bodies[-1]) for each in own]
        assert bodies == [{**told, "rank_offset": offset} for offset in (0, 4, 8)]
        refused = await client.post("/init_broadcaster", json={**told, "inference_world_size": 7})
        assert refused.status_code == 400 and "do not divide" in refused.json()["error"]["message"]

    behind("skyrl", skyrl)
    behind("prime-rl", prime_rl)


def test_workers_are_only_called_for_weights() -> None:
    async def test(client: httpx.AsyncClient, own: list[PlainEngine], _: WorkerFleet) -> None:
        for body in ({"method": "load_model"}, {}, {"method": ["update_weights_nccl"]}):
            assert (await client.post("/collective_rpc", json=body)).status_code == 403
        assert asked(own, "/collective_rpc") == [0, 0, 0]

    behind("skyrl", test)


def test_only_operators_may(tmp_path: Path) -> None:
    tokens = {scope: f"{scope}-0123456789" for scope in ("client", "engine", "operator")}
    file = tmp_path / "tokens"
    file.write_text("".join(f"{scope} {token}\n" for scope, token in tokens.items()))

    async def test(client: httpx.AsyncClient, own: list[PlainEngine], _: WorkerFleet) -> None:
        async def status(path: str, token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            return (await client.post(path, json={"token_ids": [1]}, headers=headers)).status_code

        assert [await status("/pause", token) for token in ("", "wrong", *tokens.values())] == [401, 401, 403, 403, 200]
        assert [await status("/inference/v1/generate", token) for token in ("", *tokens.values())] == [
            401,
            200,
            403,
            200,
        ]
        assert asked(own, "/pause") == [1]

    behind("prime-rl", test, count=1, rules=GatewayRules(Access.read(file)))


def test_emulated_engines_keep_their_requests_while_paused() -> None:
    """As a weight update goes: turns that run when engines are paused go on with the new weights."""

    async def run() -> None:
        async with (
            served(2.0, replicas=2) as (clients, replicas),
            stack("skyrl", [str(each.base_url) for each in clients]) as (client, _),
        ):
            turns = [asyncio.ensure_future(turn(client, name)) for name in ("a", "b")]
            await until(lambda: all(replica.engine.running for replica in replicas))
            assert (await client.post("/pause", params={"mode": "keep", "clear_cache": "false"})).status_code == 200
            assert all(replica.paused for replica in replicas)
            body = {"update_info": {"weight_version": "5"}}
            assert (await client.post("/update_weights", json=body)).status_code == 200
            assert [replica.weights.version for replica in replicas] == ["5", "5"]
            assert not any(each.done() for each in turns)
            assert (await client.post("/resume")).status_code == 200
            assert not any(replica.paused for replica in replicas)
            for each in await asyncio.gather(*turns):
                assert each["choices"][0]["finish_reason"] == "length"
                assert each["usage"]["completion_tokens"] == 300
            await crash(client, replicas)

    asyncio.run(run())


async def turn(client: httpx.AsyncClient, session: str) -> dict[str, Any]:
    body = {"prompt": "a b c", "max_tokens": 300, "ignore_eos": True}
    answer = await client.post("/v1/completions", json=body, headers={"X-Session-ID": session})
    found: dict[str, Any] = answer.json()
    return found


async def crash(client: httpx.AsyncClient, replicas: list[EmulatedReplica]) -> None:
    """One engine dies: a pause is refused, and the other one generates."""
    replicas[0].crash()
    await asyncio.sleep(0.1)
    assert (await client.post("/pause")).status_code == 502
    assert not replicas[1].paused
    for place in range(3):
        assert (await turn(client, f"later-{place}"))["usage"]["completion_tokens"] == 300
    assert (await client.post("/pause")).status_code == 503
