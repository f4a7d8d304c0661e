"""After Heddle: longest first, replicas by length, moves while tools run."""

from __future__ import annotations

from math import inf

from steelyard.balance.rollouts import Replica, Rollouts, Running
from steelyard.balance.route.ranking import Ranking
from steelyard.balance.route.rollout.protocol import BaseTurnRouter, TurnChoice

_BANDS = 4 * 24  # quarter octaves of tokens, up to 16 million


class Heddle(BaseTurnRouter):
    """Longest predicted first, in the queue and inside engines. The longest belong on the highest tensor-parallel
    degree, shorter ones on lower degrees.

    Trajectories are sorted by their predicted remaining tokens and assigned from the top. Each degree gets the share of
    all predicted tokens that it has of the GPUs, so trajectories of one length may be split between two degrees. After
    a tool return a trajectory that belongs to another degree moves to its least busy replica, or to the least busy of
    all replicas if no seat is free there.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, Ranking] = {}  # by degree, falling
        self._degrees: dict[int, int] = {}
        self._bands = [0] * _BANDS  # predicted tokens of all trajectories under way
        self._predicted: dict[str, int] = {}

    def choose(self, trajectory: Running, rollouts: Rollouts, at: float) -> TurnChoice | None:
        predicted = round(trajectory.left.mean)
        self._predict(trajectory.name, predicted)
        shares = self._shares(predicted)
        priority = -predicted
        home = trajectory.replica
        if home is not None and self._degrees[home] in shares and rollouts.replicas[home].free_seats > 0:
            return TurnChoice(home, priority)
        best = self._least_busy(shares, rollouts) or self._least_busy(dict.fromkeys(self._buckets, 1.0), rollouts)
        return None if best is None else TurnChoice(best.number, priority)

    def rank(self, trajectory: Running) -> float:
        return -trajectory.left.mean

    def changed(self, replica: Replica) -> None:
        if replica.tp not in self._buckets:
            self._buckets = dict(sorted([*self._buckets.items(), (replica.tp, Ranking())], reverse=True))
        self._degrees[replica.number] = replica.tp
        self._buckets[replica.tp].put(replica.number, replica.busy, full=replica.free_seats <= 0)

    def gone(self, number: int) -> None:
        degree = self._degrees.pop(number)
        self._buckets[degree].remove(number)
        if not len(self._buckets[degree]):
            del self._buckets[degree]

    def ended(self, trajectory: Running) -> None:
        self._predict(trajectory.name, 0)
        self._predicted.pop(trajectory.name, None)

    def _predict(self, name: str, tokens: int) -> None:
        before = self._predicted.get(name, 0)
        self._bands[_band(before)] -= before
        self._bands[_band(tokens)] += tokens
        self._predicted[name] = tokens

    def _shares(self, tokens: int) -> dict[int, float]:
        """By degree: its share of the predicted tokens of trajectories of about this length."""
        band = _band(tokens)
        first = sum(self._bands[band + 1 :])
        last = first + self._bands[band]
        gpus = sum(degree * len(ranking) for degree, ranking in self._buckets.items())
        by_gpu = sum(self._bands) / max(1, gpus)
        shares, start = {}, 0.0
        for degree, ranking in self._buckets.items():
            end = start + by_gpu * degree * len(ranking)
            share = min(end, last) - max(start, first)
            if share > 0:
                shares[degree] = share
            start = end
        return shares

    def _least_busy(self, shares: dict[int, float], rollouts: Rollouts) -> Replica | None:
        """The replica with a free seat and the fewest turns relative to its GPUs and to the share of its degree."""
        best, least = None, inf
        for degree, share in shares.items():
            replica = rollouts.replicas[self._buckets[degree].first()]
            if replica.free_seats > 0 and replica.busy / (degree * share) < least:
                best, least = replica, replica.busy / (degree * share)
        return best


def _band(tokens: int) -> int:
    """Quarter octaves: the logarithm of the fourth power, rounded down."""
    return min(_BANDS - 1, ((1 + tokens) ** 4).bit_length() - 1)
