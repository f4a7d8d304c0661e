"""Drives the hybrid pool: rollout engines whose GPUs can hold a training replica are lent to training and returned.

The core's pool decides. Its commands are carried out here in the time that the data transfers take, and reported when
done. Rollout and training continue meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from steelyard.balance.pool import (
    Activate,
    Drain,
    Drained,
    Failed,
    Fetch,
    Fetched,
    Gradient,
    HybridPool,
    Join,
    JoinAccepted,
    Leave,
    PoolCommand,
    PoolDissolved,
    Reallocation,
    Reduce,
    RollBack,
    Serving,
    StepBegan,
    StepEnded,
    Sync,
    Synced,
    Tick,
    WakeAt,
)
from steelyard.model import Layout
from steelyard.posttrain.lending import Lending
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.recent import EndedBatches, Recent
from steelyard.posttrain.record import RoleChange, StepRecord
from steelyard.posttrain.setup import Job, weight_seconds
from steelyard.posttrain.sync import RolloutEngines
from steelyard.posttrain.training import TrainLayout

Failing = Callable[[PoolCommand], str | None]
"""Makes a command fail, with a reason; None: it succeeds. For tests."""


class PoolDriver:
    """The manager of a loop and the gate of its trainer."""

    def __init__(
        self,
        loop: Loop,
        at: float = 0.0,
        failing: Failing = lambda _: None,
        ended: EndedBatches | None = None,
    ) -> None:
        self._loop, self._setup, self._failing = loop, loop.setup, failing
        self._stage, self._tell = loop.stage, loop.driver.tell
        self._before = tuple(loop.record.reallocations)
        assert loop.roles.training is not None, "the loop has its GPUs"
        engines = [tenure.gpus for tenure in loop.roles.engines.values()]
        self._lending = Lending(loop.setup, loop.trainer.job.cost, loop.roles.training.gpus, engines)
        self._lent: list[int] = []
        self._epochs: dict[int, int] = {}  # of the last command to each replica
        self._syncing: dict[int, Sync] = {}
        self._closed = False
        self._ended = EndedBatches(loop) if ended is None else ended
        for kind in (Drain, Join, Fetch, Sync, Activate, Reduce, Leave, RollBack):
            loop.driver.on(kind, self._do)
        loop.driver.on(WakeAt, self._wake)
        self._tell(self._lending.formed(at))

    @property
    def pool(self) -> HybridPool:
        """The pool of the core."""
        pool = self._loop.driver.core.pool
        assert pool is not None, "the core was told of it"
        return pool

    # -- what the loop tells ------------------------------------------------------------------------------------

    def begins(self, at: float, step: int) -> None:
        """A barrier before a step: replicas that are ready join training."""
        self._tell(StepBegan(at, step, step))
        self._loop.trainer.job = self._job()

    def ends(self, at: float, step: int) -> None:
        """Gradients were reduced. Syncing replicas now have the state of the others."""
        lent = {number: self._epochs[number] for number in self._lent}
        for replica, epoch in {**dict.fromkeys(self._lending.core, 0), **lent}.items():
            self._tell(Gradient(at, replica, epoch, step, step, 1))
        for command in list(self._syncing.values()):
            del self._syncing[command.replica]
            self._tell(Synced(at, command.replica, command.epoch, step, step))
        self._note(at)

    def after(self, step: StepRecord) -> float:
        """A step is over: the pool may move replicas. The next batch does not wait for them."""
        return self.measured(step, self._ended.latest(step))

    def measured(self, step: StepRecord, recent: Recent | None) -> float:
        """The same with the batches that have ended by then, which can be asked for once."""
        record = self._loop.record
        if recent is not None:
            fastest = min(self._setup.kinds[tp].speed().decode[0][1] for tp in self._loop.stage.tp.values())
            self._tell(
                StepEnded(
                    step.synced,
                    step.step,
                    step.time.seconds,
                    recent.seconds,
                    record.seconds(step.step),
                    min(1.0, recent.wanted),
                    recent.longest(fastest),
                    self._lending.train_seconds(recent.measured(0).context),
                )
            )
        self._loop.trainer.job = self._job()
        self._note(step.synced)
        return step.synced

    @property
    def layout(self) -> TrainLayout:
        """That of the job with the replicas that are lent now."""
        return self._lending.layout(len(self._lent))

    def close(self, at: float) -> None:
        """A change of plan takes over all GPUs as they are. Replicas on their way arrive nowhere."""
        entries = self.pool.ledger.entries
        self._closed, self._loop.trainer.gate = True, None
        self._tell(PoolDissolved(at))
        self._note(at, entries)

    def _note(self, at: float, entries: Sequence[Reallocation] | None = None) -> None:
        self._loop.record.reallocations = [
            *self._before,
            *(
                RoleChange(
                    each.step,
                    f"replica {each.replica} to {each.to}",
                    each.predicted,
                    (at if each.ended is None else each.ended) - each.at,
                    each.before,
                    each.before - each.predicted,
                    each.after,
                    each.outcome,
                )
                for each in (self.pool.ledger.entries if entries is None else entries)
            ),
        ]

    # -- carrying out commands ----------------------------------------------------------------------------------

    def _wake(self, command: WakeAt, _: float) -> None:
        self._later(command.at, lambda at: self._tell(Tick(at)))

    def _later(self, at: float, action: Callable[[float], object]) -> None:
        """Do something later, unless the pool is closed by then."""
        self._stage.later(at, lambda then: None if self._closed else action(then))

    def _do(self, command: PoolCommand, at: float) -> None:
        """Carry out a command, at once if it takes no time, else later. Report a failure if it cannot be done."""
        if isinstance(command, Reduce):
            return
        reason = self._failing(command)
        number, epoch = command.replica, command.epoch
        self._epochs[number] = epoch
        if reason is not None and not isinstance(command, RollBack):
            if isinstance(command, Drain):
                self._stop(number, at)
            self._later(at, lambda then: self._tell(Failed(then, number, epoch, reason)))
            return
        match command:
            case Drain():
                self._stop(number, at)
                self._later(at, lambda then: self._tell(Drained(then, number, epoch)))
            case Join():
                self._tell(JoinAccepted(at, number, epoch))
                self._fetch(command, at, self._lending.joining(len(self._lent)))
            case Fetch():
                self._fetch(command, at, self._lending.joining(len(self._lent)))
            case Sync():
                self._syncing[number] = command
            case Activate():
                self._lent.append(number)
                self._train(at)
            case Leave() | RollBack():
                self._back(command, at)

    def _fetch(self, command: Join | Fetch, at: float, seconds: float) -> None:
        number, epoch, step, version = command.replica, command.epoch, command.step, command.version
        self._later(at + seconds, lambda then: self._tell(Fetched(then, number, epoch, step, version)))

    def _back(self, command: Leave | RollBack, at: float) -> None:
        """The engines of a replica wake on its GPUs, and get the current weights."""
        number = command.replica
        self._syncing.pop(number, None)
        if number in self._lent:
            seconds = self._lending.leaving(number, len(self._lent))
            self._lent.remove(number)
            self._train(at)
        else:
            seconds = self._lending.waking(number)
        self._later(at + seconds, partial(self._serve, number, command.epoch))

    def _serve(self, number: int, epoch: int, at: float) -> None:
        if self._epochs[number] != epoch:  # a later command has replaced this one
            return
        for gpus in self._lending.units[number]:
            self._loop.roles.start_engine(gpus, at)
        self._tell(Serving(at, number, epoch))

    def _stop(self, number: int, at: float) -> None:
        roles = self._loop.roles
        for engine in [each for each, tenure in roles.engines.items() if tenure.gpus in self._lending.units[number]]:
            roles.stop_engine(engine, at)

    def _train(self, at: float) -> None:
        gpus = [*self._lending.training, *(gpu for number in self._lent for gpu in self._lending.gpus[number])]
        self._loop.roles.train_on(tuple(gpus), at)

    def _job(self) -> Job:
        """The job with the replicas that are lent now."""
        setup, lent = self._setup, len(self._lent)
        degrees = list(self._loop.stage.tp.values())
        engines = [RolloutEngines(degrees.count(tp), Layout(tp=tp)) for tp in sorted(set(degrees))]
        before, sync = weight_seconds(setup.scenario, setup.model, setup.topology, self._lending.layout(lent), engines)
        return Job(self._lending.cost(lent), before, sync)
