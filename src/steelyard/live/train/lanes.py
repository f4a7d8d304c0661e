"""All hybrid lanes of a training group."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Lock

from steelyard.live.train.frames import Channel
from steelyard.live.train.lane import Lane, LaneReport, LaneState, Reports, Snapshot, UpdateOrder
from steelyard.live.train.settings import TrainerSettings


class Lanes:
    """By name. A lane that is gone stays listed until it connects again."""

    def __init__(self, settings: TrainerSettings, snapshot: Snapshot) -> None:
        self.reports: Reports = SimpleQueue()
        self._settings = settings
        self._snapshot = snapshot
        self._lanes: dict[str, Lane] = {}
        self._epochs: dict[str, int] = {}  # in which lanes were last asked to join
        self._wanted: set[str] = set()  # asked to join, and not connected
        self._lock = Lock()

    def run(self, name: str, channel: Channel) -> None:
        """Serve a new connection of a lane until it ends. It takes the place of an older one."""
        lane = Lane(name, channel, self._settings, self._snapshot, self.reports)
        with self._lock:
            before, self._lanes[name] = self._lanes.get(name), lane
            wanted = name in self._wanted
            self._wanted.discard(name)
        if before is not None:
            before.end("the lane has connected again")
        self.reports.put(lane.report)
        if wanted:
            lane.join(self._epochs[name])
        lane.run()

    def join(self, name: str, epoch: int) -> None:
        """Begin to join as soon as the lane is connected. Another request of the same epoch changes nothing."""
        with self._lock:
            if epoch <= self._epochs.get(name, 0):
                return
            self._epochs[name] = epoch
            lane = self._lanes.get(name)
            absent = lane is None or lane.state is LaneState.GONE
            if absent:
                self._wanted.add(name)
        if absent:
            self.reports.put(LaneReport(name, epoch, LaneState.REQUESTED))
        elif lane is not None:
            lane.join(epoch)

    def find(self, name: str) -> Lane | None:
        """A lane that is connected."""
        with self._lock:
            lane = self._lanes.get(name)
        return None if lane is None or lane.state is LaneState.GONE else lane

    def drop(self, name: str, reason: str) -> None:
        """End a lane, or forget that it was asked to join."""
        with self._lock:
            self._wanted.discard(name)
            lane = self._lanes.get(name)
        if lane is not None:
            lane.end(reason)

    def reported(self) -> dict[str, LaneReport]:
        """The last report of each."""
        with self._lock:
            wanted = {name: LaneReport(name, self._epochs[name], LaneState.REQUESTED) for name in self._wanted}
            return {name: lane.report for name, lane in self._lanes.items()} | wanted

    def those(self, *states: LaneState) -> list[Lane]:
        """Lanes in these states, by name."""
        with self._lock:
            return [lane for _, lane in sorted(self._lanes.items()) if lane.state in states]

    @property
    def followed(self) -> bool:
        """Whether any lane gets updates."""
        with self._lock:
            return any(lane.following for lane in self._lanes.values())

    def update(self, order: UpdateOrder) -> None:
        """Have all that follow make an update."""
        with self._lock:
            following = [lane for lane in self._lanes.values() if lane.following]
        for lane in following:
            lane.update(order)

    def close(self) -> None:
        """End all."""
        with self._lock:
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.end("the training group has ended")
