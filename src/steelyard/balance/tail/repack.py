"""Repacking: when few trajectories are left, gather them on few replicas, which frees the others for training."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from steelyard.balance.commands import Repack, TrajectoryMove
from steelyard.balance.rollouts import Replica, Rollouts, Running
from steelyard.balance.tail.commands import TailCommand
from steelyard.balance.tail.events import TailEvent
from steelyard.balance.tail.groups import Round
from steelyard.balance.tail.policies import Divided, Opening, OverSampling, PartialRollout, Plain, TailBatching

_PLAIN = Plain()


@dataclass(frozen=True)
class LastFew:
    """Base of policies that change replicas when few samples are left. ``within`` decides everything else."""

    within: Plain | OverSampling | TailBatching | PartialRollout | Divided = _PLAIN

    def over(self, round_: Round) -> bool:
        return self.within.over(round_)


@dataclass(frozen=True)
class Repacking(LastFew):
    """Gathers once a share ``few`` of a round's samples is left, and again whenever half of those have ended."""

    few: float = 0.25
    fill: float = 0.5  # share of seats and cache to fill, so that gathered trajectories stay fast

    def open(self, round_: Round) -> Opening:
        round_.repack_at = int(self.few * round_.wanted * round_.size)
        return self.within.open(round_)

    def react(self, round_: Round, event: TailEvent) -> list[TailCommand]:
        commands = self.within.react(round_, event)
        if round_.few_left:
            round_.repack_at = len(round_.rollouts.running) // 2
            repack = gather(round_.rollouts, self.fill)
            if repack is not None:
                commands.append(repack)
        return commands


def gather(rollouts: Rollouts, fill: float) -> Repack | None:
    """Gather on the fewest replicas that hold all remaining trajectories. None if that frees no replica, or if a
    trajectory is waiting or moving.

    Fast replicas (high tensor-parallel degrees) come first, since a few long trajectories want latency, then those with
    most cached tokens.
    """
    left = list(rollouts.running.values())
    occupied = [replica for replica in rollouts.replicas.values() if replica.placed or replica.coming]
    if any(trajectory.replica is None or trajectory.doing in ("waiting", "moving") for trajectory in left):
        return None
    occupied.sort(key=lambda replica: (-replica.tp, -replica.tokens, replica.number))
    for count in range(1, len(occupied)):
        moves = _fit(left, occupied[:count], fill)
        if moves is not None:
            kept = {replica.number for replica in occupied[:count]}
            return Repack(tuple(moves), tuple(sorted(set(rollouts.replicas) - kept)))
    return None


def _fit(left: list[Running], targets: list[Replica], fill: float) -> list[TrajectoryMove] | None:
    """Trajectories on targets stay; others, largest first, go where most seats are free. None if some do not fit."""
    seats = {target.number: int(fill * target.seats) for target in targets}
    tokens = {target.number: fill * target.capacity for target in targets}
    moves = []
    for trajectory in sorted(
        left, key=lambda trajectory: (trajectory.replica not in seats, -_need(trajectory), trajectory.name)
    ):
        source = trajectory.replica
        assert source is not None
        target = source if source in seats else max(seats, key=lambda number: (seats[number], tokens[number], -number))
        seats[target] -= 1
        tokens[target] -= _need(trajectory)
        if seats[target] < 0 or tokens[target] < 0:
            return None
        if target != source:
            moves.append(TrajectoryMove(trajectory.name, source, target))
    return moves


def _need(trajectory: Running) -> float:
    """Context tokens at its end: by the 90th percentile of its prediction if known, else by the mean."""
    return trajectory.context + (trajectory.left.p90 if isfinite(trajectory.left.p90) else trajectory.left.mean)
