"""Clients of engines against servers that accept exactly what the contracts say, and against servers that fail."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from starlette.responses import Response, StreamingResponse

from steelyard.errors import UserError
from steelyard.live.engines import http
from steelyard.live.engines.api import EngineApi, EngineError, EngineLoad, ModelInfo, WeightUpdate
from steelyard.live.engines.connect import EngineKind, connect
from steelyard.live.engines.http import CallLimits, engine_address
from steelyard.live.engines.sglang import SglangEngine
from steelyard.live.engines.vllm import VllmEngine
from support.fake_engine import FakeEngine, always, faked, hang

Act = Callable[[EngineApi], Awaitable[object]]
SHORT = CallLimits(0.05, 0.05, 0.05, 0.05, 0.05)
UPDATE = WeightUpdate("7", "weights/7")
CAN_FAIL: dict[str, Act] = {
    "load": lambda api: api.load(),
    "model": lambda api: api.model(),
    "pause": lambda api: api.pause("keep"),
    "resume": lambda api: api.resume(),
    "abort": lambda api: api.abort(["a"]),
    "sleep": lambda api: api.sleep(1),
    "update": lambda api: api.update_weights(UPDATE),
    "version": lambda api: api.weight_version(),
    "reset": lambda api: api.reset_prefix_cache(),
    "logprobs": lambda api: api.logprobs([10, 20, 30]),
}
KINDS: tuple[EngineKind, ...] = ("vllm", "sglang", "generic")
CALLS_OF = {"vllm": list(CAN_FAIL), "sglang": list(CAN_FAIL), "generic": ["load", "model", "logprobs"]}


def with_fake(
    kind: EngineKind, test: Callable[[EngineApi, FakeEngine], Awaitable[None]], limits: CallLimits | None = None
) -> None:
    async def run() -> None:
        async with faked(kind) as (url, engine):
            api = connect(kind, url, limits=limits)
            try:
                await test(api, engine)
            finally:
                await api.close()

    asyncio.run(run())


async def _all_of_vllm(api: EngineApi) -> None:
    assert isinstance(api, VllmEngine)
    for mode in ("keep", "wait", "abort"):
        await api.pause(mode)
    await api.resume()
    await api.abort()
    await api.abort(["cmpl-1-0"])
    await api.sleep(1)
    await api.wake()
    await api.update_weights(UPDATE)
    await api.init_weight_transfer({"master_port": 1})
    await api.update_weights(WeightUpdate("7", "", {"names": ["w"]}))
    await api.reset_prefix_cache()


async def _all_of_sglang(api: EngineApi) -> None:
    for mode in ("keep", "abort"):
        await api.pause(mode)
        assert await api.health()  # by another call than before
    await api.resume()
    await api.abort()
    await api.abort(["1", "2"])
    await api.sleep(2)
    await api.wake()
    await api.update_weights(UPDATE)
    await api.reset_prefix_cache()


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_of_a_contract_is_made_as_it_says(kind: EngineKind) -> None:
    async def test(api: EngineApi, engine: FakeEngine) -> None:
        assert await api.health() and await api.ready()
        assert await api.load() == EngineLoad(3, 2, 0.25, 700)
        assert await api.model() == ModelInfo("m", None if kind == "generic" else 4096)
        assert await api.logprobs([10, 20, 30]) == [-1.5, -0.25]
        if kind == "generic":
            assert await api.weight_version() is None
        else:
            assert await api.weight_version() == "7"
            await (_all_of_vllm if kind == "vllm" else _all_of_sglang)(api)
        if kind == "sglang":
            engine.missing |= {"/metrics", "/model_info"}  # as in other versions and settings
            assert await api.load() == EngineLoad(3, 2)
            assert await api.weight_version() == "7"
        assert set(engine.calls) == set(engine.contract)

    with_fake(kind, test)


def test_what_is_sent() -> None:
    async def vllm(api: EngineApi, engine: FakeEngine) -> None:
        await api.pause("keep")
        assert engine.queries["/pause"] == {"mode": "keep", "clear_cache": "false"}
        await api.sleep(2)
        assert engine.queries["/sleep"] == {"level": "2"}
        await api.reset_prefix_cache()
        assert engine.queries["/reset_prefix_cache"] == {"reset_running_requests": "true"}
        await api.update_weights(UPDATE)
        assert engine.bodies["/collective_rpc"] == {"method": "reload_weights", "kwargs": {"weights_path": "weights/7"}}
        assert engine.bodies["/update_weight_version"] == {"new_version": "7"}
        assert "authorization" not in engine.headers

    async def sglang(api: EngineApi, engine: FakeEngine) -> None:
        await api.pause("keep")
        assert engine.bodies["/pause_generation"] == {"mode": "retract"}
        await api.update_weights(UPDATE)
        body = {"model_path": "weights/7", "weight_version": "7", "flush_cache": False}
        assert engine.bodies["/update_weights_from_disk"] == body

    with_fake("vllm", vllm)
    with_fake("sglang", sglang)


def test_an_emulated_engine_gets_weights_by_transfer_calls() -> None:
    async def run() -> None:
        async with faked("vllm") as (url, engine):
            api = connect("emulated", url)
            await api.update_weights(UPDATE)
            await api.close()
            assert [path for _, path in engine.calls] == [
                "/start_weight_update",
                "/update_weights",
                "/finish_weight_update",
            ]
            assert engine.bodies["/finish_weight_update"] == {"weight_version": "7"}

    asyncio.run(run())


def test_keys_are_sent() -> None:
    async def run() -> None:
        async with faked("vllm") as (url, engine):
            api = connect("vllm", f"{url}/v1", key="secret")
            assert await api.health() and engine.headers["authorization"] == "Bearer secret"
            await api.close()

    asyncio.run(run())


def test_an_empty_list_aborts_nothing() -> None:
    async def test(api: EngineApi, engine: FakeEngine) -> None:
        await api.abort([])
        assert not engine.calls

    with_fake("vllm", test)
    with_fake("sglang", test)


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (always(500, '{"error": "out of memory"}'), "HTTP 500: {"),
        (always(400, '{"success": false, "message": "no such file"}'), "no such file"),
        (always(503, ""), "HTTP 503: no reason given"),
        (hang, "no answer within 0.05 s"),
    ],
    ids=["500", "400", "503", "hang"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_failures_are_engine_errors(kind: EngineKind, behaviour: Any, said: str) -> None:
    async def test(api: EngineApi, engine: FakeEngine) -> None:
        engine.instead["*"] = behaviour
        for name in CALLS_OF[kind]:
            with pytest.raises(EngineError) as told:
                await CAN_FAIL[name](api)
            assert said in told.value.why and told.value.engine == api.url and api.url in str(told.value), name
            assert told.value.what.split()[0] in ("GET", "POST")
        assert await api.health() is False

    with_fake(kind, test, SHORT if behaviour is hang else None)


NOTHING_READ = {"load", "sleep"}  # an answer with status 200 is enough
SENSELESS = ["", "{", "null", "[]", '{"status": 7}', "\xff", "[" * 100_000, "NaN", "<html>"]


@pytest.mark.parametrize("kind", KINDS)
def test_answers_that_make_no_sense_are_engine_errors(kind: EngineKind) -> None:
    async def test(api: EngineApi, engine: FakeEngine) -> None:
        names = set(CALLS_OF[kind]) - NOTHING_READ - ({"abort", "reset"} if kind == "sglang" else set())
        for name in sorted(names):
            for content in SENSELESS:
                if (name, content) == ("reset", "") or (kind, name, content) == ("sglang", "version", '{"status": 7}'):
                    continue  # what older versions answer
                engine.instead["*"] = always(200, content.encode("latin-1"))
                with pytest.raises(EngineError, match="not understood"):
                    await CAN_FAIL[name](api)

    with_fake(kind, test)


@pytest.mark.parametrize(
    ("kind", "path", "answer", "name", "said"),
    [
        ("vllm", "/pause", {"status": "resumed"}, "pause", "instead of 'paused'"),
        ("vllm", "/reset_prefix_cache", {"success": False}, "reset", "was not reset"),
        ("vllm", "/update_weight_version", {"success": True, "new_version": "6"}, "update", "another version"),
        ("vllm", "/v1/models", {"data": []}, "model", "lists no model"),
        ("vllm", "/v1/completions", {"choices": [{"text": "x"}]}, "logprobs", "prompt_logprobs: Field required"),
        ("vllm", "/v1/completions", {"choices": []}, "logprobs", "no log-probs of 3"),
        ("vllm", "/v1/completions", {"choices": [{"prompt_logprobs": [None]}]}, "logprobs", "no log-probs of 3"),
        (
            "vllm",
            "/v1/completions",
            {"choices": [{"prompt_logprobs": [None, {"20": {"logprob": -1}}, {"31": {"logprob": -1}}]}]},
            "logprobs",
            "no log-prob of token 30",
        ),
        ("sglang", "/pause_generation", {"status": "error"}, "pause", "instead of 'ok'"),
        ("sglang", "/update_weights_from_disk", {"success": False, "message": "bad shape"}, "update", "bad shape"),
        ("sglang", "/generate", {"meta_info": {"input_token_logprobs": []}}, "logprobs", "of these 3 tokens"),
        (
            "sglang",
            "/generate",
            {"meta_info": {"input_token_logprobs": [[None, 10, None], [-1, 20, None], [None, 30, None]]}},
            "logprobs",
            "some tokens have no log-prob",
        ),
        ("generic", "/v1/completions", {"choices": [{"logprobs": None}]}, "logprobs", "not understood"),
        (
            "generic",
            "/v1/completions",
            {"choices": [{"logprobs": {"token_logprobs": [None, -1.0]}}]},
            "logprobs",
            "no log-probs of 3",
        ),
    ],
)
def test_answers_that_say_no_are_engine_errors(
    kind: EngineKind, path: str, answer: object, name: str, said: str
) -> None:
    async def test(api: EngineApi, engine: FakeEngine) -> None:
        engine.instead[path] = always(200, json.dumps(answer))
        with pytest.raises(EngineError) as told:
            await CAN_FAIL[name](api)
        assert said in told.value.why and path in told.value.what

    with_fake(kind, test)


def test_log_probs_that_are_no_numbers_are_refused() -> None:
    async def test(api: EngineApi, engine: FakeEngine) -> None:
        answer = '{"choices": [{"prompt_logprobs": [null, {"20": {"logprob": NaN}}, {"30": {"logprob": -1}}]}]}'
        engine.instead["/v1/completions"] = always(200, answer)
        with pytest.raises(EngineError, match="finite"):
            await api.logprobs([10, 20, 30])

    with_fake("vllm", test)


def test_an_answer_that_never_ends_is_given_up() -> None:
    async def endless(_: Any) -> Response:
        async def drip() -> AsyncIterator[bytes]:
            while True:
                yield b" "
                await asyncio.sleep(0.01)

        return StreamingResponse(drip())

    async def test(api: EngineApi, engine: FakeEngine) -> None:
        engine.instead["*"] = endless
        with pytest.raises(EngineError, match="no answer within"):
            await api.model()

    with_fake("vllm", test, SHORT)


def test_an_answer_that_is_too_large_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_MOST_BYTES", 1000)

    async def test(api: EngineApi, engine: FakeEngine) -> None:
        engine.instead["*"] = always(200, b" " * 1001)
        with pytest.raises(EngineError, match="more than 1,000 bytes"):
            await api.model()

    with_fake("vllm", test)


@pytest.mark.parametrize(
    "greeting", [b"", b"\x00\x01\x02 not HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"]
)
def test_servers_that_do_not_speak_http_are_engine_errors(greeting: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(greeting)
        await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        api = connect("vllm", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(EngineError, match="GET /v1/models"):
            await api.model()
        assert await api.health() is False
        await api.close()
        server.close()
        with pytest.raises(EngineError, match="connect"):
            await connect("sglang", api.url).model()

    asyncio.run(run())


def test_vllm_without_its_developer_mode_serves_and_takes_no_orders() -> None:
    async def test(api: EngineApi, engine: FakeEngine) -> None:
        public = {"/health", "/v1/models", "/metrics", "/v1/completions"}
        engine.missing |= {path for _, path in engine.contract if path not in public}
        assert await api.ready()
        assert await api.weight_version() is None
        with pytest.raises(EngineError, match="HTTP 404"):
            await api.pause("keep")

    with_fake("vllm", test)


def test_an_older_vllm_keeps_no_version() -> None:
    async def test(api: EngineApi, engine: FakeEngine) -> None:
        engine.missing |= {"/weight_info", "/update_weight_version"}
        engine.instead["/reset_prefix_cache"] = always(200, "")
        await api.update_weights(UPDATE)
        await api.reset_prefix_cache()
        assert ("POST", "/collective_rpc") in engine.calls

    with_fake("vllm", test)


@pytest.mark.parametrize(
    ("path", "answer"), [("/is_paused", {"is_paused": True}), ("/is_sleeping", {"is_sleeping": True})]
)
def test_a_paused_or_sleeping_vllm_is_not_ready(path: str, answer: object) -> None:
    async def test(api: EngineApi, engine: FakeEngine) -> None:
        engine.instead[path] = always(200, json.dumps(answer))
        assert await api.health() and not await api.ready()

    with_fake("vllm", test)


def test_sglang_is_asked_otherwise_while_it_is_paused() -> None:
    async def test(api: EngineApi, engine: FakeEngine) -> None:
        engine.instead["/health_generate"] = always(503, "")
        assert not await api.health()
        await api.pause("keep")
        assert await api.health() and not await api.ready()
        await api.resume()
        assert not await api.health()

    with_fake("sglang", test)


def test_sglang_cannot_do_all() -> None:
    async def test(api: EngineApi, engine: FakeEngine) -> None:
        assert isinstance(api, SglangEngine)
        with pytest.raises(EngineError, match="use keep or abort"):
            await api.pause("wait")
        with pytest.raises(EngineError, match="use 1 or 2"):
            await api.sleep(0)
        with pytest.raises(EngineError, match="give a path"):
            await api.update_weights(WeightUpdate("7", "", {}))
        with pytest.raises(EngineError, match="not put to sleep from here"):
            await api.wake()
        assert not engine.calls

    with_fake("sglang", test)


def test_sglang_gives_back_the_memory_that_it_released() -> None:
    async def test(api: EngineApi, engine: FakeEngine) -> None:
        for level, tags in ((1, ["kv_cache"]), (2, ["kv_cache", "weights"])):
            await api.sleep(level)
            assert engine.bodies["/pause_generation"] == {"mode": "abort"}  # before, or its scheduler would fail
            assert engine.bodies["/release_memory_occupation"] == {"tags": tags}
            await api.wake()
            assert engine.bodies["/resume_memory_occupation"] == {"tags": tags}
            assert engine.calls[-1] == ("POST", "/continue_generation")

    with_fake("sglang", test)


def test_an_unknown_engine_says_what_it_cannot_do() -> None:
    async def test(api: EngineApi, engine: FakeEngine) -> None:
        for name in ("pause", "resume", "abort", "sleep", "update", "reset"):
            with pytest.raises(EngineError, match="of unknown kind cannot"):
                await CAN_FAIL[name](api)
        with pytest.raises(EngineError, match="cannot wake"):
            await api.wake()
        assert not engine.calls

    with_fake("generic", test)


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:80", "ftp://a:1", "http://", "http://a:1/x", "http://a:b", "http://[::1"]
)
def test_addresses_are_checked(url: str) -> None:
    with pytest.raises(UserError, match="must be the URL of an engine"):
        engine_address(url)


def test_addresses_lose_their_path() -> None:
    assert engine_address("http://a:1/v1/") == engine_address("http://a:1") == "http://a:1"
    assert engine_address("https://[::1]:8000/") == "https://[::1]:8000"


def test_errors_travel_between_processes_and_show_no_control_characters() -> None:
    error = EngineError("http://a:1", "POST /pause", "no")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "http://a:1: POST /pause: no"

    async def test(api: EngineApi, engine: FakeEngine) -> None:
        engine.instead["*"] = always(500, "\x1b[31m" + "x" * 5000)
        with pytest.raises(EngineError) as told:
            await api.model()
        assert told.value.why.isprintable() and len(told.value.why) <= 200

    with_fake("vllm", test)
