"""Which replicas are there for requests, and the requests that wait until one is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from steelyard.balance.autoscale import Scaling
from steelyard.engine import ABORTED, Request
from steelyard.fleet.frontend import Frontend
from steelyard.fleet.together import Together
from steelyard.fleet.uptime import State, Uptime


@dataclass(frozen=True)
class Pool:
    """Replicas that may ever be there, those that are when it begins first."""

    replicas: range
    begins: int
    scaling: Scaling | None = None
    model: str = ""  # that it serves, where there are several


class Presence:
    """Opens replicas to new requests and closes them, and tells the routers."""

    def __init__(self, together: Together, pools: Sequence[Pool], uptime: Uptime) -> None:
        self._together = together
        self.pools = pools
        self.uptime = uptime
        self.pool_of = {replica: k for k, pool in enumerate(pools) for replica in pool.replicas}
        self._open = Counter(map(self._kind, self.pool_of))  # replicas there for new requests
        self._starts = [0] * len(together.engines)  # times each was asked to come up: an outdated one does not count
        self.nowhere: dict[int, Request] = {}  # requests that no replica is there for
        self.unplaced: dict[int, int] = {}  # prompts computed while no decode replica is there, and where they are

    def begin(self) -> None:
        """The replicas that are there when a run begins."""
        for pool in self.pools:
            for k, replica in enumerate(pool.replicas):
                if k < pool.begins:
                    self.uptime.set(replica, State.UP, 0.0)
                else:
                    self.close(replica)

    def has_replica(self, model: str, answering: bool) -> bool:
        """Whether any replica is there for a new request, or for a computed prompt."""
        return self._open[answering, model] > 0

    def close(self, replica: int) -> None:
        """Nothing new goes to a replica from now on."""
        self._tell_router(replica, up=False)

    def expect(self, replica: int, at: float) -> None:
        """A replica will be up then, unless it is given up before."""
        self._starts[replica] += 1
        number = self._starts[replica]
        self._together.at(at, lambda now: self._come_up(replica, now) if number == self._starts[replica] else None)

    def expect_no_more(self, replica: int) -> None:
        """A replica that was to come up will not."""
        self._starts[replica] += 1

    def await_replica(self, r: Request) -> None:
        """A request waits for any replica, as long as its client does."""
        self.nowhere[r.index] = r
        patience = self._together.desk.abort_at(r)
        if patience < inf:
            self._together.at(patience, lambda now: self._give_up(r, now))

    def _give_up(self, r: Request, now: float) -> None:
        """A client will not wait any longer; the log of the last replica it had, or of the first, tells."""
        i, together = r.index, self._together
        if self.nowhere.get(i) is not r:
            return
        del self.nowhere[i]
        r.status = ABORTED
        log = together.engines[max(int(together.desk.replica[i]), 0)].log
        log.given_up[i] = (now, "the client gave up")
        log.done(r)
        del together.asked[i]
        together.ended(1)
        together.take_over(i, -1, now)
        together.follow(now, i)

    def _come_up(self, replica: int, now: float) -> None:
        together = self._together
        self.uptime.set(replica, State.UP, now)
        together.frontends[replica] = Frontend(together.desk.host)
        self._tell_router(replica, up=True)
        if replica in together.taking:
            waiting, self.nowhere = self.nowhere, {}
            for r in waiting.values():
                together.send(r, now)
        else:
            unplaced, self.unplaced = self.unplaced, {}
            for i, source in unplaced.items():
                together.hand_over(i, source, now)

    def _kind(self, replica: int) -> tuple[bool, str]:
        """What a replica is there for: to answer or not, and for which model."""
        return replica in self._together.answering, self.pools[self.pool_of[replica]].model

    def _tell_router(self, replica: int, up: bool) -> None:
        self._open[self._kind(replica)] += 1 if up else -1
        together = self._together
        if replica in together.taking:
            together.router.available(replica, up)
        else:
            assert together.handover is not None
            together.handover.router.available(replica - together.handover.prefills, up)
