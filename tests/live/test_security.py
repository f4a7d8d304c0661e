"""Clients that mean harm, over real connections: all are refused or closed, and nothing of theirs reaches an engine."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from steelyard.live.access import Access
from steelyard.live.desk import TurnDesk
from steelyard.live.gateway import Gateway
from steelyard.live.rules import ClientPatience, GatewayRules, Rates
from support.emulated import served
from support.gateways import HOST, fleet_of, placing_desk, serving

CLIENT, ENGINE, OPERATOR = "client-token-0123456789", "engine-token-0123456789", "operator-token-012345"
SECRET = "the-secret-of-a-client"
WITHIN = 20.0  # seconds that anything may take: generous, since it is only there to end a test that hangs
QUICK = ClientPatience(connections=64, head_seconds=0.4, body_seconds=0.4, stall_seconds=0.4)
ANSWER = json.dumps(
    {"choices": [{"index": 0, "text": "a", "finish_reason": "stop", "token_ids": [1]}], "usage": {}}
).encode()


@dataclass
class RawEngine:
    """An engine that answers everything, and remembers what reached it, byte for byte."""

    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    endless: bool = False  # whether it streams for ever
    sent: int = 0  # bytes of endless streams
    closed: asyncio.Event = field(default_factory=asyncio.Event)  # an endless stream was ended from the other side

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                if not head.startswith(b"GET /health"):
                    self.heads.append(head)
                    self.bodies.append(body)
                if self.endless and head.startswith(b"POST"):
                    await self._stream(writer)
                    break
                streams = b'"stream":true' in body
                answer = b"data: " + ANSWER + b"\n\ndata: [DONE]\n\n" if streams else ANSWER
                kind = b"text/event-stream" if streams else b"application/json"
                head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
                writer.write(head % (kind, len(answer)) + answer)
        writer.close()

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        chunk = b"data: " + b"x" * 65_536 + b"\n\n"
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"%x\r\n" % len(chunk) + chunk + b"\r\n")
                self.sent += len(chunk)
                await writer.drain()
                await asyncio.sleep(0.001)
        except ConnectionError:
            self.closed.set()


@dataclass
class World:
    """A gateway and its engine."""

    port: int
    engine: RawEngine

    async def say(self, data: bytes, *, patience: float = WITHIN) -> bytes:
        """Send bytes on a connection of their own; all that comes back until it is closed or nothing more comes."""
        reader, writer = await asyncio.open_connection(HOST, self.port)
        try:
            writer.write(data)
            return await read_all(reader, patience)
        finally:
            writer.close()

    async def status(self, data: bytes) -> int:
        """The status of the answer to one request, on a connection that ends with it; 0 if it is closed without."""
        return status_of(await self.say(data))


async def read_all(reader: asyncio.StreamReader, patience: float = WITHIN) -> bytes:
    """What comes until the connection is closed or reset, or nothing more comes."""
    found = b""
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(patience):
            while part := await reader.read(65_536):
                found += part
    return found


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def request(
    target: str = "/v1/completions",
    body: bytes = b'{"prompt": "a"}',
    *,
    method: str = "POST",
    token: str | None = CLIENT,
    headers: tuple[str, ...] = (),
    length: str | None = None,
) -> bytes:
    """A request as it goes over the wire."""
    lines = [f"{method} {target} HTTP/1.1", "host: x", "connection: close", *headers]
    if token is not None:
        lines.append(f"authorization: Bearer {token}")
    if method == "POST":
        lines.append(f"content-length: {len(body)}" if length is None else length)
    return "\r\n".join([line for line in lines if line] + ["", ""]).encode("latin-1") + (
        body if method == "POST" else b""
    )


@asynccontextmanager
async def world(folder: Path, rules: GatewayRules | None = None) -> AsyncIterator[World]:
    path = folder / "tokens"
    path.write_text(f"client {CLIENT}\nengine {ENGINE}\noperator {OPERATOR}\n")
    engine = RawEngine()
    server = await asyncio.start_server(engine.serve, HOST, 0)
    url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
    desk, _ = placing_desk(folder, [url])
    given = rules or GatewayRules(most_bytes=1 << 20)
    try:
        async with serving(Gateway(fleet_of([url]), replace(given, access=Access.read(path)), desk)) as port:
            yield World(port, engine)
    finally:
        server.close()


def with_world(folder: Path, test: Callable[[World], Awaitable[None]], rules: GatewayRules | None = None) -> None:
    async def run() -> None:
        async with world(folder, rules) as found, asyncio.timeout(2 * WITHIN):
            await test(found)

    asyncio.run(run())


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture(autouse=True)
def logged() -> Any:
    """No log of any test has a token or a body of a client in it, or more lines than records."""
    kept = _Kept()
    loggers = [logging.getLogger(name) for name in ("steelyard", "uvicorn")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.addHandler(kept)
        each.setLevel(logging.DEBUG)
    yield kept
    for each, level in zip(loggers, levels, strict=True):
        each.removeHandler(kept)
        each.setLevel(level)
    for line in kept.lines:
        assert not [secret for secret in (CLIENT, ENGINE, OPERATOR, SECRET) if secret in line], line
        assert "Traceback" not in line, line
        assert line.isprintable(), line


def test_tokens_that_do_not_count(tmp_path: Path, logged: _Kept) -> None:
    async def test(world: World) -> None:
        wrong = ["", "Bearer", "Bearer ", "Bearer wrong", f"Basic {CLIENT}", f"Token {CLIENT}", CLIENT]
        wrong += [
            f"Bearer{CLIENT}",
            f"Bearer {CLIENT} {CLIENT}",
            f"Bearer {CLIENT}x",
            f'Bearer "{CLIENT}"',
            f"Bearer,{CLIENT}",
        ]
        for value in wrong:
            lines = (f"authorization: {value}", f"x-api-key: {CLIENT}", f"cookie: token={CLIENT}")
            answer = await world.say(request(f"/v1/completions?access_token={CLIENT}", token=None, headers=lines))
            assert status_of(answer) == 401 and b"www-authenticate: Bearer" in answer, value
        for target, method, token, wanted in (
            ("/v1/completions", "POST", ENGINE, 403),
            ("/v1/trajectories/a/end", "POST", ENGINE, 403),
            ("/v1/trajectories/a", "GET", CLIENT, 403),
            ("/metrics", "GET", CLIENT, 403),
            ("/metrics", "GET", ENGINE, 403),
            ("/metrics", "GET", None, 401),
            ("/v1/models", "GET", None, 401),
            ("/metrics", "GET", OPERATOR, 200),
            ("/v1/trajectories/a", "GET", OPERATOR, 404),
            ("/health", "GET", None, 200),
            ("/openapi.json", "GET", None, 200),
        ):
            assert await world.status(request(target, method=method, token=token)) == wanted, (target, token)
        assert not world.engine.heads
        assert await world.status(request()) == 200
        assert any("401" in line for line in logged.lines)

    with_world(tmp_path, test)


def test_a_token_has_one_rate_however_it_is_written(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        lines = [
            f"authorization: {kind}{' ' * spaces}{CLIENT}"
            for kind in ("Bearer", "bearer", "BEARER")
            for spaces in (1, 2)
        ]
        answers = [await world.status(request(token=None, headers=(line,))) for line in lines]
        assert sorted(set(answers)) == [200, 429]

    with_world(tmp_path, test, GatewayRules(rates=Rates(1.0)))


def test_bodies_that_are_too_long(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        for length in ("1048577", "9" * 30, str(10**18)):
            told = request(length=f"content-length: {length}").replace(b"connection: close\r\n", b"")
            assert status_of(await world.say(told, patience=2.0)) in (400, 413), length
        chunk = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"
        endless = request(body=chunk * 40, length="transfer-encoding: chunked")
        assert status_of(await world.say(endless)) == 413
        assert not world.engine.heads

    with_world(tmp_path, test, GatewayRules(most_bytes=1 << 20, patience=QUICK))


BODIES = [
    b"",
    b"{",
    b"[1]",
    b"null",
    b'"prompt"',
    b'{"prompt": "a"} x',
    b'{"prompt": NaN}',
    b'{"prompt": "a", "x": Infinity}',
    b'{"prompt": "a", "x": -1e999}',
    b'{"prompt": "a", "x": ' + b"9" * 5_000 + b"}",
    b'{"prompt": "\xff"}',
    b'{"prompt": "\\ud800"}',
    b"\xef\xbb\xbf" + b'{"prompt": "a"}',
    b"\x00" * 100,
    b"[" * 100_000,
    b'{"prompt": "a", "x": ' + b"[" * 1_000 + b"]" * 1_000 + b"}",
    b'{"prompt": "a", "x": ' + b'{"a":' * 300 + b"1" + b"}" * 301,
    b'{"prompt": null}',
    b'{"prompt": "a", "messages": 5}',
    b'{"prompt": "a", "messages": [[]]}',
    b'{"prompt": "a", "messages": [{"content": "a"}]}',
    b'{"prompt": "a", "kv_transfer_params": {"remote_host": "10.0.0.1"}}',
    b'{"prompt": "a", "session_id": "a b"}',
    b'{"prompt": "a", "session_id": 5}',
    b'{"prompt": "a", "session_id": ""}',
]


def test_bodies_that_are_wrong_reach_no_engine(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        for body in BODIES:
            assert await world.status(request(body=body)) == 400, body[:60]
            if b"session_id" not in body:
                assert await world.status(request(body=body, headers=("x-session-id: a",))) == 400, body[:60]
        for turn in ("-1", "1.5", "1e3", "true", "100000", "9" * 40, "0x1", "1_0", "\u00b2"):
            lines = ("x-session-id: b", f"x-turn: {turn}")
            assert await world.status(request(headers=lines)) == 400, turn
        for body in (b'{"prompt": ["a", "b"]}', b'{"prompt": [[1], [2]]}', b'{"prompt": "a", "n": 2}'):
            assert await world.status(request(body=body, headers=("x-session-id: b",))) == 400
        assert not world.engine.bodies

    with_world(tmp_path, test)


def test_what_is_told_of_trajectories_is_checked(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        assert await world.status(request(headers=("x-session-id: a",))) == 200

        async def status(what: str, body: bytes) -> int:
            return await world.status(request(f"/v1/trajectories/a/{what}", body))

        for body in (
            b"{",
            b"[]",
            b'{"tokens": -1}',
            b'{"tokens": true}',
            b'{"tokens": 4294967296}',
            b'{"tokens": 1.0}',
        ):
            assert await status("tool_return", body) == 400, body
        for body in (b'{"outcome": "?"}', b'{"outcome": ["ok"]}', b'{"tool": 5}', b'{"tool": "%s"}' % (b"a" * 201)):
            assert await status("tool_return", body) == 400, body
        for body in (
            b'{"reward": "1"}',
            b'{"reward": true}',
            b'{"reward": NaN}',
            b'{"reward": 1e999}',
            b'{"reward": []}',
        ):
            assert await status("end", body) == 400, body
        assert await world.status(request("/v1/trajectories/b/abort", b"{}")) == 404
        assert await status("end", b'{"reward": 18446744073709551615}') == 200  # as a float
        assert await status("end", b"") == 200  # told twice
        assert await status("abort", b"{}") == 410
        assert await world.status(request(headers=("x-session-id: a", "x-turn: 1"))) == 410

    with_world(tmp_path, test)


TARGETS = [
    *("/", "//", "/v1", "/v1/", "//v1/completions", "/v1//completions", "/v1/completions/", "/v1/completions/."),
    *("/./v1/completions", "/v1/../v1/completions", "/v1/%2e%2e/v1/completions", "/v1%2fcompletions", "/v1%2Fmodels"),
    *("/v1/%63ompletions", "/v1/completions%00", "/v1/completions%20", "/v1/completions;a=b", "/V1/COMPLETIONS"),
    *(
        "/v1/completions%0d%0aX-Evil:%201",
        "/v1/completions\\",
        "/v1\\completions",
        "/%2fv1/completions",
        "/..;/metrics",
    ),
    *("http://127.0.0.1/v1/completions", "http://169.254.169.254/latest", "https://x/v1/completions", "*", "x", "x:80"),
    *(
        "/emulate/fault",
        "/abort_requests",
        "/v1/../emulate/fault",
        "/v1/%2e%2e/emulate/fault",
        "/v1/models/../../sleep",
    ),
    *("/sleep", "/wake_up", "/pause", "/resume", "/reset_prefix_cache", "/update_weights", "/collective_rpc"),
    *("/v1/load_lora_adapter", "/server_info", "/v1/trajectories", "/v1/trajectories/", "/v1/trajectories//end"),
    *(
        "/v1/trajectories/%00/end",
        "/v1/trajectories/a%0ab/end",
        "/v1/trajectories/a%20b/end",
        "/v1/trajectories/%C3%BC",
    ),
    "/v1/trajectories/" + "a" * 300 + "/end",
    "/" + "a" * 5_000,
]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "CONNECT", "OPTIONS"])
def test_paths_that_are_not_ours(tmp_path: Path, method: str) -> None:
    async def test(world: World) -> None:
        for target in TARGETS:
            status = await world.status(request(target, method=method, token=OPERATOR))
            assert status in (0, 400, 404, 405), (target, status)
        assert not world.engine.heads

    with_world(tmp_path, test)


def test_paths_of_a_real_engine_stay_its_own(tmp_path: Path) -> None:
    """An emulated engine has endpoints that end it."""

    async def run() -> None:
        async with served(50.0) as (engines, replicas):
            urls = [str(engine.base_url) for engine in engines]
            async with serving(Gateway(fleet_of(urls), GatewayRules(), placing_desk(tmp_path, urls)[0])) as port:
                found = World(port, RawEngine())
                for target in TARGETS:
                    assert await found.status(request(target, b'{"kind": "crash"}')) in (0, 400, 404, 405), target
                assert await found.status(request()) == 200
            assert not replicas[0].crashed.is_set()

    asyncio.run(run())


IDENTIFIERS = [
    *("a b", "a\tb", "a;b", "a,b", "a\\b", 'a"b', "a'b", "a%0d%0ab", "a?b", "a#b", "a&b", "<a>", "{a}", "$(a)", "`a`"),
    *("\u00fc", "a\u00a0b", "a\u0085b", "a" * 201, "../../etc/passwd\u00ff", "a|b", "a*b"),
]


def test_identifiers_with_odd_characters_are_refused(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        for name in ("x-session-id", "x-request-id", "x-group-id"):
            session = () if name == "x-session-id" else ("x-session-id: a",)
            for value in IDENTIFIERS:
                assert await world.status(request(headers=(*session, f"{name}: {value}"))) == 400, (name, value)
            assert await world.status(request(headers=(*session, f"{name}:"))) == 400
        assert not world.engine.heads
        odd = "A.b_c:d/e+f=g@h-1"
        assert await world.status(request(headers=(f"x-session-id: {odd}",))) == 200
        assert await world.status(request(f"/v1/trajectories/{odd}/end", b"{}")) == 200
        kept = await world.say(request(f"/v1/trajectories/{odd.replace('/', '%2F')}", method="GET", token=ENGINE))
        assert status_of(kept) == 200 and odd.encode() in kept

    with_world(tmp_path, test)


def test_nothing_of_a_head_reaches_an_engine_but_identifiers(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        lines = ("x-request-id: r1", "x-evil: 1", f"cookie: {SECRET}", "x-forwarded-for: 1.2.3.4", "transfer: x")
        assert await world.status(request(headers=lines)) == 200
        assert await world.status(request(headers=("x-session-id: s1", "x-group-id: g1", *lines[1:]))) == 200
        allowed = {b"host", b"content-length", b"content-type", b"x-request-id"}
        for head in world.engine.heads:
            names = {line.partition(b":")[0] for line in head.strip().split(b"\r\n")[1:]}
            assert names <= allowed, head
        assert b"x-request-id: r1" in world.engine.heads[0]
        assert b"x-request-id: s1.0.1" in world.engine.heads[1]
        assert CLIENT.encode() not in b"".join(world.engine.heads + world.engine.bodies)

    with_world(tmp_path, test)


HIDDEN = b"GET /metrics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + OPERATOR.encode() + b"\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + CLIENT.encode() + b"\r\n"
BODY = b'{"prompt": "a"}'
SMUGGLED = {
    "length and chunks": POST + b"content-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunks and length": POST + b"transfer-encoding: chunked\r\ncontent-length: 6\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two lengths": POST + b"content-length: 15\r\ncontent-length: 0\r\n\r\n" + BODY + HIDDEN,
    "equal lengths": POST + b"content-length: 15\r\ncontent-length: 15\r\n\r\n" + BODY + HIDDEN,
    "list of lengths": POST + b"content-length: 15, 15\r\n\r\n" + BODY + HIDDEN,
    "signed length": POST + b"content-length: +15\r\n\r\n" + BODY + HIDDEN,
    "negative length": POST + b"content-length: -1\r\n\r\n" + BODY + HIDDEN,
    "hexadecimal length": POST + b"content-length: 0xf\r\n\r\n" + BODY + HIDDEN,
    "length of spaces": POST + b"content-length: 1 5\r\n\r\n" + BODY + HIDDEN,
    "unknown coding": POST + b"transfer-encoding: xchunked\r\n\r\n" + BODY + HIDDEN,
    "identity": POST + b"transfer-encoding: identity\r\n\r\n" + BODY + HIDDEN,
    "chunked is not last": POST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two codings": POST + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    "space before colon": POST + b"transfer-encoding : chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
    "vertical tab": POST + b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "folded coding": POST + b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "folded identifier": POST + b"x-session-id: a\r\n b\r\ncontent-length: 15\r\n\r\n" + BODY + HIDDEN,
    "size that is no number": POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n" + HIDDEN,
    "signed size": POST + b"transfer-encoding: chunked\r\n\r\n+f\r\n" + BODY + b"\r\n0\r\n\r\n" + HIDDEN,
    "size beyond 64 bits": POST + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\n" + HIDDEN,
    "size too small": POST + b"transfer-encoding: chunked\r\n\r\n5\r\n" + BODY + b"\r\n0\r\n\r\n" + HIDDEN,
    "chunk without its end": POST + b"transfer-encoding: chunked\r\n\r\nf\r\n" + BODY + b"0\r\n\r\n" + HIDDEN,
    "bare LF after size": POST + b"transfer-encoding: chunked\r\n\r\nf\n" + BODY + b"\r\n0\r\n\r\n" + HIDDEN,
    "LF in extension": POST + b"transfer-encoding: chunked\r\n\r\nf;a\nb\r\n" + BODY + b"\r\n0\r\n\r\n" + HIDDEN,
    "CR in identifier": POST + b"x-request-id: a\rx-evil: 1\r\ncontent-length: 15\r\n\r\n" + BODY + HIDDEN,
    "NUL in identifier": POST + b"x-request-id: a\x00b\r\ncontent-length: 15\r\n\r\n" + BODY + HIDDEN,
    "NUL in name": POST + b"x-\x00: a\r\ncontent-length: 15\r\n\r\n" + BODY + HIDDEN,
    "no name": POST + b": a\r\ncontent-length: 15\r\n\r\n" + BODY + HIDDEN,
    "no colon": POST + b"content-length\r\n\r\n" + BODY + HIDDEN,
    "space before first header": b"POST /v1/completions HTTP/1.1\r\n x: 1\r\n"
    + POST.partition(b"\r\n")[2]
    + b"\r\n"
    + HIDDEN,
    "version 0.9": b"GET /v1/models\r\n\r\n" + HIDDEN,
    "version 3": b"GET /v1/models HTTP/3.0\r\nhost: x\r\n\r\n" + HIDDEN,
    "tunnel": b"CONNECT 10.0.0.1:80 HTTP/1.1\r\nhost: x\r\n\r\n" + HIDDEN,
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + HIDDEN,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN,
}


@pytest.mark.parametrize("name", SMUGGLED)
def test_requests_are_not_smuggled(tmp_path: Path, name: str) -> None:
    """One answer, a refusal, and the connection is closed: what is hidden behind it is not a request."""

    async def test(world: World) -> None:
        answer = await world.say(SMUGGLED[name])
        assert answer.count(b"HTTP/1.1 ") <= 1
        assert status_of(answer) in (0, 400, 413), answer[:200]
        assert b"steelyard_gateway" not in answer and not world.engine.heads

    with_world(tmp_path, test, GatewayRules(patience=QUICK))


@pytest.mark.parametrize("protocol", ["websocket", "h2c", "TLS/1.0"])
def test_no_other_protocol_is_spoken(tmp_path: Path, protocol: str) -> None:
    async def test(world: World) -> None:
        upgrade = (
            f"upgrade: {protocol}",
            "connection: upgrade",
            "sec-websocket-version: 13",
            "sec-websocket-key: YQ==",
        )
        for target in ("/v1/completions", "/metrics", "/"):
            answer = await world.say(request(target, method="GET", token=CLIENT, headers=upgrade))
            assert status_of(answer) in (400, 403, 404, 405), answer[:100]
        assert not world.engine.heads

    with_world(tmp_path, test, GatewayRules(patience=QUICK))


def test_slow_clients_are_closed(tmp_path: Path) -> None:
    """Heads, bodies, and bodies that nobody wants: a byte now and then keeps no connection open."""

    async def test(world: World) -> None:
        async def drip(data: bytes, rest: bytes) -> bytes:
            reader, writer = await asyncio.open_connection(HOST, world.port)
            writer.write(data)
            reading = asyncio.ensure_future(read_all(reader))
            while not reading.done():
                writer.write(rest)
                await asyncio.sleep(0.02)
            writer.close()
            return await reading

        open_head = POST + b"x-slow: "
        long_body = POST + b"content-length: 100000\r\n\r\n"
        unwanted = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n"
        unknown = b"POST /nowhere HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        trailers = POST + b"transfer-encoding: chunked\r\n\r\nf\r\n" + BODY + b"\r\n0\r\n"
        async with asyncio.timeout(WITHIN):
            assert status_of(await drip(b"", b"G")) in (400, 408)
            assert status_of(await drip(open_head, b"a")) == 408
            assert status_of(await drip(long_body, b" ")) == 408
            assert status_of(await drip(unwanted, b" ")) == 401
            assert status_of(await drip(unknown, b"1\r\na\r\n")) == 404
            assert status_of(await drip(trailers, b"x-t: 1\r\n")) == 408
            assert await world.say(b"") == b""
            answered = request(method="GET", target="/health", token=None).replace(b"connection: close\r\n", b"")
            assert status_of(await drip(answered + open_head, b"a")) == 200
        assert not world.engine.heads

    with_world(tmp_path, test, GatewayRules(patience=QUICK))


def test_heads_and_trailers_without_end_are_closed(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async def pour(data: bytes, rest: bytes) -> int:
            """How much it takes until the connection is closed."""
            reader, writer = await asyncio.open_connection(HOST, world.port)
            writer.write(data)
            poured = 0
            with suppress(ConnectionError):
                while not reader.at_eof():
                    writer.write(rest)
                    poured += len(rest)
                    await writer.drain()
                    await asyncio.sleep(0)
            writer.close()
            return poured

        much = b"a" * 65_536
        chunked = POST + b"transfer-encoding: chunked\r\n\r\nf\r\n" + BODY + b"\r\n0\r\n"
        async with asyncio.timeout(WITHIN):
            for data, rest in ((POST, b"x-a: " + much[:1_000] + b"\r\n"), (POST + b"x-a: ", much), (b"GET /", much)):
                assert await pour(data, rest) < 8 << 20
            assert await pour(chunked, b"x-a: " + much + b"\r\n") < 16 << 20
            assert await pour(chunked + b"x-a: ", much) < 16 << 20

    patient = replace(QUICK, head_seconds=WITHIN, body_seconds=WITHIN)
    with_world(tmp_path, test, GatewayRules(most_bytes=1 << 20, patience=patient))


def test_idle_connections_do_not_stop_others(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        idle = [await asyncio.open_connection(HOST, world.port) for _ in range(40)]
        for _, writer in idle[::2]:
            writer.write(POST)
        for _ in range(10):
            assert await world.status(request()) == 200
        await asyncio.sleep(0.05)
        still_open = [reader for reader, _ in idle if not reader.at_eof()]
        assert len(still_open) <= 8
        for _, writer in idle:
            writer.close()

    patient = ClientPatience(connections=8)
    with_world(tmp_path, test, GatewayRules(patience=patient))


def test_connections_are_refused_while_all_are_busy(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.engine.endless = True
        busy = [await asyncio.open_connection(HOST, world.port) for _ in range(4)]
        for reader, writer in busy:
            writer.write(POST + b"content-length: 15\r\n\r\n" + BODY)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert await world.status(request()) == 503
        for _, writer in busy:
            writer.close()

    with_world(tmp_path, test, GatewayRules(patience=ClientPatience(connections=4)))


def test_a_client_that_does_not_read_is_closed(tmp_path: Path) -> None:
    """Its engine is told, so nothing piles up."""

    async def test(world: World) -> None:
        world.engine.endless = True
        _, writer = await asyncio.open_connection(HOST, world.port, limit=1024)
        writer.write(POST + b"content-length: 15\r\n\r\n" + BODY)
        async with asyncio.timeout(WITHIN):
            await world.engine.closed.wait()
        writer.close()

    with_world(tmp_path, test, GatewayRules(patience=QUICK))


def test_what_clients_send_is_not_logged(tmp_path: Path, logged: _Kept) -> None:
    """The fixture checks all lines of all tests; here are some that are made to be logged."""

    async def test(world: World) -> None:
        body = json.dumps({"prompt": SECRET, "messages": SECRET}).encode()
        assert await world.status(request(body=body)) == 400
        assert (
            await world.status(request(f"/v1/completions?key={SECRET}", b"{", headers=(f"x-session-id: {SECRET} ?",)))
            == 400
        )
        assert await world.status(request("/nowhere%0a%1b[31mINFO", method="GET")) == 404
        assert await world.status(request("/v1/trajectories/a%0ab/end", b"{}")) == 400
        assert await world.status(POST + b"x-a: \x00" + SECRET.encode() + b"\r\n\r\n") == 400
        assert [line for line in logged.lines if "/nowhere%0a" in line]

    with_world(tmp_path, test)


# -- streams of turns ---------------------------------------------------------------------------------------------


def events_of(answer: bytes) -> list[bytes]:
    """The data of a stream's events, without the end."""
    body = answer.partition(b"\r\n\r\n")[2]
    found = re.findall(rb"data: (.*)\n\n", body)
    assert found and found[-1] == b"[DONE]"
    return found[:-1]


