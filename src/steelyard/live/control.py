"""The controller's server: members report to it and get its commands.

All reports that have come while the last ones were written go into one transaction. So the disk bounds how long an
event waits, and not how many are decided per second.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, get_args

from steelyard.balance.kinds import Command, Event
from steelyard.balance.log import command_line
from steelyard.balance.settings import CoreSettings
from steelyard.errors import UserError
from steelyard.files.finding import is_there
from steelyard.files.jsontext import json_row
from steelyard.live.access import Access, Scope
from steelyard.live.controller import CommandId, Controller
from steelyard.live.store import Fenced, StoreFailure
from steelyard.live.upstream import notice_loss
from steelyard.live.wire import COMMANDS_OF, MOST_BYTES, Message, Role, event_of, messages, packed

log = logging.getLogger("steelyard.controller")

Handler = Callable[[Any], None]
"""Carries out a command in the controller's own process."""

_HELLO_SECONDS = 10.0  # for a member to say who it is; chosen
_ROLE_OF: dict[type[Command], Role] = {kind: role for role, kinds in COMMANDS_OF.items() for kind in kinds}
_NAMES_OF: dict[Role, frozenset[str]] = {
    role: frozenset(kind.__name__ for kind in kinds) for role, kinds in COMMANDS_OF.items()
}


class Watch(Protocol):
    """Is told what a controller does."""

    def wrote(self, seconds: float) -> None:
        """Events were written to the log."""

    def decided(self, event: Event) -> None:
        """An event was decided."""


@dataclass(eq=False)
class _Connected:
    """A member and the connection to it."""

    role: Role
    name: str
    writer: asyncio.StreamWriter


@dataclass
class _Inbox:
    """What has come and was not written yet."""

    events: list[Event] = field(default_factory=list)
    reports: dict[str, int] = field(default_factory=dict)  # by member: its last report


