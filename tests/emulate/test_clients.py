"""Requests as `vllm bench serve` (0.33) and guidellm (0.8) send them, and what both read of the answers.

Both tools themselves were run against an emulated engine (docs/emulate.md). They are too large to install for tests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from support.emulated import served

MODEL = "llama-3.1-8b"
BENCH = {"repetition_penalty": 1.0, "logprobs": None, "stream": True, "stream_options": {"include_usage": True}}
GUIDE_OPTIONS = {"include_usage": True, "continuous_usage_stats": True}
PARTS = [{"role": "user", "content": [{"type": "text", "text": "one two three"}]}]


def in_server(test: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    async def run() -> None:
        async with served() as (clients, _):
            await test(clients[0])

    asyncio.run(run())


async def streamed(client: httpx.AsyncClient, path: str, body: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
    """The parts of a stream, as both clients cut it: at empty lines, after "data: ", up to [DONE]."""
    answer = await client.post(path, json=body, headers=headers)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
    *parts, done, rest = answer.text.split("\n\n")
    assert done == "data: [DONE]" and not rest
    return [json.loads(part.removeprefix("data: ")) for part in parts]


@pytest.mark.parametrize("prompt", ["one two three", [5, 6, 7]])
def test_vllm_bench_completions(prompt: object) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert model["id"] == model["root"] == MODEL
        body = {**BENCH, "model": MODEL, "prompt": prompt, "max_tokens": 6, "ignore_eos": True}
        *tokens, usage = await streamed(client, "/v1/completions", body, **{"x-request-id": "bench-1"})
        assert {part["id"] for part in tokens} == {"cmpl-bench-1"}
        assert "".join(part["choices"][0]["text"] for part in tokens).count(" ") == 6
        assert not usage["choices"]
        assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (3, 6)
        metrics = await client.get("/metrics")  # it looks for speculative decoding and finds none
        assert metrics.status_code == 200 and "vllm:spec_decode" not in metrics.text

    in_server(test)


def test_vllm_bench_chat() -> None:
    async def test(client: httpx.AsyncClient) -> None:
        body = {"model": MODEL, "messages": PARTS, "max_completion_tokens": 4, "stream": True, "ignore_eos": True}
        options = {"stream_options": {"include_usage": True}}
        *parts, usage = await streamed(client, "/v1/chat/completions", body | options)
        assert "".join(part["choices"][0]["delta"].get("content") or "" for part in parts).count(" ") == 4
        assert not usage["choices"] and usage["usage"]["completion_tokens"] == 4

    in_server(test)


def test_vllm_bench_cuts_prompts_that_have_more_tokens_here() -> None:
    async def test(client: httpx.AsyncClient) -> None:
        asked = {"model": MODEL, "prompt": "incomprehensibilities, 123456 of them", "add_special_tokens": False}
        tokens = (await client.post("/tokenize", json=asked)).json()["tokens"]
        assert len(tokens) == 8
        cut = (await client.post("/detokenize", json={"model": MODEL, "tokens": tokens[:5]})).json()["prompt"]
        again = (await client.post("/tokenize", json={**asked, "prompt": cut})).json()
        assert again["count"] == 5
        chat = (await client.post("/tokenize", json={"model": MODEL, "messages": PARTS})).json()
        assert chat["count"] > 3
        assert (await client.post("/tokenize", json={"model": MODEL})).status_code == 400
        assert (await client.post("/tokenize", json={"messages": [{"content": "a"}]})).status_code == 400

    in_server(test)


def test_guidellm() -> None:
    async def test(client: httpx.AsyncClient) -> None:
        assert (await client.get("/health")).status_code == 200
        body = {"model": MODEL, "stream": True, "stream_options": GUIDE_OPTIONS, "ignore_eos": True}
        chat = await streamed(client, "/v1/chat/completions", body | {"max_completion_tokens": 3, "messages": PARTS})
        text = {"max_tokens": 3, "stop": None, "prompt": "one two three"}
        plain = await streamed(client, "/v1/completions", body | text)
        role, *chat = chat
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        for parts in (chat, plain):
            told = [part["usage"]["completion_tokens"] for part in parts]  # tokens may come several at a time
            assert told == sorted(told) and told[0] >= 1 and told[-2:] == [3, 3]
            assert not parts[-1]["choices"] and "cached_tokens" in parts[-1]["usage"]["prompt_tokens_details"]
        assert "".join(part["choices"][0]["delta"]["content"] for part in chat[:-1]).count(" ") == 3

    in_server(test)
