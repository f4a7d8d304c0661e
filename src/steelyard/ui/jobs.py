"""Runs that the page has started: processes of the command line, with their progress. They outlive a killed server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from steelyard.errors import UserError
from steelyard.files.finding import is_file
from steelyard.files.folder import SUMMARY
from steelyard.report.names import file_name
from steelyard.ui.checking import ScenarioKind
from steelyard.ui.folder import RUNS, UiFolder
from steelyard.ui.listing import SEARCH

PROGRESS = "STEELYARD_PROGRESS"  # of a command's environment: it writes lines of JSON on standard error
COMMANDS: dict[ScenarioKind, str] = {"serving": "simulate", "search": "search", "posttrain": "posttrain"}
JobState = Literal["running", "done", "failed", "cancelled"]
_MOST_RUNNING, _MOST_KEPT, _MOST_LINES = 4, 100, 50  # chosen
_INTERRUPTED, _SUCCESS = 130, 0
_GRACE_SECONDS = 5.0  # for a run to end after an interrupt; chosen


@dataclass
class StartedRun:
    """One run. ``at`` is the second at which it began."""

    number: int
    scenario: str
    command: str
    run: str
    at: float
    state: JobState = "running"
    seconds: float = 0.0
    what: str = "starting"
    done: int = 0
    total: int = 0
    lines: list[str] = field(default_factory=list)
    has_result: bool = False
    process: asyncio.subprocess.Process | None = None
    cancelling: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        seconds = time.monotonic() - self.at if self.state == "running" else self.seconds
        return {
            "number": self.number,
            "scenario": self.scenario,
            "command": self.command,
            "run": self.run,
            "state": self.state,
            "what": self.what,
            "done": self.done,
            "total": self.total,
            "seconds": seconds,
            "errors": [each.removeprefix("error: ") for each in self.lines] if self.state == "failed" else [],
            "hasResult": self.has_result,
            "cancelling": self.cancelling and self.state == "running",
        }


class StartedRuns:
    """All runs of this server. Used by its event loop alone."""

    def __init__(self, folder: UiFolder) -> None:
        self._folder = folder
        self._jobs: dict[int, StartedRun] = {}
        self._watching: set[asyncio.Task[None]] = set()
        self._count = 0

    def all(self) -> list[dict[str, Any]]:
        """Each run, the newest first."""
        return [each.to_dict() for each in reversed(self._jobs.values())]

    def one(self, number: int) -> StartedRun:
        """A run by its number."""
        if number not in self._jobs:
            raise UserError(f"run {number}: this server has not started it; its result is listed when it is there")
        return self._jobs[number]

    @property
    def writing_to(self) -> set[str]:
        """Names of results that runs under way will write."""
        return {each.run for each in self._jobs.values() if each.state == "running"}

    async def start(self, scenario: str, kind: ScenarioKind, name: str) -> StartedRun:
        """Start a run of a scenario file."""
        if kind not in COMMANDS:
            raise UserError(f"{scenario}: runs of this kind are started with `steelyard control` in a terminal")
        if len(self.writing_to) >= _MOST_RUNNING:
            raise UserError(f"{_MOST_RUNNING} runs are under way; wait for one, or cancel one")
        run = f"search-{file_name(name)}" if kind == "search" else self._folder.next_run(name, self.writing_to)
        if run in self.writing_to:
            raise UserError(f"{run}: this search is under way")
        self._count += 1
        job = self._jobs[self._count] = StartedRun(self._count, scenario, COMMANDS[kind], run, time.monotonic())
        for number in [each for each, old in self._jobs.items() if old.state != "running"][:-_MOST_KEPT]:
            del self._jobs[number]
        job.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "steelyard", job.command, "--out", f"{RUNS}/{run}", "--", scenario),
            cwd=self._folder.root,
            env={**os.environ, PROGRESS: "lines"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # an interrupt of the terminal is the server's
        )
        watching = asyncio.ensure_future(self._watch(job))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        return job

    def cancel(self, number: int) -> StartedRun:
        """Interrupt a run, as Ctrl-C does."""
        job = self.one(number)
        if job.state == "running" and job.process is not None:
            job.cancelling = True
            with suppress(ProcessLookupError):
                job.process.send_signal(signal.SIGINT)
        return job

    async def end(self) -> None:
        """Interrupt all runs, and wait for them."""
        for each in list(self._jobs.values()):
            self.cancel(each.number)
        if self._watching:
            await asyncio.wait(self._watching, timeout=_GRACE_SECONDS)

    async def _watch(self, job: StartedRun) -> None:
        """Read what a run says until it ends."""
        process = job.process
        assert process is not None and process.stderr is not None
        while line := await _line(process.stderr):
            _take(job, line)
        code = await process.wait()
        job.seconds = time.monotonic() - job.at
        path = self._folder.root / RUNS / job.run
        job.has_result = is_file(path / (SEARCH if job.command == "search" else SUMMARY))
        job.state = "done" if code == _SUCCESS else "cancelled" if job.cancelling else "failed"
        if job.state == "failed" and not job.lines:
            job.lines.append(f"the run ended with exit code {code}")


async def _line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ValueError:  # a line longer than the reader's limit is left out
        return b"\n"


def _take(job: StartedRun, line: bytes) -> None:
    """Take in a line of standard error: progress, or words."""
    text = line.decode(errors="replace").strip()
    if text.startswith('{"progress"'):
        with suppress(ValueError, KeyError, TypeError):
            told = json.JSONDecoder().decode(text)
            job.what, job.done, job.total = str(told["progress"]), int(told["done"]), int(told["total"])
    elif text:
        job.lines = [*job.lines, text][-_MOST_LINES:]
