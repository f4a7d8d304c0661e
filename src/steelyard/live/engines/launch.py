"""Starts engines as processes of their own, waits until they answer, and ends them."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from steelyard.errors import UserError
from steelyard.files.reading import opened
from steelyard.files.writing import appending
from steelyard.live.engines import leash
from steelyard.live.engines.api import EngineError
from steelyard.live.engines.commands import EngineCommand
from steelyard.live.engines.http import engine_address

_SIGNALS = 128  # exit codes above are of signals
_LOOK_SECONDS = 0.2  # between two looks whether an engine answers; chosen
_TAIL_BYTES = 16 << 10  # of a log that are looked at for its last lines
_TAIL_LINES = 15  # that an error shows; chosen
_MARGIN_SECONDS = 5.0  # for the leash to end after the grace time; chosen


class EngineHost(Protocol):
    """Where an engine runs."""

    @property
    def url(self) -> str:
        """Its address."""

    @property
    def ended(self) -> str:
        """How its process has ended; empty while it runs, or if nobody here would know."""

    async def stop(self) -> None:
        """End it, if it is ours."""


@dataclass(frozen=True)
class AdoptedEngine:
    """An engine that somebody else started, and ends."""

    url: str
    ended: str = ""

    async def stop(self) -> None:
        """It goes on: it is not ours."""


def adopt(url: str) -> AdoptedEngine:
    """An engine that runs already."""
    return AdoptedEngine(engine_address(url))


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens at now. An engine that finds it taken after all ends, and `wait` tells."""
    with socket.create_server((host, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class EngineProcess:
    """An engine that was started here. It ends with this process, however that ends.

    On Linux it also ends with the thread that started it, so start engines from a thread that stays.
    """

    def __init__(self, url: str, process: asyncio.subprocess.Process, log: Path, grace: float) -> None:
        self.url = url
        self._process, self._log, self._grace = process, log, grace

    @classmethod
    async def start(
        cls, command: EngineCommand, url: str, log: Path, *, cwd: Path | None = None, grace: float = 10.0
    ) -> EngineProcess:
        """Start a command that will serve at a URL. What it prints is added to a file.

        It has ``grace`` seconds to end when it is told to, before it is killed with all processes that it started.
        """
        words = [sys.executable, "-I", "-S", str(leash.__file__), str(os.getpid()), str(grace), *command.words]
        environment = {**os.environ, **command.environment}
        with appending(log) as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *words,
                    cwd=cwd,
                    env=environment,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output.fileno(),
                    stderr=output.fileno(),
                    start_new_session=True,  # Ctrl-C in a terminal is for the agent, which ends its engines itself
                )
            except (OSError, ValueError) as problem:  # ValueError: a NUL in a word
                raise UserError(f"{command.words[0]}: cannot be started in {cwd or 'this folder'}: {problem}") from None
        return cls(engine_address(url), process, log, grace)

    @property
    def ended(self) -> str:
        code = self._process.returncode
        if code is None:
            return ""
        number = -code if code < 0 else code - _SIGNALS
        return f"ended by signal {number}" if number > 0 else f"ended with exit code {code}"

    async def wait(self, healthy: Callable[[], Awaitable[bool]], seconds: float) -> None:
        """Wait until it answers. If it does not in time, it is stopped, and the error has its last lines."""
        until = time.monotonic() + seconds
        try:
            while not self.ended:
                if await healthy() and not self.ended:
                    return
                if time.monotonic() >= until:
                    break
                await asyncio.sleep(_LOOK_SECONDS)
        except BaseException:
            await self.stop()
            raise
        why = self.ended or f"not healthy after {seconds:g} s"
        await self.stop()
        raise EngineError(self.url, "start", "\n".join([f"{why}; {self._log} ends with:", *self.last_lines()]))

    async def over(self) -> None:
        """Wait until it ends by itself, which is an error with its last lines."""
        await self._process.wait()
        raise EngineError(self.url, "run", "\n".join([f"{self.ended}; {self._log} ends with:", *self.last_lines()]))

    async def stop(self) -> None:
        """End it and wait until it has ended. Does nothing if it has."""
        if self._process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), self._grace + _MARGIN_SECONDS)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()  # the system then kills the engine
            await self._process.wait()

    def last_lines(self) -> list[str]:
        """The end of what it has printed."""
        with opened(self._log) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
        return [line for line in text.splitlines() if line.strip()][-_TAIL_LINES:]
