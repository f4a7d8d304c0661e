"""Answers of engines: nothing is lost or changes places, and first tokens go before others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.live.upstream import Upstream, UpstreamAnswer, UpstreamFailure

HEAD = b"HTTP/1.1 200 OK\r\nx-number: %d\r\ntransfer-encoding: chunked\r\n\r\n"
STREAMS = 60  # that go on while another begins


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def served(handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]) -> tuple[Upstream, object]:
    """An engine's server, whose connections are given to ``handle`` once a request has come."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        handle(reader, writer)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    return Upstream("127.0.0.1", server.sockets[0].getsockname()[1]), server


def test_a_first_part_goes_before_further_parts_that_came_earlier() -> None:
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

    asyncio.run(main())
    before = order.index("last") - 1  # its own part is in the order, too
    assert len(order) == STREAMS + 2
    assert before < STREAMS // 2, f"{before} further parts were read before the first one"


@settings(max_examples=25)
@given(
    st.lists(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=8), min_size=1, max_size=12),
    st.booleans(),
)
def test_parts_come_whole_and_in_order_also_if_the_engine_breaks_off(
    answers: Sequence[Sequence[bytes]], breaks: bool
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

    asyncio.run(main())
