"""The HTTP interface of emulated engines, over real connections: OpenAI's client, operators, and what goes wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import openai
import pytest

from steelyard.emulate.replica import EmulatedReplica
from steelyard.emulate.serve import replicas_of
from steelyard.errors import UserError
from steelyard.scenario import scenario_from_dict
from support.emulated import SCENARIO, served


def in_server(test: Callable[[httpx.AsyncClient, EmulatedReplica], Awaitable[None]], speed: float = 50.0) -> None:
    async def run() -> None:
        async with served(speed) as (clients, replicas):
            await test(clients[0], replicas[0])

    asyncio.run(run())


async def ask(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post("/v1/completions", json={"prompt": "a b c", "ignore_eos": True, **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_openais_client_works_unchanged() -> None:
    async def test(client: httpx.AsyncClient, _: EmulatedReplica) -> None:
        theirs = openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="none")
        (model,) = (await theirs.models.list()).data
        whole = await theirs.completions.create(model=model.id, prompt="Once upon", max_tokens=7, n=2)
        assert whole.usage is not None and whole.usage.completion_tokens == 14
        assert [choice.finish_reason for choice in whole.choices] == ["length"] * 2
        chat = await theirs.chat.completions.create(
            model=model.id,
            messages=[{"role": "user", "content": "Hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        text, usage, reasons = "", None, []
        async for chunk in chat:
            usage = chunk.usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reasons.append(choice.finish_reason)
        assert usage is not None and usage.completion_tokens == 30 == len(text.split())  # as the scenario's outputs
        assert reasons[-1] == "stop"
        with pytest.raises(openai.NotFoundError, match="this engine serves"):
            await theirs.completions.create(model="other", prompt="x")
        await theirs.close()

    in_server(test)


def test_answers_take_the_engines_time() -> None:
    async def test(client: httpx.AsyncClient, replica: EmulatedReplica) -> None:
        begun = replica.clock.now()
        await ask(client, max_tokens=400)
        assert 400 * 0.004 < replica.clock.now() - begun < 400 * 0.012  # a decode step takes 5 ms on an H200

    in_server(test, speed=2.0)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"prompt": [1, -2]}, "prompt"),
        ({"prompt": []}, "0 tokens"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"n": 10**9}, "n: "),
        ({"prompt": [7] * 131_072}, "131072 tokens"),
    ],
)
def test_bad_requests_are_refused_with_the_reason(body: dict[str, Any], said: str) -> None:
    async def test(client: httpx.AsyncClient, replica: EmulatedReplica) -> None:
        answer = await client.post("/v1/completions", json={"prompt": "a", **body})
        assert answer.status_code == 400 and said in answer.json()["error"]["message"]
        assert not replica.choices

    in_server(test)


def test_malformed_json_is_refused() -> None:
    async def test(client: httpx.AsyncClient, _: EmulatedReplica) -> None:
        answer = await client.post("/v1/completions", content=b"{", headers={"content-type": "application/json"})
        assert answer.status_code == 400

    in_server(test)


def test_a_client_that_leaves_aborts_its_request() -> None:
    async def test(client: httpx.AsyncClient, replica: EmulatedReplica) -> None:
        body = {"prompt": "a b", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            async for _ in answer.aiter_lines():
                break
            assert len(replica.choices) == 1
        for _ in range(200):
            if not replica.choices:
                break
            await asyncio.sleep(0.01)
        assert not replica.choices and replica.engine.running == 0

    in_server(test)


def test_pauses_abort_wait_or_keep() -> None:
    async def test(client: httpx.AsyncClient, replica: EmulatedReplica) -> None:
        for mode in ("abort", "wait", "keep"):
            running = asyncio.ensure_future(ask(client, max_tokens=200))
            while not replica.engine.running:
                await asyncio.sleep(0.002)
            await client.post("/pause", params={"mode": mode})
            assert (await client.get("/is_paused")).json() == {"is_paused": True}
            assert running.done() == (mode != "keep") or mode != "keep"
            late = asyncio.ensure_future(ask(client, max_tokens=3))
            await asyncio.sleep(0.1)
            assert not late.done()
            await client.post("/resume")
            choice = (await running)["choices"][0]
            assert choice["finish_reason"] == ("abort" if mode == "abort" else "length")
            assert (len(choice["text"].split()) == 200) == (mode != "abort")
            assert (await late)["usage"]["completion_tokens"] == 3

    in_server(test)


def test_sleep_forgets_what_is_cached() -> None:
    async def test(client: httpx.AsyncClient, _: EmulatedReplica) -> None:
        async def cached() -> int:
            found = await ask(client, prompt=list(range(1, 400)), max_tokens=2)
            return int(found["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert [await cached(), await cached()] == [0, 384]
        assert (await client.post("/sleep", params={"level": 1})).status_code == 200
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": True}
        assert (await client.post("/wake_up")).status_code == 200
        assert [await cached(), await cached()] == [0, 384]
        await client.post("/reset_prefix_cache")
        assert await cached() == 0

    in_server(test)


def test_log_probs_tell_the_weights_and_stale_ones_are_told_by_them_alone() -> None:
    async def test(client: httpx.AsyncClient, replica: EmulatedReplica) -> None:
        async def update(version: str) -> list[float]:
            assert (await client.post("/start_weight_update")).status_code == 200
            assert (await client.post("/update_weights", json={"update_info": {}})).status_code == 200
            await client.post("/finish_weight_update", json={"weight_version": version})
            assert (await client.get("/weight_info")).json() == {"weight_version": version}
            return await probe()

        async def probe() -> list[float]:
            replica._numbers = iter(range(1000))  # the same words
            found = await ask(client, max_tokens=4, logprobs=1)
            values: list[float] = found["choices"][0]["logprobs"]["token_logprobs"]
            return values

        old, new = await probe(), await update("1")
        assert old != new == await probe()
        await client.post("/emulate/fault", json={"kind": "stale"})
        assert await update("2") == new
        await client.post("/emulate/fault", json={"kind": "none"})
        assert await update("3") != new

    in_server(test)


def test_a_hung_engine_answers_once_it_recovers_and_a_slow_one_late() -> None:
    async def test(client: httpx.AsyncClient, _: EmulatedReplica) -> None:
        await client.post("/emulate/fault", json={"kind": "hang"})
        waiting = asyncio.ensure_future(ask(client, max_tokens=2))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await client.post("/emulate/fault", json={"kind": "none"})
        await waiting
        begun = time.monotonic()
        await ask(client, max_tokens=100)
        usual = time.monotonic() - begun
        await client.post("/emulate/fault", json={"kind": "slow", "factor": 20})
        begun = time.monotonic()
        await ask(client, max_tokens=100)
        assert time.monotonic() - begun > 3 * usual

    in_server(test)


def test_a_crash_drops_connections_of_one_replica_alone() -> None:
    async def run() -> None:
        async with served(1.0, replicas=2) as (clients, replicas):
            waiting = asyncio.ensure_future(ask(clients[0], max_tokens=1000))
            while not replicas[0].engine.running:
                await asyncio.sleep(0.002)
            await clients[0].post("/emulate/fault", json={"kind": "crash"})
            with pytest.raises(httpx.HTTPError):
                await waiting
            with pytest.raises(httpx.ConnectError):
                await clients[0].get("/health")
            assert (await clients[1].get("/health")).status_code == 200

    asyncio.run(run())


def test_replicas_share_nothing() -> None:
    async def run() -> None:
        async with served(2.0, replicas=2) as (clients, replicas):
            body = {"prompt": list(range(100)), "max_tokens": 1000, "ignore_eos": True}
            waiting = [asyncio.ensure_future(client.post("/v1/completions", json=body)) for client in clients]
            while not all(replica.engine.running for replica in replicas):
                await asyncio.sleep(0.002)
            for replica in replicas:
                replica.abort(replica.choices)
            for answer in await asyncio.gather(*waiting):
                assert answer.json()["choices"][0]["finish_reason"] == "abort"

    asyncio.run(run())


def test_metrics_have_vllms_names() -> None:
    async def test(client: httpx.AsyncClient, _: EmulatedReplica) -> None:
        await ask(client, max_tokens=5)
        text = (await client.get("/metrics")).text
        own = '{engine="0",model_name="llama-3.1-8b"}'
        for name, value in {
            "num_requests_running": 0.0,
            "num_requests_waiting": 0.0,
            "kv_cache_usage_perc": 0.0,
            "prompt_tokens_total": 3.0,
            "generation_tokens_total": 5.0,
            "time_to_first_token_seconds_count": 1.0,
            "e2e_request_latency_seconds_count": 1.0,
        }.items():
            assert f"vllm:{name}{own} {value}" in text, name

    in_server(test)


@pytest.mark.parametrize(
    ("fleet", "said"),
    [
        ({"gpu": "h200", "pp": 2}, "dp or pp"),
        ({"pools": [{"role": "prefill", "gpu": "h200"}, {"role": "decode", "gpu": "h200"}]}, "role prefill"),
    ],
)
def test_what_cannot_be_emulated_is_refused(fleet: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        replicas_of(scenario_from_dict({**SCENARIO, "fleet": fleet}), 1.0)
