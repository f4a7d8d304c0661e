"""Messages between the controller and its members: a line of JSON each, over one TCP connection per member.

A member reports events and facts, and carries commands out. Reports are numbered and kept by the member until the
controller has them on disk. Commands have identities that rise. So both sides can be cut off or killed at any moment:
on the next connection each says how far it has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal, get_args

import orjson

from steelyard.balance.commands import Abort, Cap, Park, Pause, Place, Repack, Resume, Start, TrainOn
from steelyard.balance.encoding import decode_kind
from steelyard.balance.kinds import Command, Event
from steelyard.balance.pool import Activate, Fetch, Join, Leave, RollBack, Sync

Message = dict[str, Any]
Role = Literal["gateway", "sampler", "trainer", "operator"]
"""What a member does: it runs turns, begins samples, trains, or watches."""

MOST_BYTES = 64 << 20  # of one message: an order to train names some 100,000 trajectories
COMMANDS_OF: dict[Role, tuple[type[Command], ...]] = {
    "gateway": (Place, Park, Pause, Resume, Abort, Cap, Repack),
    "sampler": (Start,),
    "trainer": (TrainOn, Join, Fetch, Sync, Activate, Leave, RollBack),
    "operator": (),
}
_EVENTS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}
_COMMANDS: dict[str, type] = {kind.__name__: kind for kinds in COMMANDS_OF.values() for kind in kinds}


def packed(message: Message) -> bytes:
    """A message as a line."""
    return orjson.dumps(message) + b"\n"


async def messages(reader: asyncio.StreamReader) -> AsyncIterator[Message]:
    """Messages up to the end of the connection. Ends early at anything else: its sender has to connect again."""
    while True:
        try:
            line = await reader.readline()
        except (OSError, ValueError):  # ValueError: longer than the limit
            return
        if not line.endswith(b"\n"):
            return
        try:
            message = orjson.loads(line)
        except ValueError:
            return
        if not isinstance(message, dict):
            return
        yield message


def event_of(row: Message, at: float) -> Event:
    """A reported event. Its second is the controller's, since clocks of members differ."""
    event: Event = decode_kind(_EVENTS, {**row, "at": at}, "report")
    return event


def command_of(row: Message) -> Command:
    """A command to a member."""
    command: Command = decode_kind(_COMMANDS, row, "command")
    return command
