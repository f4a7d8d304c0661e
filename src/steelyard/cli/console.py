"""Where commands print, and the progress bar of those that take long."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.segment import Segment

from steelyard.quoting import printable

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType
    from rich.progress import Progress, TaskID

_QUIET_SECONDS = 2.0  # commands that take longer show a progress bar
_AVERAGED_SECONDS = 600.0  # over which the speed is averaged, for the time left
_AS_LINES = "STEELYARD_PROGRESS"  # of the environment: progress as lines of JSON, for programs that start a command
_LINE_SECONDS = 0.1  # between two of them


class PlainConsole(Console):
    """A console for text that comes from outside: brackets are brackets, and control characters are escaped."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is to be shown, piece by piece, of which only styles may control the terminal."""
        for each in super().render(renderable, options):
            yield each if each.control or each.text.isprintable() else Segment(_shown(each.text), each.style)

    def on_broken_pipe(self) -> None:
        """Leave it to the program's edge, instead of an exit without a word."""
        raise  # noqa: PLE0704: of what it is called for


def _shown(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


out = PlainConsole()
err = PlainConsole(stderr=True)


class LateProgress:
    """A progress bar on standard error that appears only if the work takes long."""

    def __init__(self, what: str, console: Console = err) -> None:
        self._what = what
        self._console = console
        self._began = time.monotonic()
        self._shown: tuple[Progress, TaskID] | None = None
        self._lines = ProgressLines(what) if os.environ.get(_AS_LINES) == "lines" else None

    def __call__(self, done: int, total: int | None = None) -> None:
        if self._lines is not None:
            self._lines(done, total)
        elif self._shown is None:
            if self._console.is_terminal and time.monotonic() - self._began >= _QUIET_SECONDS:
                bar = _bar(self._console)
                bar.start()
                self._shown = bar, bar.add_task(self._what, total=total, completed=done)
        else:
            bar, task = self._shown
            bar.update(task, completed=done)

    def __enter__(self) -> LateProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown[0].stop()


class ProgressLines:
    """Progress for a program that reads it: ``{"progress": what, "done": 3, "total": 10}``, some lines a second. The
    reader may be gone; the work goes on."""

    def __init__(self, what: str) -> None:
        self._what, self._next = what, 0.0

    def __call__(self, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now >= self._next or done == total:
            self._next = now + _LINE_SECONDS
            with suppress(OSError, ValueError):
                told = {"progress": self._what, "done": done, "total": total or 0}
                print(json.dumps(told), file=sys.stderr, flush=True)


class SearchProgress:
    """What a search is doing, with a bar for each part of it. The number of simulations to come is not known."""

    def __init__(self) -> None:
        self._what, self._shown = "", LateProgress("")

    def __call__(self, what: str, done: int, total: int) -> None:
        if what != self._what:
            self._shown.__exit__()
            self._what, self._shown = what, LateProgress(what)
        self._shown(done, total or None)

    def __enter__(self) -> SearchProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.__exit__()


def _bar(console: Console) -> Progress:
    """The bar. Imported only when it is shown."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, speed_estimate_period=_AVERAGED_SECONDS)


def say(line: str) -> None:
    """Print a plain line to standard output, without wrapping."""
    out.print(line, soft_wrap=True, highlight=False)
