"""Streams of turns: every client gets all chunks once and in order, whether they are written at once or sent later."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.live.journal import StoredTurn
from steelyard.live.live_trajectory import LiveTrajectory
from steelyard.live.requests import Client
from steelyard.live.trajectories import TurnStream

DONE = b"data: [DONE]\n\n"


class Reader:
    """A client that reads only now and then, and the connection to it."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.at_once = 0
        self.reads = asyncio.Event()
        self.reads.set()

    async def receive(self) -> dict[str, Any]:
        raise AssertionError("a stream reads nothing")

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        if message.get("body"):
            self.got.append(message["body"])

    def write(self, part: bytes) -> bool:
        if self.reads.is_set():
            self.got.append(part)
            self.at_once += 1
        return self.reads.is_set()


async def streamed(does: list[str], readers: list[Reader]) -> list[bytes]:
    """Stream a turn to clients. A letter of ``does`` is a moment: a chunk comes (c), the first client stops reading (s)
    or goes on (g), or everybody who can does something (-). Returns the chunks."""
    live, ended = LiveTrajectory("a", "", 0, 1), asyncio.Event()
    made: list[bytes] = []

    async def turn() -> StoredTurn:
        try:
            await ended.wait()
            return StoredTurn(0, 1, len(made), {})
        finally:
            live.task = None
            live.chunk_came.set()

    task = live.task = asyncio.ensure_future(turn())
    streams = [TurnStream(live, Client(each.receive, each.send, each.write)) for each in readers]
    running = [asyncio.ensure_future(each.run(task, lambda: None)) for each in streams]
    for each in does:
        if each == "c":
            made.append(b"data: %d\n\n" % len(made))
            live.pass_on(made[-1])
        elif each == "-":
            await asyncio.sleep(0)
        elif each == "s":
            readers[0].reads.clear()
        else:
            readers[0].reads.set()
    ended.set()
    readers[0].reads.set()
    await asyncio.gather(*running)
    return made


@settings(max_examples=300)
@given(st.lists(st.sampled_from("cccc--sg"), max_size=60), st.integers(1, 3))
def test_all_chunks_come_once_and_in_order(does: list[str], clients: int) -> None:
    async def main() -> None:
        readers = [Reader() for _ in range(clients)]
        made = await streamed(["c", *does], readers)
        for each in readers:
            assert b"".join(each.got) == b"".join(made) + DONE

    asyncio.run(main())


def test_chunks_after_the_first_are_written_at_once() -> None:
    """No task has to wake up for one, which is what a stream would cost most."""

    async def main() -> None:
        reader = Reader()
        await streamed([*"-c----", *"cccccccccc"], [reader])
        assert reader.at_once == 10

    asyncio.run(main())
