"""Runs by their folder. What starts parts, Ray or processes, knows no more of a run than this."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from steelyard.errors import UserError
from steelyard.files.finding import is_file
from steelyard.files.jsontext import json_object
from steelyard.live.access import Scope
from steelyard.live.addresses import LOCAL, PartHost, RunAddresses
from steelyard.live.member import Address
from steelyard.live.store import stored_fact

RUN_FILE = "run.json"  # in a run's folder
OVER = "over"  # a fact of a store: the run has come to its end


class RunPart(Protocol):
    """A part of a run: controller, gateway, trainer, an engine."""

    async def run(self, stop: asyncio.Event) -> None:
        """Run until the run is over or it is told to stop."""


class LiveRun(Protocol):
    """A run that was written to a folder."""

    @property
    def folder(self) -> Path: ...

    @property
    def store(self) -> Path:
        """The log of its controller."""

    @property
    def addresses(self) -> RunAddresses:
        """Its addresses."""

    @property
    def parts(self) -> list[str]:
        """The names of its parts. The controller is the first; the run is over when it ends."""

    def part(self, name: str) -> RunPart:
        """A part, new."""

    def address(self, scope: Scope = "engine") -> Address:
        """Of its controller, with a token of a scope."""


def is_over(run: LiveRun) -> bool:
    """Whether a run has come to its end. A store that cannot be read at present is that of a run that goes on: its next
    controller makes good what the last one has left."""
    with suppress(UserError):
        return is_file(run.store) and stored_fact(run.store, OVER) is not None
    return False


def read_run(folder: Path, host: PartHost = LOCAL) -> LiveRun:
    """The run of a folder, as a part on some machine sees it."""
    kind = json_object(folder / RUN_FILE, "the description of a run").get("kind")
    if kind == "grpo":
        from steelyard.live.grpo.run import GrpoRun

        return GrpoRun.read(folder, host)
    from steelyard.live.emulated.run import EmulatedRun

    return EmulatedRun.read(folder, host)