class ControlServer:
    """Feeds a controller with what members report, and sends its commands to them.

    ``state`` says how things stand, for members that are new; ``news`` what members are notified of, for those that may
    have missed it. ``facts`` is called with what is reported beside events.
    ``speed`` seconds of the run pass in a second, which is 1 unless engines are emulated faster.
    """

    def __init__(
        self,
        access: Access | None = None,
        speed: float = 1.0,
        state: Callable[[Role], Message] = lambda _: {},
        news: Callable[[Role], Message] = lambda _: {},
        facts: Callable[[str, Any], None] = lambda name, value: None,
    ) -> None:
        self.state, self.news, self.facts = state, news, facts
        self.operate: Callable[[Message], Message] = lambda asked: {}
        self.watches: list[Watch] = []
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.speed = speed
        self._started = 0.0  # time of day when the run began
        self._access = Access() if access is None else access
        self._members: set[_Connected] = set()
        self._closed = False  # it greets nobody any more
        self._handlers: dict[type[Command], list[Handler]] = {}
        self._inbox = _Inbox()
        self._taken: dict[str, int] = {}  # by member: its last report that was taken
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()  # held until what is written is decided, too
        self._waiters: list[asyncio.Future[None]] = []
        self._last_second = 0.0
        self._last_command = CommandId(-1, -1)
        self._controller: Controller | None = None

    def open(self, path: Path, settings: CoreSettings | None = None, shared: bool = False) -> None:
        """Begin the run of a store, or resume it if the store exists. Call it once handlers are set. ``shared`` is
        whether controllers on other machines may open the store."""
        if is_there(path):
            self._controller = Controller.resume(path, self._carry_out, shared)
        elif settings is None:
            raise UserError(f"{path}: no such store; give the settings of a new run")
        else:
            self._controller = Controller.begin(path, settings, self._carry_out, shared)
        store = self.controller.store
        if store.fact("started") is None:
            store.keep("started", repr(time.time()))
        self._started = float(store.fact("started") or 0.0)
        self._taken = store.reports()
        self._last_second = store.last_second()

    @property
    def is_open(self) -> bool:
        return self._controller is not None

    @property
    def controller(self) -> Controller:
        assert self._controller is not None, "open comes first"
        return self._controller

    def on(self, kind: type[Command], handler: Handler) -> None:
        """Carry out commands of a kind here, too."""
        self._handlers.setdefault(kind, []).append(handler)

    def now(self) -> float:
        """The second of this moment. It never goes back, also across restarts."""
        self._last_second = max(self._last_second, (time.time() - self._started) * self.speed)
        return self._last_second

    def tell(self, *events: Event) -> None:
        """Report events of the controller's own process."""
        self._inbox.events += events
        self._wake.set()

    def fail(self, problem: BaseException) -> None:
        """End: nothing more may be done."""
        if not self.failure.done():
            self.failure.set_exception(problem)

    async def decided(self) -> None:
        """Wait until all that was reported so far is decided."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._wake.set()
        await waiter

    def notify(self, notice: Message, role: Role | None = None) -> None:
        """Tell members something that is no command."""
        for member in self._members:
            if role in (None, member.role):
                member.writer.write(packed({"notice": notice}))

    def members(self) -> list[tuple[Role, str]]:
        """Who is connected."""
        return sorted((member.role, member.name) for member in self._members)

    async def release(self) -> None:
        """Decide what has come, save, and decide nothing more: the next controller goes on from here. What comes later
        is not acknowledged, so members send it to the next one."""
        await self.decided()
        await self._writing.acquire()  # for good
        await asyncio.to_thread(self.controller.save)

    async def serve(self, listener: socket.socket) -> None:
        """Serve until cancelled, or until another controller takes over."""
        server = await asyncio.start_server(self._converse, sock=listener, limit=MOST_BYTES)
        deciding = asyncio.ensure_future(self._decide())
        try:
            await asyncio.wait({deciding, self.failure}, return_when=asyncio.FIRST_COMPLETED)
            for each in (deciding, self.failure):
                if each.done():
                    each.result()
        finally:
            deciding.cancel()
            server.close()
            self._closed = True
            for member in self._members:
                member.writer.transport.abort()

    async def _decide(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            inbox, self._inbox = self._inbox, _Inbox()
            waiters, self._waiters = self._waiters, []
            async with self._writing:
                begun = time.monotonic()
                envelopes = await asyncio.to_thread(self.controller.write, inbox.events, inbox.reports)
                seconds = time.monotonic() - begun
                self.controller.decide(envelopes)
            for watch in self.watches:
                watch.wrote(seconds)
                for envelope in envelopes:
                    watch.decided(envelope.event)
            for member in self._members:
                if member.name in inbox.reports:
                    member.writer.write(packed({"acknowledged": inbox.reports[member.name]}))
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _carry_out(self, identity: CommandId, command: Command) -> None:
        self._last_command = identity
        role = _ROLE_OF.get(type(command))
        if role is not None:
            line = _command_message(identity, command_line(command))
            for member in self._members:
                if member.role == role:
                    member.writer.write(line)
        for handler in self._handlers.get(type(command), ()):
            handler(command)

    # -- connections --------------------------------------------------------------------------------------------

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        coming = messages(reader)
        notice_loss(writer.transport)
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                hello = await anext(coming, None)
            async with self._writing:
                member = None if self._closed else self._greet(hello, writer)
                if member is None:
                    return
                self._members.add(member)
            async for message in coming:
                self._take(member, message)
        except (StoreFailure, Fenced) as problem:
            self.fail(problem)
        except (UserError, TimeoutError, KeyError, TypeError, ValueError) as problem:
            log.warning("a member was disconnected: %s", str(problem)[:200])
            writer.write(packed({"refused": str(problem)[:200]}))
        except asyncio.CancelledError:
            pass  # this controller ends; asyncio would report it
        finally:
            self._members = {each for each in self._members if each.writer is not writer}
            writer.close()

    def _greet(self, message: Message | None, writer: asyncio.StreamWriter) -> _Connected | None:
        if message is None:
            return None
        hello = message["hello"]
        role: Role = hello["role"]
        if role not in get_args(Role) or not self._allowed(role, hello["token"]):
            writer.write(packed({"refused": "not a member of this run"}))
            return None
        controller, seen = self.controller, hello["seen"]
        welcome: Message = {"fence": controller.fence, "notice": self.news(role)}
        if seen is None:
            welcome |= {"state": self.state(role), "at": list(self._last_command)}
        writer.write(packed({"welcome": welcome}))
        if seen is not None:
            controller.flush()
            for event, place, line in controller.store.commands((int(seen[0]), int(seen[1]))):
                if json_row(line, "store")["kind"] in _NAMES_OF[role]:
                    writer.write(_command_message(CommandId(event, place), line))
        return _Connected(role, str(hello["name"]), writer)

    def _allowed(self, role: Role, token: str) -> bool:
        scope: Scope = "operator" if role == "operator" else "engine"
        return self._access.allows(f"Bearer {token}", scope) is True

    def _take(self, member: _Connected, message: Message) -> None:
        """A report or an operator's question. A report that was taken before is not decided again. It is acknowledged
        once it is on disk and decided, which it may not be yet if its member was cut off in between."""
        if "operate" in message:
            answer = self.operate(message["operate"]) if member.role == "operator" else {}
            member.writer.write(packed({"answer": answer}))
            return
        number = int(message["report"])
        if number <= self._taken.get(member.name, 0):
            self._inbox.reports[member.name] = self._taken[member.name]
            self._wake.set()
            return
        at = self.now()
        events = [event_of(row, at) for row in message.get("events", ())]
        if "fact" in message:
            self.facts(str(message["fact"]), message["value"])
        self._taken[member.name] = self._inbox.reports[member.name] = number
        self._inbox.events += events
        self._wake.set()


def _command_message(identity: CommandId, line: str) -> bytes:
    return f'{{"id":[{identity.event},{identity.place}],"command":{line}}}\n'.encode()
