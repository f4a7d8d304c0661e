"""Where each turn runs: the part of the core that keeps the picture of a rollout and asks router and estimator."""

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
    ReplicaDown,
    ReplicaUp,
    Resumed,
    Returned,
    RolloutEvent,
    Sent,
)
from steelyard.balance.line import Line
from steelyard.balance.rollouts import Reason, Rollouts, Running
from steelyard.balance.route.rollout import TurnRouter
from steelyard.records import Trajectory

_COMES_OR_GOES = ReplicaUp, ReplicaDown


class Placement:
    """Keeps the picture of a rollout, asks the estimator, and has the router place every trajectory that wants a turn.

    Trajectories that want one join the line, whose order is the router's. The line is served from its head until the
    router finds no place for the first. So none is passed over, and an event costs the same however many wait.
    ``beginnings`` is asked before a first turn, ``estimator`` at each tool return; both learn from what has ended.
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
        self._truth = truth  # for estimators that are told the answer
        self.rollouts = Rollouts(Line(router.rank), router.changed)

    def accepts(self, event: RolloutEvent) -> Reason | None:
        """Why an event does not count; None if it does."""
        return self.rollouts.accepts(event)

    def decide(self, event: RolloutEvent) -> list[RolloutCommand]:
        """Apply an event that is accepted; the commands that follow, in this order."""
        if isinstance(event, _COMES_OR_GOES) and event.replica in self.rollouts.replicas:
            self._router.gone(event.replica)
        who = self.rollouts.apply(event)
        commands: list[RolloutCommand] = []
        if who is not None:
            answer = _ANSWERS.get(type(event))
            if answer is not None:
                answer(self, who, event, commands)
        self._serve(event.at, commands)
        return commands

    def _begun(self, who: Running, event: Begun, _: list[RolloutCommand]) -> None:
        if self._truth is not None and event.truth is not None:
            self._truth.foresee([event.truth])
        who.left = (self._estimator if event.turns else self._beginnings).observe(who.history)

    def _returned(self, who: Running, event: Returned, _: list[RolloutCommand]) -> None:
        who.left = self._estimator.observe(who.history)

    def _resumed(self, who: Running, event: Resumed, _: list[RolloutCommand]) -> None:
        if event.left is not None:
            who.left = Left(event.left, event.left)

    def _park(self, who: Running, event: Called | Paused, commands: list[RolloutCommand]) -> None:
        if who.replica is not None:  # else its cache was lost with its replica
            cache = self._router.park(who, self.rollouts)
            self.rollouts.park(who, cache)
            commands.append(Park(who.name, cache))

    def _sent(self, who: Running, event: Sent, commands: list[RolloutCommand]) -> None:
        if not who.in_tool:
            source = who.replica if who.doing == "moving" else None  # else it has nothing to bring along
            commands.append(Place(who.name, event.replica, source=source, epoch=who.epoch))

    def _ended(self, who: Running, event: Ended, _: list[RolloutCommand]) -> None:
        self._router.ended(who)
        history = who.history
        done = Trajectory(
            history.trajectory, history.prompt, history.prompt, tuple(history.turns), history.prompt_tokens
        )
        self._estimator.learn(done)
        self._beginnings.learn(done)

    def _aborted(self, who: Running, event: Aborted, _: list[RolloutCommand]) -> None:
        self._router.ended(who)

    def _serve(self, at: float, commands: list[RolloutCommand]) -> None:
        rollouts = self.rollouts
        while (who := rollouts.waiting.first()) is not None:
            choice = self._router.choose(who, rollouts, at)
            if choice is None:
                return
            cache = choice.cache if who.replica not in (None, choice.replica) else "keep"
            source = rollouts.place(who, choice.replica, cache)
            commands.append(Place(who.name, choice.replica, choice.priority, source, cache, who.epoch))


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
"""What follows once the picture is up to date, by kind of event."""
