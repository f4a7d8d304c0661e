"""Runs by their folder. What starts parts, Ray or processes, knows no more of a run than this."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from steelyard.files.jsontext import json_object
from steelyard.live.member import Address

RUN_FILE = "run.json"  # in a run's folder


class RunPart(Protocol):
    """A part of a run: controller, gateway, trainer, an engine."""

    async def run(self, stop: asyncio.Event) -> None:
        """Run until the run is over or it is told to stop."""


class LiveRun(Protocol):
    """A run that was written to a folder."""

    @property
    def folder(self) -> Path: ...

    @property
    def parts(self) -> list[str]:
        """The names of its parts. The controller is the first; the run is over when it ends."""

    def part(self, name: str) -> RunPart:
        """A part, new."""

    def address(self) -> Address:
        """Of its controller."""


def read_run(folder: Path) -> LiveRun:
    """The run of a folder."""
    kind = json_object(folder / RUN_FILE, "the description of a run").get("kind")
    if kind == "grpo":
        from steelyard.live.grpo.run import GrpoRun

        return GrpoRun.read(folder)
    from steelyard.live.emulated.run import EmulatedRun

    return EmulatedRun.read(folder)