@asynccontextmanager
async def emulated(folder: Path, speed: float) -> AsyncIterator[tuple[World, TurnDesk]]:
    async with served(speed) as (engines, _):
        desk, _ = placing_desk(folder, [str(engine.base_url) for engine in engines])
        async with serving(Gateway(None, GatewayRules(), desk)) as port:
            yield World(port, RawEngine()), desk


def test_a_stream_that_breaks_off_does_not_look_whole(tmp_path: Path) -> None:
    async def run() -> None:
        async with emulated(tmp_path, 1.0) as (world, desk):
            body = b'{"prompt": "a", "max_tokens": 10000, "ignore_eos": true, "stream": true}'
            asking = asyncio.ensure_future(world.say(request(body=body, headers=("x-session-id: a",))))
            while "a" not in desk.running or not desk.running["a"].chunks:
                await asyncio.sleep(0.01)
            assert await world.status(request("/v1/trajectories/a/abort", b"{}")) == 200
            events = [json.loads(each) for each in events_of(await asking)]
            assert "choices" in events[0] and events[-1]["error"]["code"] == 502

    asyncio.run(run())


def test_a_turn_that_begins_again_is_not_streamed_as_one(tmp_path: Path) -> None:
    """Chunks that were sent do not count any more, and the client is told so."""

    async def run() -> None:
        async with emulated(tmp_path, 1.0) as (world, desk):
            body = b'{"prompt": "a", "max_tokens": 10000, "ignore_eos": true, "stream": true}'
            asking = asyncio.ensure_future(world.say(request(body=body, headers=("x-session-id: a",))))
            while "a" not in desk.running or not desk.running["a"].chunks:
                await asyncio.sleep(0.01)
            desk.running["a"].chunks = []
            assert "error" in json.loads(events_of(await asking)[-1])
            desk.abort(["a"])

    asyncio.run(run())


