"""Routers that ask no estimator: they count, remember and look at loads. Engines queue what they send."""

from __future__ import annotations

from bisect import bisect_left
from hashlib import blake2b

from steelyard.balance.rollouts import Replica, Rollouts, Running
from steelyard.balance.route.protocol import Choice, Plain
from steelyard.balance.route.ranking import Ranking

_FACTOR, _SLACK = 1.5, 4  # times the least busy, and turns more: how busy a replica may be for what it holds to count


class _Counted(Plain):
    """Knows who is up, in order of numbers."""

    def __init__(self) -> None:
        self._up: list[int] = []

    def changed(self, replica: Replica) -> None:
        index = bisect_left(self._up, replica.number)
        if index == len(self._up) or self._up[index] != replica.number:
            self._up.insert(index, replica.number)

    def gone(self, number: int) -> None:
        self._up.remove(number)


class RoundRobin(_Counted):
    """Each turn to the next replica in order of numbers, wherever its cache is."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0

    def choose(self, who: Running, rollouts: Rollouts, at: float) -> Choice | None:
        if not self._up:
            return None
        chosen = self._up[bisect_left(self._up, self._next) % len(self._up)]
        self._next = chosen + 1
        return Choice(chosen, cache="drop")


class LeastOutstanding(Plain):
    """Each turn to the replica with the fewest turns under way, wherever its cache is."""

    def __init__(self) -> None:
        self._ranking = Ranking()

    def choose(self, who: Running, rollouts: Rollouts, at: float) -> Choice | None:
        least = self.least()
        return None if least is None else Choice(least, cache="drop")

    def least(self) -> int | None:
        return self._ranking.first()

    def changed(self, replica: Replica) -> None:
        self._ranking.put(replica.number, replica.busy)

    def gone(self, number: int) -> None:
        self._ranking.remove(number)


class Sticky(LeastOutstanding):
    """The first turn to the least busy replica, all others to where the cache is."""

    def choose(self, who: Running, rollouts: Rollouts, at: float) -> Choice | None:
        return super().choose(who, rollouts, at) if who.replica is None else Choice(who.replica)


class PrefixAware(LeastOutstanding):
    """Where the own context is cached, else where the group's prompt was sent last, else the least busy replica.

    A replica that is far busier than the least busy is passed over: by half, and four turns more.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sent_to: dict[str, int] = {}  # by prompt
        self._members: dict[str, set[str]] = {}  # trajectories of each prompt that were placed and have not ended

    def choose(self, who: Running, rollouts: Rollouts, at: float) -> Choice | None:
        least = self.least()
        if least is None:
            return None
        prompt = who.history.prompt
        self._members.setdefault(prompt, set()).add(who.name)
        limit = rollouts.replicas[least].busy * _FACTOR + _SLACK
        chosen = least
        for holder in (who.replica, self._sent_to.get(prompt)):
            if holder is not None and rollouts.replicas[holder].busy <= limit:
                chosen = holder
                break
        self._sent_to[prompt] = chosen
        return Choice(chosen, cache="keep" if chosen == who.replica else "drop")

    def gone(self, number: int) -> None:
        super().gone(number)
        self._sent_to = {prompt: holder for prompt, holder in self._sent_to.items() if holder != number}

    def ended(self, who: Running) -> None:
        prompt = who.history.prompt
        members = self._members.get(prompt, set())
        members.discard(who.name)
        if not members:
            self._members.pop(prompt, None)
            self._sent_to.pop(prompt, None)


class PowerOfTwo(_Counted):
    """The less busy of two replicas drawn by trajectory and turn; a draw depends on nothing else but who is up."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._seed = seed

    def choose(self, who: Running, rollouts: Rollouts, at: float) -> Choice | None:
        count = len(self._up)
        if not count:
            return None
        text = f"{self._seed}:{who.name}:{len(who.history.turns)}"
        drawn = int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
        first = drawn % count
        second = (first + 1 + (drawn >> 32) % max(1, count - 1)) % count
        pair = self._up[first], self._up[second]
        return Choice(min(pair, key=lambda number: (rollouts.replicas[number].busy, number)), cache="drop")
