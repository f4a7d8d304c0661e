"""A hybrid lane as rank 0 sees it: a connection, and a thread that carries out orders on it one after the other.

Training only puts orders into a lane's queue and never waits for the lane, except for gradients that it has asked for,
and these for a limited time. Whatever goes wrong ends the lane, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from queue import SimpleQueue
from threading import RLock

from torch import Tensor

from steelyard.live.train.answers import computed_from, is_vector
from steelyard.live.train.frames import Channel, ChannelFailed, Frame, Stamp
from steelyard.live.train.replica import Computed
from steelyard.live.train.samples import TrainingRow, packed
from steelyard.live.train.settings import TrainerSettings

_ROOM = 1 << 26  # bytes of an answer beside its gradient: log-probabilities of 16 million tokens


class LaneState(StrEnum):
    """Where a lane is on its way. The pool's *requested* is here one that is asked to join and not yet connected."""

    REQUESTED = "requested"
    IDLE = "idle"  # connected, with no state and no part in training
    FETCHING = "fetching"  # gets weights and optimiser state, and the updates made since
    SYNCING = "syncing"  # takes part in exchanges and gives nothing
    READY = "ready"  # was through an exchange and has the same weights as the core
    ACTIVE = "active"  # gets a share of the samples from the next step on
    LEAVING = "leaving"
    GONE = "gone"  # has failed, or was dropped


@dataclass(frozen=True)
class LaneReport:
    """A lane has come into a state, or has been through another exchange as `READY`.

    `SYNCING` carries the step and version of the state that it has fetched. `READY` and `ACTIVE` carry those of the
    step whose exchange it was through, as that step began.
    """

    lane: str
    epoch: int
    state: LaneState
    step: int = 0
    version: int = 0
    reason: str = ""


@dataclass(frozen=True)
class LaneGradient:
    """A lane's answer. It has no gradient if it had nothing to compute."""

    gradient: Tensor | None
    computed: Computed


@dataclass(frozen=True)
class FetchOrder:
    """Send state."""


@dataclass(frozen=True)
class ComputeOrder:
    """Compute the gradient of some rows, or take part without any."""

    stamp: Stamp
    rows: Sequence[TrainingRow]
    answer: Future[LaneGradient] = field(default_factory=Future)


@dataclass(frozen=True)
class UpdateOrder:
    """Make the update that all others make. ``digest`` is that of the weights afterwards, if it is wanted."""

    stamp: Stamp
    after: Stamp  # where the group is then
    gradient: Tensor
    digest: int | None


@dataclass(frozen=True)
class LeaveOrder:
    """Free everything, and be idle."""

    stamp: Stamp


Order = FetchOrder | ComputeOrder | UpdateOrder | LeaveOrder
Reports = SimpleQueue[LaneReport]
Snapshot = Callable[["Lane"], tuple[Stamp, dict[str, Tensor]]]
"""Makes a lane follow all updates from now on, and copies the state as of now."""