def test_a_turn_may_be_asked_for_whole_and_then_as_a_stream(tmp_path: Path) -> None:
    async def run() -> None:
        async with emulated(tmp_path, 10.0) as (world, _):
            body = b'{"prompt": "a", "max_tokens": 50, "ignore_eos": true%b}'
            headers = ("x-session-id: a", "x-turn: 0")
            whole = asyncio.ensure_future(world.say(request(body=body % b"", headers=headers)))
            streams = [world.say(request(body=body % b', "stream": true', headers=headers)) for _ in range(3)]
            answers = [json.loads(events_of(answer)[0]) for answer in await asyncio.gather(*streams)]
            assert [json.loads((await whole).partition(b"\r\n\r\n")[2])] * 3 == answers

    asyncio.run(run())


def test_streams_of_one_turn_get_all_of_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with emulated(tmp_path, 10.0) as (world, _):
            body = b'{"prompt": "a", "max_tokens": 50, "ignore_eos": true, "stream": true}'
            asked = [world.say(request(body=body, headers=("x-session-id: a", "x-turn: 0"))) for _ in range(3)]
            texts = [re.findall(rb'"token_ids": ?\[([\d, ]*)\]', answer) for answer in await asyncio.gather(*asked)]
            assert texts[0] == texts[1] == texts[2] and len(b",".join(texts[0]).split(b",")) == 50

    asyncio.run(run())
