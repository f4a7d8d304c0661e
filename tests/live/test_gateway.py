"""The gateway in front of emulated engines: routing, failures, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from steelyard.balance.route.serving import serving_router
from steelyard.emulate.replica import EmulatedReplica
from steelyard.errors import UserError
from steelyard.live.access import Access
from steelyard.live.access_log import AccessLog
from steelyard.live.fleet import EngineFleet, block_names
from steelyard.live.rules import GatewayRules, Rates
from steelyard.live.serve import serve_gateway
from steelyard.live.upstream import Upstream
from steelyard.workload.traces import read_trace
from support.emulated import served

Test = Callable[[httpx.AsyncClient, list[EmulatedReplica]], Awaitable[None]]


@asynccontextmanager
async def gateway(
    engines: list[httpx.AsyncClient], router: str, rules: GatewayRules
) -> AsyncIterator[httpx.AsyncClient]:
    addresses = [str(engine.base_url) for engine in engines]
    fleet = EngineFleet([Upstream.of(each) for each in addresses], serving_router(router, len(addresses), 0))
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(serve_gateway(fleet, rules, "127.0.0.1", 0, port.set_result))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{await port}", timeout=20) as client:
        for _ in range(100):
            try:
                if (await client.get("/health")).status_code == 200:
                    break
            except httpx.ConnectError:
                await asyncio.sleep(0.02)
        yield client
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


def behind(
    test: Test,
    *,
    replicas: int = 2,
    router: str = "round-robin",
    speed: float = 50.0,
    rules: GatewayRules | None = None,
) -> None:
    async def run() -> None:
        async with (
            served(speed, replicas=replicas) as (engines, own),
            gateway(engines, router, rules or GatewayRules()) as client,
        ):
            await test(client, own)

    asyncio.run(run())


async def ask(client: httpx.AsyncClient, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    return await client.post(
        "/v1/completions", json={"prompt": "a b c", "ignore_eos": True, **body}, headers=headers or {}
    )


def counts(replicas: list[EmulatedReplica]) -> list[int]:
    """Requests that each engine has had."""
    return [int(replica.metrics.prompts._sum.get() > 0) and int(_count(replica)) for replica in replicas]


def _count(replica: EmulatedReplica) -> float:
    text = replica.metrics.text().decode()
    line = next(line for line in text.splitlines() if line.startswith("vllm:request_prompt_tokens_count"))
    return float(line.split()[-1])


def test_openais_client_streams_through_it() -> None:
    async def test(client: httpx.AsyncClient, replicas: list[EmulatedReplica]) -> None:
        theirs = openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="none")
        text = ""
        stream = await theirs.chat.completions.create(
            model="llama-3.1-8b", messages=[{"role": "user", "content": "Hello"}], stream=True
        )
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        assert len(text.split()) == 30
        await asyncio.gather(*(ask(client, max_tokens=3) for _ in range(7)))
        assert counts(replicas) == [4, 4]
        await theirs.close()

    behind(test)


def test_sessions_stay_and_prefixes_are_found() -> None:
    async def sticky(client: httpx.AsyncClient, replicas: list[EmulatedReplica]) -> None:
        for turn in range(4):
            for session in ("one", "two"):
                answer = await ask(client, {"x-session-id": session}, prompt=f"turn {turn}", max_tokens=2)
                assert answer.status_code == 200
        assert counts(replicas) == [4, 4]

    async def prefix(client: httpx.AsyncClient, replicas: list[EmulatedReplica]) -> None:
        system = list(range(1, 400))
        for turn in range(4):
            for session in (1, 2):
                await ask(client, prompt=[session, *system, turn], max_tokens=2)
        assert sorted(counts(replicas)) == [4, 4]

    behind(sticky, router="sticky")
    behind(prefix, router="kv-aware")


def test_an_engine_that_is_gone_is_passed_over_and_taken_back() -> None:
    async def test(client: httpx.AsyncClient, replicas: list[EmulatedReplica]) -> None:
        replicas[0].crash()
        await asyncio.sleep(0.1)
        answers = await asyncio.gather(*(ask(client, max_tokens=2) for _ in range(6)))
        assert [answer.status_code for answer in answers] == [200] * 6
        replicas[1].crash()
        await asyncio.sleep(0.1)
        assert (await ask(client, max_tokens=2)).status_code == 503
        assert (await client.get("/health")).status_code == 503

    behind(test)


def test_an_engine_that_breaks_off_ends_its_streams_with_an_error() -> None:
    async def test(client: httpx.AsyncClient, replicas: list[EmulatedReplica]) -> None:
        body = {"prompt": "a", "max_tokens": 10_000, "ignore_eos": True, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            replicas[0].crash()
            rest = [line async for line in lines if line]
        assert "the engine broke off" in rest[-1]
        assert (await ask(client, max_tokens=2)).status_code == 200

    behind(test, speed=1.0)


def test_a_client_that_leaves_frees_its_engine() -> None:
    async def test(client: httpx.AsyncClient, replicas: list[EmulatedReplica]) -> None:
        body = {"prompt": "a", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            await anext(answer.aiter_lines())
        for _ in range(200):
            if not replicas[0].choices:
                break
            await asyncio.sleep(0.01)
        assert not replicas[0].choices

    behind(test, replicas=1)


def test_tokens_and_scopes(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("# ours\nclient client-token-0123456789\noperator operator-token-012345\n")
    access = Access.read(path)

    async def test(client: httpx.AsyncClient, _: list[EmulatedReplica]) -> None:
        async def status(method: str, path: str, token: str | None) -> int:
            headers = {} if token is None else {"authorization": token}
            return (await client.request(method, path, json={"prompt": "a"}, headers=headers)).status_code

        for token in (None, "Bearer", "Bearer wrong", "Basic client-token-0123456789", "client-token-0123456789"):
            assert await status("POST", "/v1/completions", token) == 401
        assert await status("POST", "/v1/completions", "Bearer client-token-0123456789") == 200
        assert await status("GET", "/metrics", "Bearer client-token-0123456789") == 403
        assert await status("GET", "/metrics", "Bearer operator-token-012345") == 200
        assert await status("GET", "/health", None) == 200

    behind(test, replicas=1, rules=GatewayRules(access))


@pytest.mark.parametrize("text", ["", "client short", "root client-token-0123456789", "client a b"])
def test_token_files_that_are_wrong_are_refused_without_showing_them(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(UserError) as told:
        Access.read(path)
    assert "client-token" not in str(told.value) and "short" not in str(told.value)


def test_other_machines_need_tokens() -> None:
    fleet = EngineFleet([Upstream("127.0.0.1", 1)], serving_router("round-robin", 1, 0))
    with pytest.raises(UserError, match="needs --tokens"):
        asyncio.run(serve_gateway(fleet, GatewayRules(), "0.0.0.0", 0, lambda _: None))


def test_files_of_certificates_are_checked(tmp_path: Path) -> None:
    fleet = EngineFleet([Upstream("127.0.0.1", 1)], serving_router("round-robin", 1, 0))
    missing = tmp_path / "cert.pem", tmp_path / "key.pem"
    with pytest.raises(UserError, match="no such file; give a PEM file"):
        asyncio.run(serve_gateway(fleet, GatewayRules(), "127.0.0.1", 0, lambda _: None, missing))
    for path in missing:
        path.write_text("no certificate")
    with pytest.raises(UserError, match="not a certificate and its key"):
        asyncio.run(serve_gateway(fleet, GatewayRules(), "127.0.0.1", 0, lambda _: None, missing))


def test_what_is_refused() -> None:
    async def test(client: httpx.AsyncClient, replicas: list[EmulatedReplica]) -> None:
        async def status(**request: Any) -> int:
            return (await client.request(**{"method": "POST", "url": "/v1/completions", **request})).status_code

        assert await status(content=b"{") == 400
        assert await status(content=b"[" * 100_000) == 400
        assert await status(content=b"[1]") == 400
        assert await status(content=b"\xff") == 400
        assert await status(content=b'{"prompt": "' + b"a" * 2_000_000 + b'"}') == 413
        assert await status(json={"prompt": "a", "session_id": "a\r\nx-evil: 1"}) == 400
        assert await status(json={"prompt": "a"}, headers={"x-session-id": "s" * 300}) == 400
        assert await status(json={"prompt": "a", "max_tokens": -1}) == 400  # the engine's own refusal
        for path in ("/", "/v1", "/v1/completions/", "/v1/../emulate/fault", "//v1/completions", "/emulate/fault"):
            assert await status(url=path, json={"kind": "crash"}) == 404
        assert await status(method="DELETE") == 405
        assert not any(replica.crashed.is_set() for replica in replicas)
        assert sum(counts(replicas)) == 0

    behind(test, rules=GatewayRules(most_bytes=1 << 20))


def test_requests_hidden_in_requests_are_not_passed_on() -> None:
    async def test(client: httpx.AsyncClient, replicas: list[EmulatedReplica]) -> None:
        hidden = b"POST /emulate/fault HTTP/1.1\r\nhost: x\r\ncontent-length: 16\r\n\r\n" + b'{"kind":"crash"}'
        lengths = b"transfer-encoding: chunked\r\ncontent-length: 6\r\n"
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n" + lengths + b"\r\n0\r\n\r\n"

        def talk() -> bytes:
            with socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=5) as raw:
                raw.sendall(head + hidden)
                raw.settimeout(1.0)
                found = b""
                try:
                    while part := raw.recv(4096):
                        found += part
                except TimeoutError:
                    pass
                return found

        answer = await asyncio.to_thread(talk)
        assert b" 200 " not in answer
        assert not any(replica.crashed.is_set() for replica in replicas)

    behind(test)


def test_rates_are_limited_by_token() -> None:
    rates = Rates(2.0)
    assert [rates.take("a", at) for at in (0.0, 0.0, 0.0, 0.5, 0.6)] == [True, True, False, True, False]
    assert rates.take("b", 0.6)

    async def test(client: httpx.AsyncClient, _: list[EmulatedReplica]) -> None:
        answers = await asyncio.gather(*(ask(client, max_tokens=1) for _ in range(6)))
        assert sorted(answer.status_code for answer in answers)[-1] == 429

    behind(test, replicas=1, rules=GatewayRules(rates=Rates(2.0)))


@pytest.mark.parametrize("address", ["", "127.0.0.1:80", "https://a:1", "http://a", "http://a:1/x", "http://a:99999"])
def test_addresses_of_engines_are_checked(address: str) -> None:
    with pytest.raises(UserError, match="must be the URL of an engine"):
        Upstream.of(address)


def test_prompts_are_named_by_how_they_begin() -> None:
    one, other = block_names({"prompt": "x" * 640 + "1"}), block_names({"prompt": "x" * 640 + "2" * 100})
    assert one == other[:10] and len(other) == 11
    assert block_names({"prompt": list(range(64))})[:3] == block_names({"prompt": [*range(48), 9, 9]})
    talk = [{"role": "user", "content": "y" * 500}]
    answer = [*talk, {"role": "assistant", "content": "z" * 500}]
    assert block_names({"messages": answer})[: len(block_names({"messages": talk}))] == block_names({"messages": talk})
    assert block_names({"prompt": ["a", "b"]}) == block_names({"prompt": [2**80] * 32}) == block_names({}) == []


def test_requests_are_logged_without_contents(tmp_path: Path) -> None:
    """Time, tokens and a hash of the session of each request; the file is a trace."""
    file = tmp_path / "requests.jsonl"

    async def run() -> None:
        async with served(50.0, replicas=1) as (engines, _):
            fleet = EngineFleet([Upstream.of(str(engines[0].base_url))], serving_router("round-robin", 1, 0))
            port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            serving = asyncio.ensure_future(
                serve_gateway(fleet, GatewayRules(), "127.0.0.1", 0, port.set_result, log=file)
            )
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{await port}", timeout=20) as client:
                while not any(fleet.up):
                    await asyncio.sleep(0.02)
                for prompt, streams in (([1, 2, 3], False), ([1] * 40, True)):
                    usage: dict[str, Any] = {"stream_options": {"include_usage": True}} if streams else {}
                    body = {"prompt": prompt, "max_tokens": 7, "stream": streams, **usage}
                    answer = await client.post("/v1/completions", json=body, headers={"X-Session-ID": "secret"})
                    assert answer.status_code == 200
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(run())
    text = file.read_text()
    assert "secret" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["prompt_tokens"], line["output_tokens"]) for line in lines] == [(3, 7), (40, 7)]
    assert lines[0]["session"] == lines[1]["session"]
    work = read_trace(file)
    assert work.prompt.tolist() == [3, 40] and work.at[0] == 0 < work.at[1]
    assert work.content == [(), ((0, 10),)]  # the second turn begins with the first and its answer


def test_a_stream_without_usage_is_counted_by_its_events(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "requests.jsonl")
    request = log.begin({"prompt": "text"}, None)
    whole = b'data: {"choices": [1]}\n\ndata: {"choices": [2]}\n\ndata: [DONE]\n\n'
    for i in range(len(whole)):
        request.saw(whole[i : i + 1], streams=True)
    request.ended(streams=True)
    log.close()
    line = json.loads((tmp_path / "requests.jsonl").read_text())
    assert (line["prompt_tokens"], line["output_tokens"], line["session"]) == (None, 2, None)
    with pytest.raises(UserError, match="none of its 1 requests has prompt_tokens"):
        read_trace(tmp_path / "requests.jsonl", "gateway")
