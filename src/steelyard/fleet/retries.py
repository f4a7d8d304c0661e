"""Requests that start over, since the replica that had them, or their prompt, has crashed."""

from __future__ import annotations

from dataclasses import replace

from steelyard.engine import FINISHED
from steelyard.fleet.presence import Presence
from steelyard.fleet.together import FETCH, FIRST, HAND_OVER, SEE, Together
from steelyard.fleet.whereabouts import Whereabouts


class Retries:
    """Takes everything off a replica, and sends its requests again."""

    def __init__(self, together: Together, presence: Presence, places: Whereabouts) -> None:
        self._together, self._presence, self._places = together, presence, places
        self.count: dict[int, int] = {}  # by request that had to start over: how often

    def send_again(self, lost: list[int], now: float) -> None:
        """Requests start over, the oldest first."""
        desk = self._together.desk
        for i in sorted(lost, key=lambda i: (desk.arrival[i], i)):
            self.count[i] = self.count.get(i, 0) + 1
            self._together.asked[i] = replace(self._together.asked[i], at=now)
            self._together.send(desk.request(i, float(desk.arrival[i])), now)

    def lose_all(self, replica: int, now: float) -> list[int]:
        """Empty a replica; the requests that have to start over."""
        together = self._together
        lost = [r.index for r in (*together.engines[replica].crash(now), *together.taken[replica])]
        together.taken[replica].clear()
        together.unanswered[replica].clear()
        together.clock.drop(lambda event: event[3] == replica and event[1] in (SEE, FIRST, HAND_OVER, FETCH))
        if together.handover is not None and replica in together.taking:
            lost += self._prompts_on(replica, now)
        half_done: dict[int, list[int]] = {}  # prompts that were computed for nothing, by replica
        for i in lost:
            together.fetches.pop(i, None)
            where = self._places.lost(i)
            if where in together.taking:
                together.router.ended(together.asked[i], where)
            if together.handover is not None:
                if where in together.answering or together.handed.pop(i, None) is not None:
                    half_done.setdefault(int(together.desk.replica[i]), []).append(i)
                self._unhand(i, where, replica, now)
        for where, indices in half_done.items():
            together.engines[where].log.lose(indices)
        if together.handover is not None:
            together.await_transfer()
        return lost

    def _unhand(self, i: int, where: int, crashed: int, now: float) -> None:
        """A lost request is not on its way between its two replicas any more."""
        together, handover = self._together, self._together.handover
        assert handover is not None
        if where in together.answering:
            handover.router.ended(together.asked[i], where - handover.prefills)
        source = handover.forget(i, now)
        if source is not None and source.replica != crashed:
            together.let_go(source, now)
        elif source is not None:
            self._places.there[crashed] -= 1

    def _prompts_on(self, replica: int, now: float) -> list[int]:
        """Requests whose prompt was computed here and is not elsewhere yet."""
        together, handover = self._together, self._together.handover
        assert handover is not None
        lost = [i for i in together.handed if together.desk.replica[i] == replica]
        for i in lost:
            self._presence.unplaced.pop(i, None)
        for i, waiting in list(handover.waiting.items()):
            if waiting.replica == replica:
                if i in self._places.where and self._withdraw(i, now):
                    lost.append(i)
                else:  # its client has gone, and only the fetch goes on
                    handover.forget(i, now)
                    self._places.there[replica] -= 1
        return lost

    def _withdraw(self, i: int, now: float) -> bool:
        """Take a request away from where it waits for its prompt; False if it does not need that any more."""
        together = self._together
        where, r = self._places.where[i]
        engine = together.run_to(where, now)
        if r.status >= FINISHED or (i in together.fetches and not together.fetches[i][1]):
            return False
        if r in together.taken[where]:
            together.taken[where].remove(r)
        else:
            engine.withdraw(r, now)
        together.clock.drop(lambda event: event[2] == i and event[1] in (SEE, FETCH))
        together.sleep(where)
        return True
