"""Commands of the core about single trajectories: where a turn runs, whether it waits, and that it moves."""

from __future__ import annotations

from collections.abc import Callable

from steelyard.balance.commands import Place, Resume
from steelyard.balance.events import Called, Paused, Resumed, Returned, Sent
from steelyard.live.journal import TurnJournal
from steelyard.live.live_trajectory import LiveTrajectory
from steelyard.live.taking_up import end_of
from steelyard.live.turn_runner import TurnRunner


class TurnPlacing:
    """Places turns, holds them and sends them elsewhere, as the core says."""

    def __init__(
        self,
        running: dict[str, LiveTrajectory],
        journal: TurnJournal,
        runner: TurnRunner,
        report: Callable[..., None],
    ) -> None:
        self._running, self._journal, self._runner, self._tell = running, journal, runner, report
        self._early: dict[str, Place] = {}  # placements of trajectories whose client has not come back yet

    def place_early(self, live: LiveTrajectory) -> bool:
        """Place a trajectory that has just begun, if it was placed before its client came."""
        early = self._early.pop(live.name, None)
        if early is not None:
            live.epoch, live.placed = early.epoch, early
            live.place_came.set()
        return early is not None

    def place(self, command: Place) -> None:
        """The next turn of a trajectory runs there, or goes on there."""
        live = self._running.get(command.trajectory)
        if live is None:
            self._place_unknown(command)
            return
        before, live.epoch = live.epoch, command.epoch
        if live.doing == "tool":  # its turn was over before its engine was given up, which the core did not know
            self._tell(Called(0.0, live.name, live.epoch, live.last))
            return
        if live.held:
            if before != command.epoch:
                self._tell(Paused(0.0, live.name, live.epoch, live.generated + live.so_far.count))
            return
        live.placed = command
        if not live.stopping:  # its engine is gone for the core: what it says is too late
            live.abandon()
        live.place_came.set()

    def _place_unknown(self, command: Place) -> None:
        """Place a trajectory whose client has not come yet. If it is over, its end crossed this command: the engine was
        given up meanwhile, so the report came with an epoch that did not count any more."""
        stored = self._journal.trajectory(command.trajectory)
        if stored is not None and stored.fate:
            self._tell(end_of(stored, command.epoch))
        else:
            self._early[command.trajectory] = command

    def pause(self, name: str) -> None:
        """Hold a trajectory. Its turn is stopped."""
        live = self._running.get(name)
        if live is None or live.held:
            return
        live.held = True
        if live.doing == "running":
            self._runner.stop(live)
        elif live.doing == "waiting":
            live.placed = None
            live.place_came.clear()
            self._tell(Paused(0.0, name, live.epoch, live.generated + live.so_far.count))

    def resume(self, command: Resume) -> None:
        """Let a trajectory go on that was held."""
        live = self._running.get(command.trajectory)
        if live is None or not live.held:
            return
        live.held, live.since = False, 0
        if live.wanted is not None:
            self._tell(Returned(0.0, live.name, live.epoch, live.wanted))
            live.wanted = None
        elif live.doing != "tool":
            live.epoch += 1
            self._tell(Resumed(0.0, live.name, live.epoch, command.left))

    def send(self, name: str, target: int) -> None:
        """Have a trajectory move to another engine."""
        live = self._running.get(name)
        if live is None:
            return
        if live.doing == "running":
            self._runner.stop(live)
        live.epoch += 1
        self._tell(Sent(0.0, name, live.epoch, target))
