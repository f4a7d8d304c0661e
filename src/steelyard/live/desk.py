"""Trajectories at the gateway. Each turn waits until the core places it, runs there, and is reported.

A turn is known by its trajectory and number. Asked for again while it runs, it is not started twice. Asked for again
when it is over, it is answered from the journal. It goes on although its client has left, who will ask again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from steelyard.balance.commands import Abort, Cap, Park, Pause, Place, Repack, Resume
from steelyard.balance.events import Aborted, Begun, Ended, Returned
from steelyard.balance.kinds import Command
from steelyard.live.journal import StoredTrajectory, StoredTurn, TurnJournal
from steelyard.live.live_trajectory import LiveTrajectory, ToolReturn, TurnRefused
from steelyard.live.placing import TurnPlacing
from steelyard.live.taking_up import end_of, taken_up
from steelyard.live.turn_runner import DeskSettings, EngineEntry, TurnRunner
from steelyard.live.turns import TurnRequest, TurnSoFar
from steelyard.live.wire import Message
from steelyard.records import Turn

log = logging.getLogger("steelyard.gateway")

_SWEEP_SECONDS = 1.0  # between two looks for trajectories whose client has left


class TurnDesk:
    """All trajectories of a gateway, and its duties as a member of the run."""

    def __init__(self, journal: TurnJournal, report: Callable[..., None], settings: DeskSettings) -> None:
        self.journal = journal
        self.running: dict[str, LiveTrajectory] = {}
        self._tell, self._settings = report, settings
        self._runner = TurnRunner(journal, report, settings)
        self._placing = TurnPlacing(self.running, journal, self._runner, report)

    @property
    def engines(self) -> dict[int, EngineEntry]:
        """Engines that turns can run on, by number."""
        return self._runner.engines

    # -- clients ------------------------------------------------------------------------------------------------

    async def turn(self, request: TurnRequest) -> StoredTurn:
        """A turn's answer, once it is there."""
        found = self.begin(request)
        if isinstance(found, StoredTurn):
            return found
        assert found.task is not None, "a turn that was begun runs"
        return await self.over(found, found.task)

    async def over(self, live: LiveTrajectory, task: asyncio.Task[StoredTurn]) -> StoredTurn:
        """The answer of the turn that a task runs, once it is there. It may have ended since it was begun."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise TurnRefused(410, "this trajectory was given up") from None
            raise  # its client has left
        finally:
            live.seen = time.monotonic()

    def begin(self, request: TurnRequest) -> LiveTrajectory | StoredTurn:
        """Start a turn, or find it again. Returns its answer if it is over already."""
        live = self.running.get(request.trajectory)
        if live is None:
            stored = self.journal.trajectory(request.trajectory)
            if stored is not None and (stored.fate or (request.turn is not None and request.turn < len(stored.turns))):
                return _answered(stored, request.turn)
            live = self._start(request)
        wanted = live.turn if request.turn is None else request.turn
        live.seen = time.monotonic()
        if wanted < live.turn:
            stored = self.journal.trajectory(request.trajectory)
            assert stored is not None
            return _answered(stored, wanted)
        if wanted > live.turn:
            raise TurnRefused(409, f"turn {wanted} was asked for, and turn {live.turn} is the next")
        if live.task is None:
            self._want(live, request)
            live.chunks, live.so_far = [], TurnSoFar()
            live.task = asyncio.ensure_future(self._runner.run(live, request))
            live.task.add_done_callback(_look)  # its client may have left, so nobody else may look at its error
        return live

    def tool_returned(self, name: str, returned: ToolReturn) -> None:
        """A client tells what came of a tool."""
        self._known(name).tool = returned

    def end(self, name: str, reward: float | None) -> None:
        """A client says that a trajectory is over."""
        live = self.running.get(name)
        if live is None:
            stored = self.journal.trajectory(name)
            if stored is None:
                raise TurnRefused(404, "no such trajectory")
            if stored.fate != "ended":
                raise TurnRefused(410, "this trajectory was given up")
            return
        if live.doing != "tool":
            raise TurnRefused(409, "a turn is under way")
        self.journal.end(name, "ended", reward)
        del self.running[name]
        self._tell(Ended(0.0, name, live.epoch, Turn(live.last)))

    def abort(self, names: Iterable[str]) -> None:
        """Give trajectories up."""
        for name in names:
            live = self.running.pop(name, None)
            if live is None:
                if self.journal.trajectory(name) is not None:
                    self.journal.end(name, "aborted")
                continue
            self.journal.end(name, "aborted")
            live.abandon()
            if live.task is not None:
                live.task.cancel()
            self._tell(Aborted(0.0, name, live.epoch))

    async def close(self) -> None:
        """Stop everything, and report nothing."""
        tasks = [live.task for live in self.running.values() if live.task is not None]
        for live in self.running.values():
            live.abandon()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for entry in self.engines.values():
            entry.upstream.close()
        self.journal.close()

    async def watch(self) -> None:
        """Give up trajectories whose client or tool does not come back."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            oldest = time.monotonic() - self._settings.client_seconds
            late = [each.name for each in self.running.values() if each.task is None and each.seen < oldest]
            if late:
                log.warning("%d trajectories are given up: nothing was heard of them", len(late))
                self.abort(late)

    # -- duties -------------------------------------------------------------------------------------------------

    def catch_up(self, state: Message) -> None:
        """Take up the trajectories of a gateway that was here before."""
        self._runner.cap = state.get("cap")
        for row in state.get("running", ()):
            name = row["name"]
            if name in self.running:
                continue
            stored = self.journal.trajectory(name)
            if stored is not None and stored.fate:  # its end was not reported any more
                self._tell(end_of(stored, row["epoch"]))
                continue
            self.running[name] = taken_up(row, stored, self._runner)

    def carry_out(self, command: Command) -> None:
        """A command of the core."""
        match command:
            case Place():
                self._placing.place(command)
            case Pause():
                for name in command.trajectories:
                    self._placing.pause(name)
            case Resume():
                self._placing.resume(command)
            case Abort():
                self.abort(command.trajectories)
            case Cap():
                self._runner.cap = command.tokens
            case Repack():
                for move in command.moves:
                    self._placing.send(move.trajectory, move.target)
            case Park():
                live = self.running.get(command.trajectory)
                if live is not None:
                    live.cache = command.cache
            case _:
                raise AssertionError(f"{command} is not for a gateway")

    def notice(self, notice: Message) -> None:
        """Engines have come, gone, or have new weights."""
        if "engines" in notice:
            self._runner.use(notice["engines"])

    # -- beginnings of turns ------------------------------------------------------------------------------------

    def _start(self, request: TurnRequest) -> LiveTrajectory:
        version = max((entry.version for entry in self.engines.values()), default=0)
        live = LiveTrajectory(request.trajectory, request.group, version, request.prompt_tokens)
        self.journal.begin(live.name, live.group, version, live.context)
        self.running[live.name] = live
        if self._placing.place_early(live):
            return live
        prompt = request.prompt or request.group or live.name
        self._tell(Begun(0.0, live.name, prompt, live.context, version, group=live.group))
        return live

    def _want(self, live: LiveTrajectory, request: TurnRequest) -> None:
        """The client of a trajectory whose tool ran is back: it wants the next turn."""
        if live.doing != "tool":
            return
        told, live.tool = live.tool, None
        returned = max(0, request.prompt_tokens - live.context) if told is None or told.tokens is None else told.tokens
        latency = (time.monotonic() - live.called) * self._settings.speed
        over = Turn(live.last, "tool" if told is None else told.tool, "ok" if told is None else told.outcome, returned)
        over.latency = latency
        live.doing, live.context = "waiting", live.context + returned
        if live.held:
            live.wanted = over
        else:
            self._tell(Returned(0.0, live.name, live.epoch, over))

    def _known(self, name: str) -> LiveTrajectory:
        live = self.running.get(name)
        if live is None:
            raise TurnRefused(404, "no such trajectory, or it is over")
        live.seen = time.monotonic()
        return live


def _answered(stored: StoredTrajectory, turn: int | None) -> StoredTurn:
    if turn is not None and turn < len(stored.turns):
        return stored.turns[turn]
    raise TurnRefused(410, f"this trajectory is over: {stored.fate}")


def _look(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
