"""Request routers, used for turns. Engines queue what they are sent."""

from __future__ import annotations

from steelyard.balance.rollouts import Replica, Rollouts, Running
from steelyard.balance.route.plain import PrefixAware
from steelyard.balance.route.protocol import RoutedRequest, Router
from steelyard.balance.route.rollout.protocol import BaseTurnRouter, TurnChoice


class RequestTurns(BaseTurnRouter):
    """Each turn is a request. A trajectory is a session, and its prompt is the prefix that its group shares.

    Contexts that are cached on another replica are recomputed.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._up: set[int] = set()

    def choose(self, trajectory: Running, rollouts: Rollouts, at: float) -> TurnChoice | None:
        if not self._up:
            return None
        chosen = self._router.choose(_request(trajectory, at), trajectory.replica)
        return TurnChoice(chosen, cache="keep" if chosen == trajectory.replica else "drop")

    def changed(self, replica: Replica) -> None:
        number = replica.number
        if number not in self._up:
            self._up.add(number)
            self._router.available(number, True)
        self._router.set_load(number, replica.busy)

    def gone(self, number: int) -> None:
        self._up.discard(number)
        self._router.available(number, False)

    def ended(self, trajectory: Running) -> None:
        self._router.session_ended(_request(trajectory, trajectory.since))


class GroupPrefixAware(PrefixAware):
    """Forgets a group's prompt when all of its placed trajectories have ended."""

    def __init__(self) -> None:
        super().__init__()
        self._unfinished: dict[int | str, set[int | str]] = {}  # trajectories by prompt

    def choose(self, request: RoutedRequest, home: int | None = None) -> int:
        self._unfinished.setdefault(request.names[0], set()).add(request.session)
        return super().choose(request, home)

    def session_ended(self, request: RoutedRequest) -> None:
        prompt = request.names[0]
        unfinished = self._unfinished.get(prompt, set())
        unfinished.discard(request.session)
        if not unfinished:
            self._unfinished.pop(prompt, None)
            self.forget(prompt)


def _request(trajectory: Running, at: float) -> RoutedRequest:
    history = trajectory.history
    return RoutedRequest(
        trajectory.name, trajectory.name, (history.prompt,), trajectory.context, at=at, turn=len(history.turns)
    )
