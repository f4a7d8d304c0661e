"""`python -m bench.gateway_engine FOLDER NUMBER`: an engine of a run that notes when it has read a request, and when
its first token leaves. Only of requests that `python -m bench.gateway` probes with.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple, TextIO

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from steelyard.emulate.servers import read_at
from steelyard.live.emulated.node import EmulatedNode
from steelyard.live.emulated.run import EmulatedEnginePart, EmulatedRun
from steelyard.live.engines.leash import signal_at_end_of_parent

PROBES = ("direct.", "probe.")  # how names of these requests begin; a number follows


class Stay(NamedTuple):
    """Which engine a request was at, when it had been read, and when its first token left."""

    engine: int
    read: float
    left: float


class _Noting:
    """Notes times around an application."""

    def __init__(self, app: ASGIApp, notes: TextIO) -> None:
        self._app, self._notes = app, notes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = dict(scope.get("headers", ())).get(b"x-request-id", b"").decode()
        if not name.startswith(PROBES):
            await self._app(scope, receive, send)
            return
        left = 0.0

        async def sending(message: Message) -> None:
            nonlocal left
            if message.get("body"):
                left = left or time.monotonic()
            await send(message)

        await self._app(scope, receive, sending)
        key = ".".join(name.split(".")[:2])  # the gateway adds the turn and its epoch
        self._notes.write(orjson.dumps([key, read_at(scope), left]).decode() + "\n")


class _NotingNode(EmulatedNode):
    """Starts engines that note times."""

    notes: TextIO

    def around(self, app: ASGIApp) -> ASGIApp:
        return _Noting(super().around(app), self.notes)


class Notes:
    """What the engines of a run have noted so far. They must have started."""

    def __init__(self, folder: Path) -> None:
        paths = folder.glob("engine-*.notes")
        self._files = {int(path.stem.partition("-")[2]): path.open("rb") for path in paths}
        self._stays: dict[str, Stay] = {}

    def stay(self, name: str) -> Stay | None:
        """Of a request; None if its engine has not noted it yet."""
        if name not in self._stays:
            for engine, file in self._files.items():
                rows = (orjson.loads(line) for line in file)
                self._stays |= {key: Stay(engine, read, left) for key, read, left in rows}
        return self._stays.get(name)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def main(folder: Path, number: int) -> None:
    """Run an engine until its parent ends it."""
    signal_at_end_of_parent(signal.SIGKILL)
    run = EmulatedRun.read(folder)
    part = EmulatedEnginePart(run, number)
    node = _NotingNode(run.setup, run.speed, run.addresses.listen, run.addresses.access)
    with (folder / f"engine-{number}.notes").open("a", buffering=1, encoding="utf-8") as node.notes:
        part.node = node
        asyncio.run(part.run(asyncio.Event()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
