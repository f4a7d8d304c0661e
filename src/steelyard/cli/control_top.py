"""``steelyard control top``: a run, shown again every second."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from steelyard.errors import UserError
from steelyard.live.explain import Explained, explanations
from steelyard.live.operate import ask_controller
from steelyard.live.runs import LiveRun, is_over
from steelyard.live.store import log_rows

_LOOK_SECONDS = 1.0
_DECISIONS = 8  # that are shown
_ENGINE_WORDS = ("number", "tp", "state", "busy", "seats", "weights", "url")


def top(run: LiveRun, console: Console) -> None:
    """Show a run until it is over or an interrupt comes; once if nobody watches a terminal."""
    if not console.is_terminal:
        decisions = Decisions(run, follow=False)
        decisions.read()
        console.print(frame(_status(run), decisions, "the run is over" if is_over(run) else ""))
        return
    decisions = Decisions(run, follow=True)
    reading = threading.Thread(target=decisions.read, daemon=True)
    reading.start()
    try:
        _show(run, console, decisions)
    except KeyboardInterrupt:
        return
    finally:
        decisions.stop.set()
        reading.join()


def _show(run: LiveRun, console: Console, decisions: Decisions) -> None:
    status: dict[str, Any] | None = None
    answered = time.monotonic()
    with Live(console=console, auto_refresh=False) as live:
        while not is_over(run):
            found, note = _status(run), ""
            if found is not None:
                status, answered = found, time.monotonic()
            else:
                note = f"no controller has answered for {time.monotonic() - answered:.0f} s"
            live.update(frame(status, decisions, note), refresh=True)
            time.sleep(_LOOK_SECONDS)
        live.update(frame(status, decisions, "the run is over"), refresh=True)


def _status(run: LiveRun) -> dict[str, Any] | None:
    try:
        return ask_controller(run.address("operator"), {"what": "status"})
    except UserError:
        return None


class Decisions:
    """The last decisions of a run in words. They are read from its log, from the beginning: reasons need the state."""

    def __init__(self, run: LiveRun, follow: bool) -> None:
        self.last: deque[Explained] = deque(maxlen=_DECISIONS)
        self.stop = threading.Event()
        self.failure = ""
        self._run, self._follow = run, follow

    def read(self) -> None:
        """Read the log to its end, or until told to stop. What goes wrong is a note, not the end of the view."""
        try:
            rows = log_rows(self._run.store, self._wait)
            for each in explanations(rows, str(self._run.store)):
                if self.stop.is_set():
                    return
                self.last.append(each)
        except UserError as problem:
            self.failure = str(problem)

    def _wait(self) -> bool:
        return self._follow and not self.stop.wait(_LOOK_SECONDS / 2)


def frame(status: dict[str, Any] | None, decisions: Decisions, note: str) -> RenderableType:
    """What is shown at a moment."""
    parts: list[RenderableType] = [] if status is None else [*_progress(status), _engines(status)]
    lines = [f"{each.at:>9,.1f} s  {each.sentence}" for each in list(decisions.last)]
    last = [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]
    parts += [Text(""), *last] if last else []
    parts += [Text(words, style="bold") for words in (decisions.failure, note) if words]
    return Group(*parts)


def _progress(status: dict[str, Any]) -> list[Text]:
    doing = ", ".join(f"{count:,} {name}" for name, count in status["trajectories"].items()) or "none under way"
    return [
        Text(
            f"step {status['trained']:,} of {status['steps']:,}   {status['tokens_per_second']:,.0f} tokens/s   "
            f"{status['second']:,.0f} s   {status['events']:,} events   controller {status['fence']}"
        ),
        Text(f"trajectories: {doing}; {status['queue']:,} wait for an engine"),
    ]


def _engines(status: dict[str, Any]) -> Table:
    table = Table("engine", "TP", "state", "turns", "seats", "weights", "address", box=None)
    for each in status["engines"]:
        table.add_row(*(str(each[word]) for word in _ENGINE_WORDS))
    return table
