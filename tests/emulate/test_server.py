"""The HTTP interface of emulated engines, over real connections: OpenAI's client, operators, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
import re
import time
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import openai
import pytest

from steelyard.emulate.openai import logprob_of
from steelyard.emulate.replica import EmulatedReplica, Mailbox
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
        ({"prompt_logprobs": -2}, "prompt_logprobs"),
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


def scores(version: str, prompt: list[int]) -> list[float | None]:
    logprob = logprob_of(version)
    return [None, *(logprob(place, token) for place, token in enumerate(prompt) if place)]


def test_prompts_are_scored_with_the_weights_in_use_and_computed_as_a_whole() -> None:
    async def test(client: httpx.AsyncClient, replica: EmulatedReplica) -> None:
        async def score(**body: Any) -> list[list[float | None]]:
            found = await ask(client, max_tokens=1, prompt_logprobs=1, **body)
            assert found["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
            for choice, prompt in zip(found["choices"], prompts, strict=True):
                assert [None if each is None else list(each) for each in choice["prompt_logprobs"]] == [
                    None,
                    *([str(token)] for token in prompt[1:]),
                ]
                (one,) = choice["prompt_logprobs"][1].values()
                assert one["rank"] == 1 and one["decoded_token"].startswith(" ")
            return [
                [None if each is None else next(iter(each.values()))["logprob"] for each in choice["prompt_logprobs"]]
                for choice in found["choices"]
            ]

        prompts = [list(range(1, 60)), [7, 8]]
        assert await score(prompt=prompts) == [scores("0", prompt) for prompt in prompts]
        await client.post("/pause", params={"mode": "keep"})
        waiting = asyncio.ensure_future(score(prompt=prompts))  # the blocks of the first one are cached
        while len(replica.choices) < 2:
            await asyncio.sleep(0.002)
        await client.post("/update_weight_version", json={"new_version": "1"})
        await asyncio.sleep(0.05)
        assert not waiting.done()  # as with vLLM
        await client.post("/resume")
        assert await waiting == [scores("1", prompt) for prompt in prompts]
        assert "prompt_logprobs" not in (await ask(client, max_tokens=1))["choices"][0]
        await client.post("/pause", params={"mode": "keep"})
        never = asyncio.ensure_future(ask(client, max_tokens=1, prompt_logprobs=1))
        while not replica.choices:
            await asyncio.sleep(0.002)
        await client.post("/abort_requests", json={})
        assert (await never)["choices"][0]["prompt_logprobs"] is None  # it was not computed
        await client.post("/resume")
        refused = await client.post("/v1/completions", json={"prompt": "a", "prompt_logprobs": 1, "stream": True})
        assert refused.status_code == 400 and "prompt_logprobs" in refused.text

    in_server(test)


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_after_an_update_are_of_the_new_weights(stream: bool) -> None:
    async def test(client: httpx.AsyncClient, replica: EmulatedReplica) -> None:
        body = {"prompt": [1, 2, 3], "max_tokens": 60, "ignore_eos": True, "logprobs": 0, "stream": stream}
        asked = asyncio.ensure_future(client.post("/v1/completions", json=body))
        while not replica.choices or replica.observe().generated_tokens._value.get() < 5:
            await asyncio.sleep(0.002)
        await client.post("/pause", params={"mode": "keep"})
        await asyncio.sleep(0.1)  # steps in flight end
        (choice,) = replica.choices
        before = replica.engine.generated(choice.request, replica.clock.now()) if choice.request else 0
        await client.post("/update_weight_version", json={"new_version": "1"})
        await client.post("/resume")
        parts = (await asked).text
        found = [json.loads(part[6:]) for part in parts.split("\n\n")[:-2]] if stream else [json.loads(parts)]
        values = [value for part in found for value in part["choices"][0]["logprobs"]["token_logprobs"]]
        ids = choice.output.ids()
        assert 5 <= before < 60 == len(values)
        old, new = logprob_of("0"), logprob_of("1")
        assert values[:before] == [old(3 + place, token) for place, token in enumerate(ids[:before])]
        assert values[before:] == [new(3 + before + place, token) for place, token in enumerate(ids[before:])]

    in_server(test, speed=5.0)


@pytest.mark.parametrize(
    ("path", "header", "key", "named", "aborted"),
    [
        ("/v1/completions", None, "x", "cmpl-x-0", 1),
        ("/v1/completions", None, "x", "x", 2),
        ("/v1/completions", "y", "x", "cmpl-y-1", 1),
        ("/v1/completions", "y", "x", "cmpl-x-0", 0),
        ("/v1/completions", None, "x", "cmpl-x", 0),
        ("/v1/chat/completions", None, "x", "chatcmpl-x", 1),
        ("/v1/chat/completions", "y", None, "y", 1),
    ],
)
def test_requests_are_aborted_by_the_names_that_vllm_gives_them(
    path: str, header: str | None, key: str | None, named: str, aborted: int
) -> None:
    async def test(client: httpx.AsyncClient, replica: EmulatedReplica) -> None:
        chat = {"messages": [{"role": "user", "content": "a"}]}
        body = {"max_tokens": 5000, "ignore_eos": True, "request_id": key}
        asked = client.post(
            path,
            json=body | (chat if "chat" in path else {"prompt": ["a", "b"]}),
            headers={} if header is None else {"X-Request-Id": header},
        )
        waiting = asyncio.ensure_future(asked)
        while not replica.engine.running:
            await asyncio.sleep(0.002)
        said = await client.post("/abort_requests", json={"request_ids": [named, "other"]})
        assert said.json() == {"status": "aborted", "aborted": aborted}
        await client.post("/abort_requests", json={})
        found = (await waiting).json()
        assert found["id"].endswith(header or key or "")
        assert {choice["finish_reason"] for choice in found["choices"]} == {"abort"}

    in_server(test, speed=2.0)


def test_an_aborted_request_that_does_not_stream_answers_with_its_tokens_so_far() -> None:
    async def test(client: httpx.AsyncClient, replica: EmulatedReplica) -> None:
        waiting = asyncio.ensure_future(ask(client, max_tokens=5000, return_token_ids=True))
        while not replica.choices or replica.observe().generated_tokens._value.get() < 20:
            await asyncio.sleep(0.002)
        (choice,) = replica.choices
        await client.post("/abort_requests", json={})
        found = await waiting
        tokens = found["usage"]["completion_tokens"]
        assert 20 <= tokens < 5000 and found["choices"][0]["token_ids"] == choice.output.ids(0, tokens)
        assert replica.observe().generated_tokens._value.get() == tokens

    in_server(test)


def test_tokens_are_counted_while_they_are_generated() -> None:
    async def test(client: httpx.AsyncClient, replica: EmulatedReplica) -> None:
        async def counted() -> int:
            (line,) = re.findall(r"^vllm:generation_tokens_total{.*} (\S+)", (await client.get("/metrics")).text, re.M)
            return int(float(line))

        waiting = [asyncio.ensure_future(ask(client, max_tokens=300)) for _ in range(3)]
        seen = [0]
        while not all(each.done() for each in waiting):
            seen.append(await counted())
        assert seen == sorted(seen) and len({each for each in seen if 0 < each < 900}) > 2
        assert await counted() == 900
        sums = re.findall(r"^vllm:time_to_first_token_seconds_sum{.*} (\S+)", (await client.get("/metrics")).text, re.M)
        assert 0 < float(sums[0]) < 3 * 0.3  # not those of whole answers, which take longer than a second

    in_server(test, speed=3.0)


def test_a_request_arrives_with_its_last_byte() -> None:
    async def test(client: httpx.AsyncClient, replica: EmulatedReplica) -> None:
        body = b'{"prompt": [1, 2, 3], "max_tokens": 2000, "ignore_eos": true}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        _, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(head + body[:20])
        await asyncio.sleep(0.05)
        between = replica.clock.now()
        writer.write(body[20:])
        while not replica.choices:
            await asyncio.sleep(0.002)
        assert between < replica.choices[0].at <= replica.clock.now()
        writer.close()

    in_server(test)


def test_a_burst_is_submitted_before_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(_: httpx.AsyncClient, replica: EmulatedReplica) -> None:
        pokes: list[int] = []
        poke = replica.poke
        monkeypatch.setattr(replica, "poke", lambda: pokes.append(len(replica.choices)) or poke())  # type: ignore[func-returns-value]
        at = replica.clock.now()
        choices = [replica.submit(array("I", [place]), 50, Mailbox(), at, exact=True) for place in range(20)]
        assert not pokes
        await asyncio.sleep(0)
        assert pokes == [20]
        assert {choice.request.arrival for choice in choices if choice.request is not None} == {at}

    in_server(test, speed=1.0)


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
    async def test(client: httpx.AsyncClient, replica: EmulatedReplica) -> None:
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
        limits = replica.engine.engine.limits
        (config,) = re.findall(r"^vllm:cache_config_info{(.*)} 1.0$", text, re.M)
        assert set(config.split(",")) == {
            f'num_gpu_blocks="{limits.blocks}"',
            f'block_size="{limits.block_size}"',
            'enable_prefix_caching="True"',
            'engine="0"',
        }

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
