"""A member's side of the connection to the controller. It reconnects for ever, to whichever controller answers."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from steelyard.balance.encoding import encode
from steelyard.balance.kinds import Command, Event
from steelyard.errors import UserError
from steelyard.live.upstream import is_own, notice_loss
from steelyard.live.wire import MOST_BYTES, Message, Role, command_of, messages, packed

log = logging.getLogger("steelyard.member")

_CONNECT_SECONDS = 5.0  # to a machine that may be gone; chosen
_RETRY_SECONDS = 0.2  # between two attempts to connect; chosen


class Address(NamedTuple):
    """Where the controller listens, and the token that it wants to see."""

    host: str
    port: int
    token: str = ""


class Duties(Protocol):
    """What a member does when the controller tells it something."""

    def catch_up(self, state: Message) -> None:
        """A new member is told how things stand. Commands from now on follow."""

    def carry_out(self, command: Command) -> None:
        """A command. Each comes once, in order."""

    def notice(self, notice: Message) -> None:
        """The controller tells something that is no command, such as new addresses of engines."""


class RunMember:
    """Reports events and receives commands. ``name`` is new with every start of the process."""

    def __init__(self, address: Callable[[], Address], role: Role, duties: Duties) -> None:
        self.name = f"{role}-{secrets.token_hex(8)}"
        self.connected = asyncio.Event()
        self.over = asyncio.Event()  # the controller has said that the run is over
        self._address, self._role, self._duties = address, role, duties
        self._unacknowledged: deque[tuple[int, Message]] = deque()
        self._reports = 0
        self._seen: list[int] | None = None  # identity of the last command
        self._fence = 0  # of the newest controller
        self._writer: asyncio.StreamWriter | None = None
        self._acknowledged = asyncio.Event()

    def report(self, *events: Event) -> None:
        """Report events. They reach the controller once, in order, even if it is down at present."""
        self._send({"events": [encode(event, kind=True) for event in events]})

    def tell(self, name: str, value: Any) -> None:
        """Report a fact that is no event, such as where new weights lie."""
        self._send({"fact": name, "value": value})

    async def decided(self) -> None:
        """Wait until all reports so far are decided. Commands to this member that follow from them have come then."""
        last = self._reports
        while self._unacknowledged and self._unacknowledged[0][0] <= last:
            self._acknowledged.clear()
            await self._acknowledged.wait()

    async def run(self) -> None:
        """Stay connected until cancelled."""
        while True:
            with suppress(OSError, TimeoutError, UserError):  # UserError: its address cannot be read at present
                await self._converse()
            self._writer = None
            self.connected.clear()
            await asyncio.sleep(_RETRY_SECONDS)

    def _send(self, report: Message) -> None:
        self._reports += 1
        message = {"report": self._reports, **report}
        self._unacknowledged.append((self._reports, message))
        if self._writer is not None and self.connected.is_set():
            self._writer.write(packed(message))

    async def _converse(self) -> None:
        """One connection, until it breaks off."""
        address = self._address()
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(address.host, address.port, limit=MOST_BYTES)
        try:
            if is_own(writer.transport):
                return
            notice_loss(writer.transport)
            hello = {"role": self._role, "name": self.name, "seen": self._seen, "token": address.token}
            writer.write(packed({"hello": hello}))
            self._writer = writer
            async for message in messages(reader):
                if not self._take(message):
                    return
        finally:
            writer.close()

    def _take(self, message: Message) -> bool:
        """Handle a message. False: this is not a controller to listen to."""
        if "welcome" in message:
            return self._welcome(message["welcome"])
        if "acknowledged" in message:
            while self._unacknowledged and self._unacknowledged[0][0] <= message["acknowledged"]:
                self._unacknowledged.popleft()
            self._acknowledged.set()
        elif "notice" in message:
            if "over" in message["notice"]:
                self.over.set()
            self._duties.notice(message["notice"])
        elif "command" in message:
            identity = message["id"]
            if self._seen is None or identity > self._seen:
                self._seen = identity
                self._duties.carry_out(command_of(message["command"]))
        elif "refused" in message:
            log.error("the controller refuses %s: %s", self._role, message["refused"])
            return False
        return True

    def _welcome(self, welcome: Message) -> bool:
        if welcome["fence"] < self._fence:
            log.warning("a controller that was replaced (%d) answers; not listening to it", welcome["fence"])
            return False
        self._fence = welcome["fence"]
        if self._seen is None:
            self._seen = welcome["at"]
            self._duties.catch_up(welcome["state"])
        self._duties.notice(welcome["notice"])
        assert self._writer is not None
        for _, message in self._unacknowledged:
            self._writer.write(packed(message))
        self.connected.set()
        return True
