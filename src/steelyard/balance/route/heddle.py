"""After Heddle, the nearest rival: longest first, trajectories sorted onto replicas, moves while tools run."""

from __future__ import annotations

from math import inf

from steelyard.balance.rollouts import Replica, Rollouts, Running
from steelyard.balance.route.protocol import Choice, Plain
from steelyard.balance.route.ranking import Ranking

_BANDS = 4 * 24  # quarter octaves of tokens, up to 16 million


class Heddle(Plain):
    """Longest predicted first, in line and in engines; the longest belong on the highest degree, and so on down.

    Sorted by what they are predicted to have left, trajectories are dealt out from the top: each degree takes the
    share of all predicted tokens that it has of the GPUs, and those of about one length may be of two degrees. Who is
    predicted to belong elsewhere after a tool return moves, to the least busy replica there; with no seat there it
    takes the least busy one anywhere.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, Ranking] = {}  # by degree, falling
        self._degrees: dict[int, int] = {}
        self._bands = [0] * _BANDS  # predicted tokens of all under way
        self._predicted: dict[str, int] = {}

    def choose(self, who: Running, rollouts: Rollouts, at: float) -> Choice | None:
        predicted = round(who.left.mean)
        self._predict(who.name, predicted)
        parts = self._parts(predicted)
        priority = -predicted
        home = who.replica
        if home is not None and self._degrees[home] in parts and rollouts.replicas[home].free_seats > 0:
            return Choice(home, priority)
        best = self._least_busy(parts, rollouts) or self._least_busy(dict.fromkeys(self._buckets, 1.0), rollouts)
        return None if best is None else Choice(best.number, priority)

    def rank(self, who: Running) -> float:
        return -who.left.mean

    def changed(self, replica: Replica) -> None:
        if replica.tp not in self._buckets:
            self._buckets = dict(sorted([*self._buckets.items(), (replica.tp, Ranking())], reverse=True))
        self._degrees[replica.number] = replica.tp
        self._buckets[replica.tp].put(replica.number, replica.free_seats <= 0, replica.busy)

    def gone(self, number: int) -> None:
        degree = self._degrees.pop(number)
        self._buckets[degree].remove(number)
        if not len(self._buckets[degree]):
            del self._buckets[degree]

    def ended(self, who: Running) -> None:
        self._predict(who.name, 0)
        self._predicted.pop(who.name, None)

    def _predict(self, name: str, tokens: int) -> None:
        before = self._predicted.get(name, 0)
        self._bands[_band(before)] -= before
        self._bands[_band(tokens)] += tokens
        self._predicted[name] = tokens

    def _parts(self, tokens: int) -> dict[int, float]:
        """The degrees that those of about this length are dealt out to, counted from the longest down, and how many."""
        band = _band(tokens)
        first = sum(self._bands[band + 1 :])
        last = first + self._bands[band]
        gpus = sum(degree * len(ranking) for degree, ranking in self._buckets.items())
        by_gpu = sum(self._bands) / max(1, gpus)
        parts, start = {}, 0.0
        for degree, ranking in self._buckets.items():
            end = start + by_gpu * degree * len(ranking)
            part = min(end, last) - max(start, first)
            if part > 0:
                parts[degree] = part
            start = end
        return parts

    def _least_busy(self, parts: dict[int, float], rollouts: Rollouts) -> Replica | None:
        """A replica with a seat, with the fewest under way for its GPUs and for what its degree is to get."""
        best, least = None, inf
        for degree, part in parts.items():
            number = self._buckets[degree].first()
            replica = None if number is None else rollouts.replicas[number]
            if replica is not None and replica.free_seats > 0 and replica.busy / (degree * part) < least:
                best, least = replica, replica.busy / (degree * part)
        return best


def _band(tokens: int) -> int:
    """Quarter octaves: the logarithm of the fourth power, rounded down."""
    return min(_BANDS - 1, ((1 + tokens) ** 4).bit_length() - 1)
