"""How far running turns are. A turn is reported when it is over; until then its tokens follow from time and speed."""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.balance.rollouts import Replica, Running
from steelyard.balance.route.speed import BucketSpeed


@dataclass(slots=True)
class _Clock:
    """Tokens that each trajectory on a replica has decoded there up to a second, and seconds of a step from then on."""

    tokens: float
    at: float
    step: float


class TurnProgress:
    """Tokens of running turns. `follow` has to be called when the load of a replica has changed."""

    def __init__(self) -> None:
        self._clocks: dict[int, _Clock] = {}
        self._begun: dict[str, tuple[int, int, float]] = {}  # a turn's replica and epoch, and its clock's tokens then

    def follow(self, replica: Replica, speed: BucketSpeed, at: float) -> None:
        """Its load has changed: note the turns that began, and the seconds of a step from now on."""
        tokens = self._decoded(replica.number, at)
        running = max(1, min(replica.busy, replica.seats))
        self._clocks[replica.number] = _Clock(tokens, at, speed.step(running, replica.active))
        for each in reversed(replica.placed.values()):  # the newest first
            if not self._note(each, tokens):
                return

    def resumed(self, trajectory: Running, at: float) -> None:
        """It may have begun a turn where it was before."""
        if trajectory.replica is not None:
            self._note(trajectory, self._decoded(trajectory.replica, at))

    def ended(self, name: str) -> int | None:
        """A trajectory is done, or gone. Returns where it was, if known."""
        begun = self._begun.pop(name, None)
        return None if begun is None else begun[0]

    def of_turn(self, trajectory: Running, at: float) -> float:
        """Tokens of its turn so far. Of a turn whose beginning was not seen, none but those that were reported."""
        replica, fresh = trajectory.replica, float(trajectory.fresh)
        begun = self._begun.get(trajectory.name)
        if trajectory.doing != "generating" or replica is None or begun is None:
            return fresh
        if begun[:2] != (replica, trajectory.epoch):
            return fresh
        return fresh + self._decoded(replica, at) - begun[2]

    def _note(self, trajectory: Running, tokens: float) -> bool:
        """Note where a turn began; False if that is known."""
        assert trajectory.replica is not None, "it is on a replica"
        begun = self._begun.get(trajectory.name)
        if begun is not None and begun[:2] == (trajectory.replica, trajectory.epoch):
            return False
        self._begun[trajectory.name] = trajectory.replica, trajectory.epoch, tokens
        return True

    def _decoded(self, number: int, at: float) -> float:
        clock = self._clocks.get(number)
        return 0.0 if clock is None else clock.tokens + (at - clock.at) / clock.step
