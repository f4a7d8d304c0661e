"""Answers of engines: nothing is lost or changes places, and first tokens go before others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.live.answers import UpstreamAnswer, UpstreamFailure
from steelyard.live.loop import run_on_uvloop
from steelyard.live.upstream import Upstream

HEAD = b"HTTP/1.1 200 OK\r\nx-number: %d\r\ntransfer-encoding: chunked\r\n\r\n"
STREAMS = 60  # that go on while another begins
Run = Callable[[Coroutine[Any, Any, None]], None]
RUNS = pytest.mark.parametrize("run", [asyncio.run, run_on_uvloop])


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def served(handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]) -> tuple[Upstream, object]:
    """An engine's server, whose connections are given to ``handle`` once a request has come."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        handle(reader, writer)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    return Upstream("127.0.0.1", server.sockets[0].getsockname()[1]), server


@RUNS
def test_a_first_part_goes_before_further_parts_that_came_earlier(run: Run) -> None:
    order: list[str] = []

    async def read(name: str, answer: UpstreamAnswer) -> None:
        while await answer.take() is not None:
            order.append(name)

    async def main() -> None:
        writers: list[asyncio.StreamWriter] = []
        upstream, _ = await served(lambda _, writer: writers.append(writer))
        asking = [asyncio.ensure_future(upstream.ask("POST", "/", {})) for _ in range(STREAMS + 1)]
        while len(writers) <= STREAMS:
            await asyncio.sleep(0.01)
        for number, each in enumerate(writers):
            each.write(HEAD % number)
        answers = await asyncio.gather(*asking)
        for each in writers[:-1]:
            each.write(chunk(b"first"))
        readers = [asyncio.ensure_future(read("other", each)) for each in answers]
        while len(order) < STREAMS:
            await asyncio.sleep(0.01)
        order.clear()
        for each in writers[:-1]:  # nothing else runs meanwhile: all of it is there at once
            each.write(chunk(b"further"))
        writers[-1].write(chunk(b"first of the last") + b"0\r\n\r\n")
        numbers = [int(answer.headers["x-number"]) for answer in answers]
        await readers[numbers.index(STREAMS)]
        order.append("last")
        for each in writers[:-1]:
            each.write(b"0\r\n\r\n")
        await asyncio.gather(*readers)

    run(main())
    before = order.index("last") - 1  # its own part is in the order, too
    assert len(order) == STREAMS + 2
    assert before < STREAMS // 4, f"{before} further parts were read before the first one"


@RUNS
@settings(max_examples=25)
@given(
    st.lists(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=8), min_size=1, max_size=12),
    st.booleans(),
)
def test_parts_come_whole_and_in_order_also_if_the_engine_breaks_off(
    run: Run, answers: Sequence[Sequence[bytes]], breaks: bool
) -> None:
    async def main() -> None:
        coming = iter(answers)

        def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            data = next(coming)
            writer.write(HEAD % 0)
            for part in data:
                writer.write(chunk(part))
            if breaks:
                writer.close()
            else:
                writer.write(b"0\r\n\r\n")

        upstream, _ = await served(answer)

        async def whole() -> tuple[bytes, bool]:
            found, parts = await upstream.ask("POST", "/", {}), list[bytes]()
            with suppress(UpstreamFailure):
                while (part := await found.take()) is not None:
                    parts.append(part)
                return b"".join(parts), False
            return b"".join(parts), True

        results = await asyncio.gather(*(whole() for _ in answers))
        assert sorted(results) == sorted((b"".join(parts), breaks) for parts in answers)

    run(main())


@RUNS
def test_a_connection_is_used_again_after_an_answer_that_flowed_and_its_loss_is_noticed(run: Run) -> None:
    async def main() -> None:
        writers: list[asyncio.StreamWriter] = []

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            with suppress(asyncio.IncompleteReadError):
                while True:
                    await reader.readuntil(b"\r\n\r\n")
                    for part in (HEAD % 0, chunk(b"first"), chunk(b"second"), b"0\r\n\r\n"):
                        writer.write(part)
                        await asyncio.sleep(0.01)

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        upstream = Upstream("127.0.0.1", server.sockets[0].getsockname()[1])
        for _ in range(3):
            parts: list[bytes] = []
            await (await upstream.ask("POST", "/", {})).each(parts.append)
            assert b"".join(parts) == b"firstsecond"
        assert len(writers) == 1
        writers[0].close()
        await asyncio.sleep(0.05)
        assert not upstream.idle[0].open

    run(main())


@RUNS
def test_a_part_that_cannot_be_used_ends_its_answer(run: Run) -> None:
    """What went wrong reaches the one who waits, and the engine is told to stop."""

    async def main() -> None:
        closed = asyncio.Event()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD % 0 + chunk(b"first"))
            await asyncio.sleep(0.01)
            writer.write(chunk(b"second"))
            await reader.read()
            closed.set()

        def use(part: bytes) -> None:
            if b"second" in part:
                raise KeyError("second")

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        upstream = Upstream("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(KeyError, match="second"):
            await (await upstream.ask("POST", "/", {})).each(use)
        async with asyncio.timeout(10):
            await closed.wait()

    run(main())


@RUNS
def test_streams_come_and_go_without_leaving_files_open(run: Run) -> None:
    """Those that end, those that are given up and those that break off, one after the other and together."""

    async def main() -> None:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            request = await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD % 0 + chunk(b"first"))
            await asyncio.sleep(0.01)
            writer.write(chunk(b"second"))
            await asyncio.sleep(0.01)
            if b"/ends" in request:
                writer.write(b"0\r\n\r\n")
                await asyncio.sleep(0.01)
            writer.close()

        before = open_files()
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        upstream = Upstream("127.0.0.1", server.sockets[0].getsockname()[1])

        async def ask(how: str) -> None:
            answer = await upstream.ask("POST", how, {})
            await answer.take()
            if how == "/given-up":
                answer.abandon()
                return
            with suppress(UpstreamFailure):
                assert await answer.whole() == b"second" and how == "/ends"

        ways = ("/ends", "/given-up", "/breaks-off")
        for _ in range(3):
            for how in ways:
                await ask(how)
            await asyncio.gather(*(ask(how) for how in ways * 4))
        upstream.close()
        for _ in range(100):
            if open_files() <= before + 1:  # that of the server
                break
            await asyncio.sleep(0.02)
        assert open_files() <= before + 1
        server.close()

    run(main())


def open_files() -> int:
    """Sockets and selectors of this process."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of this very list is gone
            found.append(str(each.readlink()))
    return sum("eventpoll" in each or "socket" in each for each in found)
