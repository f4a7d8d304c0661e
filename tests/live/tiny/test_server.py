"""The small engine over real connections: clients, operators, weights, and what goes wrong."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import openai
import pytest

from steelyard.live.tiny.engine import TinyEngine
from steelyard.live.tiny.model import make_tiny
from steelyard.live.tiny.serve import serve_tiny
from steelyard.live.tiny.symbols import encode
from support.tiny import chunks, complete, tiny_served
from support.trainers import running, samples_of, settings_of

LONG = {"max_tokens": 300, "ignore_eos": True, "seed": 11}
Test = Callable[[httpx.AsyncClient, TinyEngine], Awaitable[None]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("server") / "model", seed=5, warm_up=5)


def in_server(folder: Path, test: Test, most: int = 64) -> None:
    async def run() -> None:
        async with tiny_served(folder, most) as (client, engine):
            await test(client, engine)

    asyncio.run(run())


def test_openais_client_works_unchanged(folder: Path) -> None:
    async def test(client: httpx.AsyncClient, _: TinyEngine) -> None:
        theirs = openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="none")
        (model,) = (await theirs.models.list()).data
        whole = await theirs.completions.create(
            model=model.id, prompt="1+2=", max_tokens=7, n=2, logprobs=0, extra_body={"ignore_eos": True}
        )
        assert whole.usage is not None and whole.usage.completion_tokens == 14 and whole.usage.prompt_tokens == 4
        assert [choice.finish_reason for choice in whole.choices] == ["length"] * 2
        with pytest.raises(openai.NotFoundError, match="this engine serves"):
            await theirs.completions.create(model="other", prompt="x")
        await theirs.close()

    in_server(folder, test)


def test_the_same_seed_gives_the_same_answer_in_any_company(folder: Path) -> None:
    async def test(client: httpx.AsyncClient, _: TinyEngine) -> None:
        alone = await complete(client, max_tokens=30, seed=3, ignore_eos=True)
        crowd = [complete(client, max_tokens=20, seed=seed, prompt=[8, 9, seed]) for seed in range(12)]
        among, *others = await asyncio.gather(complete(client, max_tokens=30, seed=3, ignore_eos=True), *crowd)
        assert among["token_ids"] == alone["token_ids"] and len(others) == 12
        assert among["prompt_token_ids"] == encode("1+2=")
        assert among["logprobs"]["token_logprobs"] == pytest.approx(alone["logprobs"]["token_logprobs"], abs=1e-4)
        other = await complete(client, max_tokens=30, seed=4, ignore_eos=True)
        assert other["token_ids"] != alone["token_ids"]

    in_server(folder, test, most=4)


def test_streams_have_the_same_tokens(folder: Path) -> None:
    async def test(client: httpx.AsyncClient, _: TinyEngine) -> None:
        whole = await complete(client, max_tokens=40, seed=3, ignore_eos=True)
        body = {"max_tokens": 40, "seed": 3, "ignore_eos": True, "stream_options": {"include_usage": True}}
        found = [chunk async for chunk in chunks(client, **body)]
        *parts, last = found
        assert [token for part in parts for token in part["choices"][0]["token_ids"]] == whole["token_ids"]
        assert "".join(part["choices"][0]["text"] for part in parts) == whole["text"]
        assert parts[-1]["choices"][0]["finish_reason"] == "length" and last["usage"]["completion_tokens"] == 40

    in_server(folder, test)


def test_stop_tokens_are_told(folder: Path) -> None:
    async def test(client: httpx.AsyncClient, _: TinyEngine) -> None:
        free = await complete(client, max_tokens=40, seed=3, ignore_eos=True)
        stop = free["token_ids"][9]
        found = await complete(client, max_tokens=40, seed=3, ignore_eos=True, stop_token_ids=[stop])
        assert (found["finish_reason"], found["stop_reason"]) == ("stop", stop)
        assert found["token_ids"][-1] == stop and stop not in found["token_ids"][:-1]

    in_server(folder, test)


async def _begun(client: httpx.AsyncClient, engine: TinyEngine) -> asyncio.Task[dict[str, object]]:
    """A long request that has got some tokens."""
    task = asyncio.ensure_future(complete(client, **LONG))
    while not any(request.told > 5 for request in engine.requests):
        await asyncio.sleep(0.001)
    return task


def test_kept_requests_go_on_where_they_were(folder: Path) -> None:
    async def test(client: httpx.AsyncClient, engine: TinyEngine) -> None:
        whole = await complete(client, **LONG)
        task = await _begun(client, engine)
        await client.post("/pause", params={"mode": "keep"})
        assert (await client.get("/is_paused")).json() == {"is_paused": True}
        told = engine.requests[0].told
        late = asyncio.ensure_future(complete(client, max_tokens=3, ignore_eos=True))
        await asyncio.sleep(0.05)
        assert told < 300 and engine.requests[0].told == told and not late.done()
        assert (await client.get("/load")).json() == {"server_load": 2}
        await client.post("/reset_prefix_cache", params={"reset_running_requests": True})
        await client.post("/resume")
        assert (await task)["token_ids"] == whole["token_ids"]
        assert len((await late)["token_ids"]) == 3

    in_server(folder, test)


def test_aborted_requests_return_what_they_have(folder: Path) -> None:
    async def test(client: httpx.AsyncClient, engine: TinyEngine) -> None:
        whole = await complete(client, **LONG)
        for stop, go in (("/pause?mode=abort", "/resume"), ("/abort_requests", "/resume"), ("/sleep", "/wake_up")):
            task = await _begun(client, engine)
            await client.post(stop)
            found = await task
            tokens = found["token_ids"]
            assert isinstance(tokens, list) and found["finish_reason"] == "abort"
            assert 5 < len(tokens) < 300 and tokens == whole["token_ids"][: len(tokens)]
            await client.post(go)
        assert not engine.requests
        assert (await complete(client, **LONG))["token_ids"] == whole["token_ids"]

    in_server(folder, test)


def test_one_request_is_aborted_by_name(folder: Path) -> None:
    async def test(client: httpx.AsyncClient, engine: TinyEngine) -> None:
        tasks = [asyncio.ensure_future(complete(client, request_id=name, **LONG)) for name in ("a", "b")]
        while len(engine.requests) < 2:
            await asyncio.sleep(0.001)
        await client.post("/abort_requests", json={"request_ids": ["a", "cmpl-a", "cmpl-b-1"]})  # none is vLLM's
        await client.post("/abort_requests", json={"request_ids": ["cmpl-a-0"]})
        assert [(await task)["finish_reason"] for task in tasks] == ["abort", "length"]

    in_server(folder, test)


def test_waiting_lets_requests_finish(folder: Path) -> None:
    async def test(client: httpx.AsyncClient, engine: TinyEngine) -> None:
        task = await _begun(client, engine)
        await client.post("/pause", params={"mode": "wait"})
        assert (await task)["finish_reason"] == "length"
        late = asyncio.ensure_future(complete(client, max_tokens=3))
        await asyncio.sleep(0.05)
        assert not late.done()
        await client.post("/resume")
        await late

    in_server(folder, test)


def test_a_client_that_leaves_is_forgotten(folder: Path) -> None:
    async def test(client: httpx.AsyncClient, engine: TinyEngine) -> None:
        await client.post("/pause", params={"mode": "keep"})
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/completions", json={"prompt": "1+2=", **LONG}, timeout=0.3)
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/completions", json={"prompt": "1+2=", "stream": True, **LONG}, timeout=0.3)
        while engine.requests:
            await asyncio.sleep(0.01)
        await client.post("/resume")

    in_server(folder, test)


def test_new_weights_answer_as_the_trainer_does(folder: Path, tmp_path: Path) -> None:
    """The probe: log-probabilities of a prompt by trainer and engine agree after an update, and not before it."""
    tokens = encode("17+25=<tool>17+25</tool>")

    async def probe(client: httpx.AsyncClient) -> list[float]:
        choice = await complete(client, prompt=tokens, max_tokens=1, prompt_logprobs=2)
        first, *rest = choice["prompt_logprobs"]
        assert first is None and all(
            each[str(token)]["rank"] >= 1 for each, token in zip(rest, tokens[1:], strict=True)
        )
        assert all(2 <= len(each) <= 3 for each in rest)
        return [each[str(token)]["logprob"] for each, token in zip(rest, tokens[1:], strict=True)]

    with running(settings_of(tmp_path, "probe", learning_rate=1e-2)) as trainer:

        async def test(client: httpx.AsyncClient, engine: TinyEngine) -> None:
            assert await probe(client) == pytest.approx(trainer.group.logprobs(tokens), abs=1e-4)
            assert (await client.get("/weight_info")).json() == {"weight_version": "0"}
            trainer.group.train(0, samples_of(0), last=True)
            wanted = trainer.group.logprobs(tokens)
            assert await probe(client) != pytest.approx(wanted, abs=1e-2)
            info = {"path": str(trainer.group.publish(1)), "weight_version": 1}
            assert (await client.post("/update_weights", json={"update_info": info})).status_code == 200
            assert await probe(client) == pytest.approx(wanted, abs=1e-4)
            assert (await client.get("/weight_info")).json() == {"weight_version": "1"}

        in_server(trainer.group.settings.model, test)


def test_wrong_weights_change_nothing(folder: Path, tmp_path: Path) -> None:
    async def test(client: httpx.AsyncClient, _: TinyEngine) -> None:
        before = await complete(client, **LONG)
        (tmp_path / "model.safetensors").write_bytes(b"nonsense")
        for info in ({"path": str(tmp_path), "weight_version": 2}, {"path": "/nowhere", "weight_version": 2}, {}):
            answer = await client.post("/update_weights", json={"update_info": info})
            assert answer.status_code == 400 and answer.json()["error"]["message"]
        assert (await client.get("/weight_info")).json() == {"weight_version": "0"}
        assert (await complete(client, **LONG))["token_ids"] == before["token_ids"]

    in_server(folder, test)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": []},
        {"prompt": [64]},
        {"prompt": [-1]},
        {"prompt": [1] * 512},
        {"prompt": "1", "max_tokens": 0},
        {"prompt": "1", "temperature": -1},
        {"prompt": "1", "top_p": 0.9},
        {"prompt": "1", "stop": ["x"]},
        {"prompt": "1", "stream": True, "prompt_logprobs": 1},
    ],
)
def test_what_cannot_be_done_is_refused(folder: Path, body: dict[str, object]) -> None:
    async def test(client: httpx.AsyncClient, _: TinyEngine) -> None:
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 400 and answer.json()["error"]["type"] == "BadRequestError"

    in_server(folder, test)


def test_it_tells_about_itself(folder: Path) -> None:
    async def test(client: httpx.AsyncClient, _: TinyEngine) -> None:
        for path in ("/health", "/ping", "/version", "/load", "/is_sleeping", "/get_world_size"):
            assert (await client.get(path)).status_code == 200
        await complete(client, max_tokens=5, ignore_eos=True)
        told = (await client.get("/metrics")).text
        assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 5.0' in told

    in_server(folder, test)


def test_the_command_serves_until_it_is_told_to_end(folder: Path) -> None:
    command = [sys.executable, "-m", "steelyard.live.tiny", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        body = {"prompt": "1+2=", "max_tokens": 4, "ignore_eos": True}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_an_engine_that_is_stopped_breaks_off_its_requests(folder: Path) -> None:
    """As a killed process does. A client would wait for ever at a connection that stays open."""

    async def run() -> None:
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        engine = TinyEngine(folder, "tiny")
        serving = asyncio.ensure_future(serve_tiny(engine, "127.0.0.1", 0, port.set_result))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{await port}", timeout=60) as client:
            stream = chunks(client, **LONG)
            await anext(stream)
            serving.cancel()
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in stream:
                    pass
            await asyncio.wait({serving})

    asyncio.run(run())
