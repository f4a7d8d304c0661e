"""`python -m bench.gateway_work`: CPU time of the gateway for a part of a stream and for a turn.

Here the gateway is a process of its own, and this one plays everything around it: engines, a controller that places
each turn at once, and clients. Engines send the tokens of a step to all streams at once, and the next step begins when
all have come. So the gateway does the same work however busy the machine is, unlike in `python -m bench.gateway`.

Given ``serve FOLDER``, it is that gateway.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

from bench.gateway import asked, session_head, whole_answer
from steelyard.balance.commands import Place
from steelyard.balance.log import command_line
from steelyard.emulate.servers import listen
from steelyard.live.addresses import HOST, RunAddresses
from steelyard.live.loop import run_on_uvloop
from steelyard.live.member import Address
from steelyard.live.parts import GatewayPart, free_ports
from steelyard.live.turn_runner import DeskSettings
from steelyard.live.wire import messages, packed

_STREAMS, _STEPS, _WARM = 200, 250, 50
_TURNS, _AT_ONCE, _TURN_TOKENS, _PROMPT = 1_500, 8, 256, 512
_ROUNDS = 5
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n"
_CHUNK = {"id": "cmpl-stream-0", "object": "text_completion", "created": 1_700_000_000, "model": "llama-3.1-8b"}
_CHOICE = {"index": 0, "text": " word", "logprobs": None, "finish_reason": None, "token_ids": [12345]}


class _Around:
    """Engines, controller and clients of a gateway."""

    def __init__(self, gateway: int) -> None:
        self._gateway = gateway
        self._engines: list[asyncio.StreamWriter] = []  # connections of streams
        self._clients: list[asyncio.StreamReader] = []
        self._placed = 0
        self.told = 0  # bytes of a step that a client gets

    async def engine(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection to an engine. Whole answers come at once, streams when a step is made."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                body = orjson.loads(await reader.readexactly(size))
                if body["stream"]:
                    writer.write(_HEAD % b"text/event-stream" + b"transfer-encoding: chunked\r\n\r\n")
                    self._engines.append(writer)
                    return
                data = _answer(len(body["prompt"]), body["max_tokens"])
                writer.write(_HEAD % b"application/json" + b"content-length: %d\r\n\r\n" % len(data) + data)

    async def controller(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Places every turn that wants an engine on the first."""
        coming = messages(reader)
        await anext(coming)
        engines = {"0": {"url": f"http://{HOST}:{self.port}", "epoch": 0, "version": 1, "gpus": 1}}
        writer.write(packed({"welcome": {"fence": 1, "notice": {"engines": engines}, "state": {}, "at": [-1, -1]}}))
        async for message in coming:
            for event in message.get("events", ()):
                if event["kind"] in ("Begun", "Returned"):
                    self._placed += 1
                    line = command_line(Place(event["trajectory"], 0))
                    writer.write(f'{{"id":[{self._placed},0],"command":{line}}}\n'.encode())
            writer.write(packed({"acknowledged": message["report"]}))

    port = 0  # of the engine

    async def stream(self, name: str, going: asyncio.Event) -> None:
        """A client of a stream: gives its answer to the steps, and leaves at the end."""
        body = {"prompt": list(range(64)), "max_tokens": 1 << 20, "stream": True}
        async with asked(self._gateway, "/v1/completions", body, session_head(name)) as reader:
            self._clients.append(reader)
            await going.wait()

    async def steps(self, count: int) -> None:
        """So many tokens of every stream."""
        for _ in range(count):
            for engine in self._engines:
                engine.write(_PART)
            await asyncio.gather(*(_token(client) for client in self._clients))

    async def opened(self) -> None:
        """Wait until all streams are under way."""
        while len(self._engines) < _STREAMS:
            await asyncio.sleep(0.01)
        for engine in self._engines:
            engine.write(_PART)
        await asyncio.gather(*(client.readuntil(b"\r\n\r\n") for client in self._clients))
        await asyncio.gather(*(_token(client) for client in self._clients))

    async def turns(self, name: str) -> None:
        """Trajectories of two turns, several at once."""
        prompt = list(range(_PROMPT))

        async def play(number: int) -> None:
            for each in range(number, _TURNS // 2, _AT_ONCE):
                session = f"{name}.{each}"
                for turn in range(2):
                    body = {"prompt": prompt * (turn + 1), "max_tokens": _TURN_TOKENS}
                    await whole_answer(self._gateway, "/v1/completions", body, session_head(session))
                await whole_answer(self._gateway, f"/v1/trajectories/{session}/end", {})

        await asyncio.gather(*(play(each) for each in range(_AT_ONCE)))


async def _token(client: asyncio.StreamReader) -> None:
    """One token of a stream: an event, in a chunk of its own."""
    size = int(await client.readuntil(b"\r\n"), 16)
    await client.readexactly(size + 2)


def _answer(prompt: int, tokens: int) -> bytes:
    choice = _CHOICE | {"text": " word" * tokens, "token_ids": list(range(tokens)), "finish_reason": "length"}
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
    return orjson.dumps(_CHUNK | {"choices": [choice], "usage": usage})


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_PART = _chunked(b"data: " + orjson.dumps(_CHUNK | {"choices": [_CHOICE]}) + b"\n\n")


@asynccontextmanager
async def _gateway(folder: Path) -> AsyncIterator[tuple[int, _Around]]:
    """The gateway's process, and what is around it."""
    control, port = free_ports(2)
    around = _Around(port)
    servers = [
        await asyncio.start_server(around.engine, sock=listen(HOST, 0), limit=1 << 20),
        await asyncio.start_server(around.controller, HOST, control, limit=1 << 20),
    ]
    around.port = servers[0].sockets[0].getsockname()[1]
    command = [sys.executable, "-m", "bench.gateway_work", "serve", str(folder), str(control), str(port)]
    with subprocess.Popen(command) as process:
        try:
            await _ready(port)
            yield process.pid, around
        finally:
            process.kill()
            for each in servers:
                each.close()


async def _ready(port: int) -> None:
    while True:
        with suppress(OSError, RuntimeError):
            await whole_answer(port, "/v1/completions", {"prompt": [1], "max_tokens": 1}, session_head("first"))
            return
        await asyncio.sleep(0.1)


def _cpu_us(pid: int) -> float:
    """CPU time that a process has used, in microseconds."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text(encoding="utf-8").split()[0]) for each in tasks) / 1e3


async def measure() -> tuple[list[float], list[float]]:
    """CPU time per part and per turn, round by round."""
    parts, turns = [], []
    with tempfile.TemporaryDirectory() as folder:
        async with _gateway(Path(folder)) as (pid, around):
            for number in range(_ROUNDS + 1):
                before = _cpu_us(pid)
                await around.turns(f"turn-{number}")
                turns.append((_cpu_us(pid) - before) / _TURNS)
            going = asyncio.Event()
            clients = [asyncio.ensure_future(around.stream(f"stream-{each}", going)) for each in range(_STREAMS)]
            await around.opened()
            await around.steps(_WARM)
            for _ in range(_ROUNDS):
                before = _cpu_us(pid)
                await around.steps(_STEPS)
                parts.append((_cpu_us(pid) - before) / (_STREAMS * _STEPS))
            going.set()
            await asyncio.gather(*clients)
    return parts, turns[1:]


def _serve(folder: Path, control: int, port: int) -> None:
    part = GatewayPart(
        RunAddresses(folder), folder / "journal.db", port, lambda: Address(HOST, control), DeskSettings(by_token=False)
    )
    run_on_uvloop(part.run(asyncio.Event()))


def main() -> None:
    """Print medians of the rounds, and their ranges."""
    if sys.argv[1:2] == ["serve"]:
        _serve(Path(sys.argv[2]), *map(int, sys.argv[3:5]))
        return
    table = Table("CPU time of the gateway, microseconds", "median", "least", "most", box=None)
    for name, found in zip(("a part of a stream", "a turn"), asyncio.run(measure()), strict=True):
        table.add_row(name, *(f"{each:.1f}" for each in (statistics.median(found), min(found), max(found))))
    Console().print(table)


if __name__ == "__main__":
    main()
