"""Reconfiguration: for the last trajectories narrow replicas are merged into wide ones, which are faster for few."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from steelyard.balance.commands import Merge, Reconfigure
from steelyard.balance.events import Begun, Returned
from steelyard.balance.rollouts import Rollouts, Running
from steelyard.balance.route.rollout.demand import lengths, unknown
from steelyard.balance.route.speed import BucketSpeed
from steelyard.balance.tail.commands import TailCommand
from steelyard.balance.tail.events import GivenUp, Room, RoundBegan, TailEvent
from steelyard.balance.tail.groups import Round
from steelyard.balance.tail.payback import Part, pays
from steelyard.balance.tail.policies import Opening
from steelyard.balance.tail.repack import LastFew

_AGAIN = 7 / 8  # of those left: when to look again; chosen


@dataclass(frozen=True, slots=True)
class WideReplicas:
    """What a core is told of the replicas that others can be merged into."""

    tp: int
    merges: tuple[Merge, ...]
    seats: int  # of each
    tokens: int  # that the cache of each holds
    seconds: float  # from the command until they run, caches aside
    move: float  # seconds to move one cached token over
    longest: int  # tokens that a trajectory can come to


@dataclass(frozen=True)
class Reconfiguring(LastFew):
    """Merges replicas once it pays by what is likely left, or once a share ``few`` of a round's samples is left."""

    few: float | None = None
    wide: WideReplicas | None = None
    speeds: tuple[tuple[int, BucketSpeed], ...] = ()  # by tensor-parallel degree

    def open(self, round_: Round) -> Opening:
        wanted = round_.wanted * round_.size
        round_.repack_at = wanted if self.few is None else int(self.few * wanted)
        return self.within.open(round_)

    def react(self, round_: Round, event: TailEvent) -> list[TailCommand]:
        commands = self.within.react(round_, event)
        if self.few is None:
            self._follow(round_, event)
        if round_.few_left and self.wide is not None:
            left = len(round_.rollouts.running)
            round_.repack_at = min(left - 1, int(_AGAIN * left))
            if self._can(round_.rollouts, self.wide) and self._wants(round_, self.wide, event.at):
                round_.repack_at = 0
                commands.append(Reconfigure(self.wide.merges))
        return commands

    def _follow(self, round_: Round, event: TailEvent) -> None:
        """Keep up with the turns that run."""
        if isinstance(event, Room | RoundBegan | GivenUp):
            return
        progress, rollouts, at = round_.progress, round_.rollouts, event.at
        trajectory = rollouts.running.get(event.trajectory)
        number = progress.ended(event.trajectory) if trajectory is None else trajectory.replica
        if trajectory is not None and isinstance(event, Begun | Returned):
            progress.resumed(trajectory, at)
        if number is not None and number in rollouts.replicas:
            replica = rollouts.replicas[number]
            progress.follow(replica, dict(self.speeds)[replica.tp], at)

    def _can(self, rollouts: Rollouts, wide: WideReplicas) -> bool:
        """Whether all that are to be merged are up, and the wide ones have seats for everybody."""
        up = all(number in rollouts.replicas for merge in wide.merges for number in merge.of)
        return up and 0 < len(rollouts.running) <= wide.seats * len(wide.merges)

    def _wants(self, round_: Round, wide: WideReplicas, at: float) -> bool:
        """Whether caches fit, and it pays or is wanted whatever it gains."""
        running = list(round_.rollouts.running.values())
        had = [round_.progress.of_turn(each, at) for each in running]
        cached = sum(each.history.context for each in running) + sum(had)
        if cached > wide.tokens * len(wide.merges):
            return False
        if self.few is not None:
            return True
        left = [_left(each, tokens, wide.longest) for each, tokens in zip(running, had, strict=True)]
        speed = dict(self.speeds)[wide.tp]
        bring = cached / len(wide.merges) * min(wide.move, speed.prefill)
        merged = {number for merge in wide.merges for number in merge.of}
        stay = len(round_.rollouts.replicas) - len(merged)
        then = Part(speed, len(wide.merges) + stay, 1.0)
        return pays(left, cached / len(running), self._parts(round_.rollouts), then, wide.seconds + bring)

    def _parts(self, rollouts: Rollouts) -> list[Part]:
        """Replicas by degree, with the share of the trajectories that are there; shares of all of them if nobody is."""
        replicas, where = dict[int, int](), dict[int, int]()
        for replica in rollouts.replicas.values():
            replicas[replica.tp] = replicas.get(replica.tp, 0) + 1
            where[replica.tp] = where.get(replica.tp, 0) + len(replica.placed)
        if not any(where.values()):
            where = replicas
        speeds, all_of_them = dict(self.speeds), sum(where.values())
        return [Part(speeds[tp], count, where[tp] / all_of_them) for tp, count in replicas.items() if where[tp]]


def _left(trajectory: Running, tokens: float, longest: int) -> list[float]:
    """Tokens that a trajectory may have left, equally likely and rising, when its turn has had so many.

    They are by its estimate, or once it has outlasted that, as many as it has had in half of all cases. One whose
    length is known for sure has not outlasted it: its tokens are a little fewer than time says.
    """
    mean, p90 = trajectory.left.mean, trajectory.left.p90
    had = trajectory.history.generated + tokens
    most = max(1.0, longest - trajectory.history.context - tokens)
    if mean >= p90:
        return [min(most, max(1.0, mean - tokens))]
    likely = [length - tokens for length in lengths(trajectory.left) if length > tokens] if isfinite(p90) else []
    return [min(most, each) for each in likely or unknown(int(had))]
