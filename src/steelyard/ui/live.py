"""Follows live runs: how things stand, what was decided and why, and what GPUs did."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import asdict
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import Any

from steelyard.errors import UserError
from steelyard.files.finding import is_file
from steelyard.live.emulated.run import EmulatedRun
from steelyard.live.explain import Explained, explanations
from steelyard.live.figures import live_figures
from steelyard.live.fleet_history import fleet_history
from steelyard.live.grpo.run import GrpoRun
from steelyard.live.operate import ask_controller
from steelyard.live.runs import LiveRun, is_over, read_run
from steelyard.live.store import log_rows
from steelyard.ui.listing import live_folder

_LOOK_SECONDS = 0.5  # between two looks at a log
_HISTORY_SECONDS = 3.0  # between two times that the history is read
_IDLE_SECONDS = 60.0  # after which a run that nobody looks at is not followed any more; chosen
_MOST_KEPT, _MOST_SENT = 5000, 500  # sentences; chosen
_FOLLOWED = 4  # runs at a time


class FollowedRun:
    """One live run. A thread reads its log from the beginning, since reasons need the state."""

    def __init__(self, folder: Path) -> None:
        self.run: LiveRun = read_run(folder)
        self._sentences: deque[Explained] = deque(maxlen=_MOST_KEPT)
        self._count = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._asked = time.monotonic()
        self._problem = ""
        self._history: tuple[float, dict[str, Any]] = (-_HISTORY_SECONDS, {})
        self._over = self._read_all = self._history_whole = False
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def idle(self) -> bool:
        """Whether nobody has asked for it lately."""
        return self._stop.is_set() or time.monotonic() - self._asked > _IDLE_SECONDS

    @property
    def given_up(self) -> bool:
        """Whether its log was left before the end."""
        return self._stop.is_set() and not self._read_all and not self._problem

    def stop(self) -> None:
        """Follow it no more."""
        self._stop.set()

    def page(self, after: int) -> dict[str, Any]:
        """How things stand, with the sentences after so many."""
        self._asked = time.monotonic()
        self._over = self._over or is_over(self.run)
        status, note = (None, "") if self._over else self._status()
        first, sentences = self._after(after)
        return {
            "over": self._over,
            "complete": self._read_all,
            "status": status,
            "note": note,
            "problem": self._problem,
            "first": first,
            "count": self._count,
            "sentences": sentences,
            **self._told_history(),
        }

    def _status(self) -> tuple[dict[str, Any] | None, str]:
        try:
            address = self.run.address("operator")
            if not _is_here(address.host):
                return None, f"its controller is at {address.host}; only those of this machine are asked"
            return ask_controller(address, {"what": "status"}), ""
        except UserError as error:
            return None, str(error)

    def _after(self, after: int) -> tuple[int, list[dict[str, Any]]]:
        with self._lock:
            oldest = self._count - len(self._sentences)
            first = max(after, oldest, self._count - _MOST_SENT if after == 0 else 0)
            chosen = list(islice(self._sentences, first - oldest, first - oldest + _MOST_SENT))
        return first, [
            {"at": each.at, "kind": each.kind, "subject": each.subject, "text": each.sentence} for each in chosen
        ]

    def _told_history(self) -> dict[str, Any]:
        at, known = self._history
        if time.monotonic() - at < _HISTORY_SECONDS or self._history_whole:
            return known
        over = self._over
        try:
            known = _history_of(self.run)
            self._history_whole = over
        except UserError as error:
            known = known | {"problem": str(error)}
        self._history = time.monotonic(), known
        return known

    def _read(self) -> None:
        """Read the log to its end and on. What goes wrong is said on the page."""
        while not self._stop.is_set() and not is_file(self.run.store):
            self._stop.wait(_LOOK_SECONDS)
        try:
            for each in explanations(log_rows(self.run.store, self._wait), str(self.run.store)):
                with self._lock:
                    self._sentences.append(each)
                    self._count += 1
                if self.idle:
                    break
            else:
                self._read_all = self._over
        except (UserError, StopIteration) as error:
            self._problem = str(error)
        self._stop.set()

    def _wait(self) -> bool:
        """Wait for more of the log; false once the run is over or nobody looks."""
        if self._over or self.idle:
            return False
        self._stop.wait(_LOOK_SECONDS)
        return not self._stop.is_set()


class FollowedRuns:
    """The live runs that are looked at."""

    def __init__(self) -> None:
        self._runs: dict[Path, FollowedRun] = {}
        self._lock = threading.Lock()

    def page(self, folder: Path, after: int) -> dict[str, Any]:
        """What is shown of a live run."""
        home = live_folder(folder)
        if home is None:
            raise UserError(f"{folder.name}: is no live run")
        with self._lock:
            for path in [path for path, run in self._runs.items() if path != home and run.idle]:
                self._runs.pop(path).stop()
            if home not in self._runs or self._runs[home].given_up:
                if home not in self._runs and len(self._runs) >= _FOLLOWED:
                    raise UserError(f"{_FOLLOWED} live runs are followed already; close one of their pages")
                self._runs[home] = FollowedRun(home)
            run = self._runs[home]
        return {"name": run.run.folder.name, **run.page(after)}

    def forget(self, folder: Path) -> None:
        """Follow a run no more. Raises UserError if its controller still answers."""
        home = live_folder(folder)
        if home is None:
            return
        try:
            ask_controller(read_run(home).address("operator"), {"what": "status"})
        except UserError:  # no controller answers, or there is no run to be read
            with self._lock:
                if home in self._runs:
                    self._runs.pop(home).stop()
        else:
            raise UserError(f"{folder.name}: is under way; end it before it is deleted")

    def stop(self) -> None:
        """Follow none."""
        for each in self._runs.values():
            each.stop()


def _history_of(run: LiveRun) -> dict[str, Any]:
    """What GPUs did, and steps, losses and changes of plan, from the log."""
    found = live_figures(run.store).to_dict()
    gpus, training = _gpus(run)
    history = asdict(fleet_history(run.store, gpus, training))
    kept = {name: found[name] for name in ("steps", "recoveries", "changes", "tokens_per_second")}
    return {"history": history, **kept}


def _gpus(run: LiveRun) -> tuple[int, int]:
    """GPUs in all, and those that train at first."""
    if isinstance(run, EmulatedRun):
        return run.scenario.gpus, run.scenario.training.gpus
    assert isinstance(run, GrpoRun)
    return run.scenario.engines + 1, 1


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
