"""Requests that start over after the replica that had them, or their prompt, crashed."""

from __future__ import annotations

from dataclasses import replace

from steelyard.engine import FINISHED
from steelyard.fleet.driver import FETCH, FIRST, HAND_OVER, SEE, FleetDriver
from steelyard.fleet.placements import Placements
from steelyard.fleet.presence import Presence


class Retries:
    """Empties a crashed replica and sends its requests again."""

    def __init__(self, driver: FleetDriver, presence: Presence, placements: Placements) -> None:
        self._driver, self._presence, self._placements = driver, presence, placements
        self.count: dict[int, int] = {}  # by request: how often it started over

    def send_again(self, lost: list[int], now: float) -> None:
        """Send lost requests again, the oldest first."""
        desk = self._driver.desk
        for i in sorted(lost, key=lambda i: (desk.arrival[i], i)):
            self.count[i] = self.count.get(i, 0) + 1
            self._driver.in_flight[i] = replace(self._driver.in_flight[i], at=now)
            self._driver.send(desk.request(i, float(desk.arrival[i])), now)

    def empty(self, replica: int, now: float) -> list[int]:
        """Remove everything from a replica. Returns the requests that have to start over."""
        driver = self._driver
        lost = [r.index for r in (*driver.engines[replica].crash(now), *driver.taken[replica])]
        driver.taken[replica].clear()
        driver.unanswered[replica].clear()
        driver.clock.drop(lambda event: event[3] == replica and event[1] in (SEE, FIRST, HAND_OVER, FETCH))
        if driver.handover is not None and replica in driver.taking:
            lost += self._prompts_on(replica, now)
        half_done: dict[int, list[int]] = {}  # by prefill replica: prompts computed in vain
        for i in lost:
            driver.fetches.pop(i, None)
            where = self._placements.lost(i)
            if where in driver.taking:
                driver.router.ended(driver.in_flight[i], where)
            if driver.handover is not None:
                if where in driver.answering or driver.handed.pop(i, None) is not None:
                    half_done.setdefault(int(driver.desk.replica[i]), []).append(i)
                self._cancel_handover(i, where, replica, now)
        for where, indices in half_done.items():
            driver.engines[where].log.lose(indices)
        if driver.handover is not None:
            driver.await_transfer()
        return lost

    def _cancel_handover(self, i: int, where: int, crashed: int, now: float) -> None:
        """Cancel the handover of a lost request."""
        driver, handover = self._driver, self._driver.handover
        assert handover is not None
        if where in driver.answering:
            handover.router.ended(driver.in_flight[i], where - handover.prefills)
        source = handover.forget(i, now)
        if source is not None and source.replica != crashed:
            driver.release_prefill(source, now)
        elif source is not None:
            self._placements.count[crashed] -= 1

    def _prompts_on(self, replica: int, now: float) -> list[int]:
        """Requests whose prompt was computed on this replica and has not been fetched."""
        driver, handover = self._driver, self._driver.handover
        assert handover is not None
        lost = [i for i in driver.handed if driver.desk.replica[i] == replica]
        for i in lost:
            self._presence.unplaced.pop(i, None)
        for i, waiting in list(handover.waiting.items()):
            if waiting.replica == replica:
                if i in self._placements.where and self._withdraw(i, now):
                    lost.append(i)
                else:  # its client gave up; only the transfer is left
                    handover.forget(i, now)
                    self._placements.count[replica] -= 1
        return lost

    def _withdraw(self, i: int, now: float) -> bool:
        """Remove a request from the decode engine where it waits for its prompt; False if it no longer waits."""
        driver = self._driver
        where, r = self._placements.where[i]
        engine = driver.run_to(where, now)
        if r.status >= FINISHED or (i in driver.fetches and not driver.fetches[i][1]):
            return False
        if r in driver.taken[where]:
            driver.taken[where].remove(r)
        else:
            engine.withdraw(r, now)
        driver.clock.drop(lambda event: event[2] == i and event[1] in (SEE, FETCH))
        driver.sleep(where)
        return True
