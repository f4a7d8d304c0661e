"""Where each turn runs: the part of the core that tracks the rollout and asks router and estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from steelyard.balance.beginnings import ByPrompt
from steelyard.balance.commands import Park, Place, RolloutCommand
from steelyard.balance.estimate import Estimator, Left, Oracle
from steelyard.balance.events import (
    Aborted,
    Begun,
    Called,
    Ended,
    Paused,
    Resumed,
    Returned,
    RolloutEvent,
    Sent,
)
from steelyard.balance.line import Line
from steelyard.balance.rollouts import Rollouts, Running
from steelyard.balance.route.rollout import TurnRouter
from steelyard.records import Trajectory


class Placement:
    """Tracks the rollout, asks the estimator, and has the router place every trajectory that wants a turn.

    Trajectories that want a turn join the line, which the router orders. The line is served from its head until the
    router finds no replica for the first entry. So none is passed over, and an event costs the same however many wait.
    ``beginnings`` predicts before the first turn, ``estimator`` at each tool return. Both learn from ended
    trajectories.
    """

    def __init__(
        self,
        router: TurnRouter,
        estimator: Estimator,
        beginnings: Estimator | None = None,
        truth: Oracle | None = None,
    ) -> None:
        self._router = router
        self._estimator = estimator
        self._beginnings = ByPrompt() if beginnings is None else beginnings
        self._truth = truth  # for estimators that are given the answer
        self.rollouts = Rollouts(Line(router.rank), router.changed, router.gone)

    def decide(self, event: RolloutEvent) -> list[RolloutCommand]:
        """Apply an event that `Rollouts` accepts. Returns the commands that follow, in order."""
        trajectory = self.rollouts.apply(event)
        commands: list[RolloutCommand] = []
        answer = _ANSWERS.get(type(event))
        if answer is not None and trajectory is not None:
            answer(self, trajectory, event, commands)
        self._serve(event.at, commands)
        return commands

    def _begun(self, trajectory: Running, event: Begun, _: list[RolloutCommand]) -> None:
        if self._truth is not None and event.truth is not None:
            self._truth.foresee([event.truth])
        trajectory.left = (self._estimator if event.turns else self._beginnings).observe(trajectory.history)

    def _returned(self, trajectory: Running, event: Returned, _: list[RolloutCommand]) -> None:
        trajectory.left = self._estimator.observe(trajectory.history)

    def _resumed(self, trajectory: Running, event: Resumed, _: list[RolloutCommand]) -> None:
        if event.left is not None:
            trajectory.left = Left(event.left, event.left)

    def _park(self, trajectory: Running, event: Called | Paused, commands: list[RolloutCommand]) -> None:
        if trajectory.replica is not None:  # else its cache was lost with its replica
            cache = self._router.park(trajectory, self.rollouts)
            self.rollouts.park(trajectory, cache)
            commands.append(Park(trajectory.name, cache))

    def _sent(self, trajectory: Running, event: Sent, commands: list[RolloutCommand]) -> None:
        if not trajectory.in_tool:
            source = trajectory.replica if trajectory.doing == "moving" else None  # else it has no cache to move
            commands.append(Place(trajectory.name, event.replica, source=source, epoch=trajectory.epoch))

    def _ended(self, trajectory: Running, event: Ended, _: list[RolloutCommand]) -> None:
        self._leave(trajectory)
        history = trajectory.history
        done = Trajectory(
            history.trajectory, history.prompt, history.prompt, tuple(history.turns), history.prompt_tokens
        )
        self._estimator.learn(done)
        self._beginnings.learn(done)

    def _aborted(self, trajectory: Running, event: Aborted, _: list[RolloutCommand]) -> None:
        self._leave(trajectory)

    def _leave(self, trajectory: Running) -> None:
        self._router.ended(trajectory)
        if self._truth is not None:
            self._truth.forget(trajectory.name)

    def _serve(self, at: float, commands: list[RolloutCommand]) -> None:
        rollouts = self.rollouts
        if rollouts.awaited:
            return
        while (trajectory := rollouts.waiting.first()) is not None:
            choice = self._router.choose(trajectory, rollouts, at)
            if choice is None:
                return
            cache = choice.cache if trajectory.replica not in (None, choice.replica) else "keep"
            source = rollouts.place(trajectory, choice.replica, cache)
            commands.append(Place(trajectory.name, choice.replica, choice.priority, source, cache, trajectory.epoch))


_ANSWERS: dict[type[RolloutEvent], Callable[[Placement, Running, Any, list[RolloutCommand]], None]] = {
    Begun: Placement._begun,
    Returned: Placement._returned,
    Resumed: Placement._resumed,
    Called: Placement._park,
    Paused: Placement._park,
    Sent: Placement._sent,
    Ended: Placement._ended,
    Aborted: Placement._aborted,
}
"""What follows once the rollout's state is up to date, by kind of event."""