class Lane:
    """One connection of a lane. `run` ends with it; every change of its state is told to ``reports``."""

    def __init__(
        self, name: str, channel: Channel, settings: TrainerSettings, snapshot: Snapshot, reports: Reports
    ) -> None:
        self.name = name
        self.report = LaneReport(name, 0, LaneState.IDLE)  # the last one
        self.following = False  # whether it gets all updates
        self._behind = 0  # updates that it has not made yet
        self._lock = RLock()
        self._channel = channel
        self._settings = settings
        self._snapshot = snapshot
        self._reports = reports
        self._orders: SimpleQueue[Order | None] = SimpleQueue()
        self._exchanged: Stamp | None = None  # the last exchange that it took part in
        self._parameters = 0

    @property
    def state(self) -> LaneState:
        return self.report.state

    @property
    def epoch(self) -> int:
        return self.report.epoch

    # From other threads

    def join(self, epoch: int) -> None:
        """Send it state, from its own thread."""
        with self._lock:
            if self.state is LaneState.IDLE:
                self.report = replace(self.report, epoch=epoch)
                self._enter(LaneState.FETCHING, Stamp(epoch))
                self._orders.put(FetchOrder())
                return
        self.end(f"it was asked to join again while it was {self.state}")

    def follow(self) -> None:
        """Get all updates from now on."""
        with self._lock:
            self.following = self.state is LaneState.FETCHING

    def activate(self) -> bool:
        """Let it have a share from the next step on. False if it is not ready."""
        with self._lock:
            if self.state is LaneState.READY:
                self._enter(LaneState.ACTIVE, Stamp(self.epoch, self.report.step, self.report.version))
            return self.state is LaneState.ACTIVE

    def leave(self) -> None:
        """Let it go when it has done what it was asked for."""
        with self._lock:
            if self.following and self.state is not LaneState.FETCHING:
                self.following = False
                self._enter(LaneState.LEAVING, Stamp(self.epoch))
                self._orders.put(LeaveOrder(Stamp(self.epoch)))
                return
        self.end("it was told to leave before it had joined")

    def compute(self, stamp: Stamp, rows: Sequence[TrainingRow]) -> Future[LaneGradient]:
        """Ask for the gradient of some rows. The answer is cancelled if the lane ends."""
        order = ComputeOrder(replace(stamp, epoch=self.epoch), rows)
        with self._lock:
            if self.state is LaneState.GONE:
                order.answer.cancel()
            else:
                self._orders.put(order)
        return order.answer

    def update(self, order: UpdateOrder) -> None:
        """Have it make an update, unless that is one too many to be behind."""
        with self._lock:
            if not self.following:
                return
            self._behind += 1
            late = self._behind > self._settings.catch_up
            self._orders.put(replace(order, stamp=replace(order.stamp, epoch=self.epoch)))
        if late:
            self.end(f"it is more than {self._settings.catch_up} updates behind")

    def end(self, reason: str) -> None:
        """Have nothing to do with it any more. It may be called more than once."""
        with self._lock:
            if self.state is not LaneState.GONE:
                self.following = False
                self._enter(LaneState.GONE, Stamp(self.epoch), reason)
            self._orders.put(None)
        self._channel.close()

    # In its own thread

    def run(self) -> None:
        """Carry out orders until it ends."""
        try:
            while (order := self._orders.get()) is not None:
                self._carry_out(order)
        except ChannelFailed as problem:
            self.end(str(problem))
        except Exception as problem:  # whatever a lane sends must not stop anything but its own thread
            self.end(f"{type(problem).__name__}: {problem}")
        with self._lock:
            while not self._orders.empty():
                order = self._orders.get()
                if isinstance(order, ComputeOrder):
                    order.answer.cancel()

    def _carry_out(self, order: Order) -> None:
        match order:
            case FetchOrder():
                self._fetch()
            case ComputeOrder():
                try:
                    order.answer.set_result(self._compute(order))
                finally:
                    order.answer.cancel()  # of an answer that has come this changes nothing
            case UpdateOrder():
                self._update(order)
            case LeaveOrder():
                self._ask(Frame("leave", order.stamp), "left", self._settings.gradient_seconds)
                with self._lock:
                    self._behind = 0
                    self._enter(LaneState.IDLE, order.stamp)

    def _fetch(self) -> None:
        stamp, state = self._snapshot(self)
        self._parameters = sum(tensor.numel() for name, tensor in state.items() if name.startswith("model."))
        self._ask(Frame("state", stamp, tensors=state), "fetched", self._settings.fetch_seconds)
        self._caught_up(stamp)

    def _compute(self, order: ComputeOrder) -> LaneGradient:
        frame = Frame("compute", order.stamp, tensors=packed(order.rows))
        seconds = self._settings.core_seconds + self._settings.gradient_seconds
        answer = self._ask(frame, "gradient", seconds, 4 * self._parameters + _ROOM)
        found = LaneGradient(answer.tensors.get("gradient"), computed_from(answer, order.rows))
        self._check_gradient(found.gradient, wanted=bool(order.rows))
        self._exchanged = order.stamp
        return found

    def _check_gradient(self, gradient: Tensor | None, wanted: bool) -> None:
        if (gradient is not None) != wanted:
            raise ChannelFailed("a gradient is missing, or one too many")
        if gradient is not None and not is_vector(gradient, self._parameters):
            raise ChannelFailed(f"a gradient that is not {self._parameters:,} finite numbers")

    def _update(self, order: UpdateOrder) -> None:
        frame = Frame("update", order.stamp, {"digest": order.digest is not None}, {"gradient": order.gradient})
        answer = self._ask(frame, "applied", self._settings.fetch_seconds)
        if order.digest is not None and answer.facts.get("digest") != order.digest:
            raise ChannelFailed("its weights are not those of the core")
        with self._lock:
            self._behind -= 1
            if self.state is LaneState.FETCHING:
                self._caught_up(order.after)
            elif self.state in (LaneState.SYNCING, LaneState.READY) and self._was_through(order):
                self._enter(LaneState.READY, order.stamp)

    def _was_through(self, order: UpdateOrder) -> bool:
        """Whether it took part in the exchange before an update, and its weights were compared after it."""
        last = self._exchanged
        return last is not None and order.digest is not None and replace(last, part=order.stamp.part) == order.stamp

    def _caught_up(self, stamp: Stamp) -> None:
        with self._lock:
            if self._behind == 0:
                self._enter(LaneState.SYNCING, stamp)

    def _enter(self, state: LaneState, stamp: Stamp, reason: str = "") -> None:
        if self.state is not LaneState.GONE:
            self.report = LaneReport(self.name, self.epoch, state, stamp.step, stamp.version, reason)
            self._reports.put(self.report)

    def _ask(self, frame: Frame, wanted: str, seconds: float, most: int = 0) -> Frame:
        self._channel.send(frame, seconds)
        answer = self._channel.receive(seconds, most)
        if (answer.kind, answer.stamp) != (wanted, frame.stamp):
            raise ChannelFailed(f"answered {answer.kind} of {answer.stamp} to {frame.kind} of {frame.stamp}")
        return answer
