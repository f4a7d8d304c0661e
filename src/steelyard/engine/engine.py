"""One serving engine in virtual time: vLLM v1's scheduling decisions, step for step.

`Scheduler` decides one request at a time, as vLLM does. Requests that only decode are moved into a `DecodeGroup`, which
keeps sums. While only the group runs, a whole stretch of steps is run at once. Both short cuts give the same bits as
the plain path (``plain=True``), which is the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count

from steelyard.cost.kernels import FirstUses
from steelyard.cost.shared_reads import SharedReads
from steelyard.engine.batch import Batch
from steelyard.engine.bounds import end_bound
from steelyard.engine.content import BlockNames
from steelyard.engine.crash import lose_requests
from steelyard.engine.holding import HeldBlocks
from steelyard.engine.limits import Limits
from steelyard.engine.log import EngineLog
from steelyard.engine.observer import StepObserver
from steelyard.engine.policies import MakePolicy, Policy, policy_of
from steelyard.engine.request import ABORTED, FINISHED, HELD, KEPT, LOADING, LOST, Request
from steelyard.engine.scheduler import Scheduler
from steelyard.engine.step_cost import StepCost, time_of_step
from steelyard.engine.steps import decide, delay_of, run_step
from steelyard.engine.stretch import run_stretch
from steelyard.engine.tiers import Tiers

_NEVER = 1 << 60  # requests: more than any run has


class Engine:
    """Takes requests and runs up to a given second.

    ``clock`` is when the engine schedules next; it sees the requests submitted by then. With asynchronous scheduling
    one step stays in flight: the next one is scheduled before its tokens are known, and the host processes a step's
    result only after it has launched the next one.
    """

    def __init__(
        self,
        limits: Limits,
        cost: StepCost,
        names: BlockNames | None = None,
        *,
        wake: float = 0.0,
        taking_in: tuple[float, float] = (0.0, 0.0),
        rested: float = 1.0,
        first_uses: FirstUses | None = None,
        shared_reads: SharedReads | None = None,
        policy: MakePolicy | None = None,
        tiers: Tiers | None = None,
        reactive: bool = False,
        plain: bool = False,
        observer: StepObserver | None = None,
        log: EngineLog | None = None,
    ) -> None:
        self.limits = limits
        self.cost = cost
        self.wake = wake  # seconds until an idle engine notices a request
        self.taking_in = taking_in  # seconds by which a new request delays the next step: fixed, and per prompt token
        self.rested = rested  # factor on a step's GPU time after a pause
        self.first_uses = first_uses  # kernels that steps may have to compile; None: all are compiled
        self.shared_reads = shared_reads  # what shared blocks save; None: every request reads its own
        self.reactive = reactive  # stop after each completion, since it may cause an arrival
        self.observer = observer
        self.log = log or EngineLog()
        make = policy or policy_of("vllm")
        self._make_policy = partial(make, limits, names or BlockNames(limits.block_size), plain)
        self.tiers = tiers if tiers is not None and tiers.levels else None  # below the GPU's memory
        self.scheduler = self._new_scheduler()
        self.clock = 0.0
        self.step = 0  # index of the next step
        self.outstanding = 0
        self.finished: list[Request] = []  # ended since the driver last cleared it, in order
        self.to_load = self.scheduler.to_load  # fetches requested since then
        self.holding = HeldBlocks()
        self.stuck = False  # nothing can run before a fetch to or from this engine ends
        self.gpu_free = 0.0
        self.flight: Batch | None = None
        self.late = 0.0  # seconds by which requests received since the last launch delay the next
        self.aborts: list[tuple[float, int, int, Request]] = []
        self._tickets = count()  # breaks ties between attempts of the same request
        self.loads = [] if self.tiers is None else self.tiers.loads

    def _new_scheduler(self) -> Policy:
        scheduler = self._make_policy()
        if self.tiers is not None:
            assert isinstance(scheduler, Scheduler), "only vLLM's own knows tiers"
            scheduler.use(self.tiers)
        return scheduler

    # -- what a driver calls ------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nothing to run until a request is submitted."""
        return not self.outstanding and self.flight is None

    def submit(self, r: Request, at: float, abort_at: float = float("inf")) -> None:
        """Add a request; the engine must have run up to ``at`` before."""
        request, token = self.taking_in
        if self.idle or self.stuck:
            self.stuck = False
            self.clock = max(self.clock, at + self.wake)
            token = 0.0  # its tokens were read while the engine was idle
        self.outstanding += 1
        self.late += request + token * r.prompt
        self.scheduler.enqueue(r)
        if abort_at != float("inf"):
            heappush(self.aborts, (abort_at, r.index, next(self._tickets), r))

    def loaded(self, r: Request, at: float) -> None:
        """A request's fetch has ended; the engine must have run up to ``at`` before."""
        if r.status == LOADING:
            self.scheduler.loaded(r)
            self._go_on(at)

    def let_go(self, r: Request, at: float) -> None:
        """Another engine has fetched the blocks of a request that ended here; run up to ``at`` before."""
        self.holding.kept -= 1
        self.scheduler.let_go(r)
        self._go_on(at)

    def transfer_held(self, held: Sequence[Request], successor: Request) -> None:
        """A submitted request takes over, when it starts, the blocks that ended requests hold here.

        It goes to the front of the queue: others could wait for the very blocks that are held for it.
        """
        self.holding.successors[successor] = held
        self.scheduler.put_first(successor)

    def release_held(self, r: Request, at: float) -> None:
        """Free what an ended request holds, since its next round runs elsewhere; run up to ``at`` before."""
        self.holding.release(r, self.scheduler)
        self._go_on(at)

    def withdraw(self, r: Request, at: float) -> None:
        """Remove a request that is waiting or fetching; run up to ``at`` before."""
        self.scheduler.remove(r)
        self.holding.release_for(r, self.scheduler)
        self.outstanding -= 1
        r.status = LOST
        self.log.done(r)
        self._go_on(at)

    def abort(self, r: Request, at: float) -> None:
        """Abort a request before the next scheduling; run up to ``at`` before."""
        self._abort(r)
        self._go_on(at)

    def crash(self, at: float) -> list[Request]:
        """Lose all requests, the cache and the steps in flight; the engine must have run up to ``at`` before.

        Tokens of steps that ended by then were delivered. A request that ended in a later step has not ended: it is
        among the lost ones, which are returned. The driver leaves such requests in ``finished`` until then.
        """
        lost = lose_requests(self, at)
        self._restart(at)
        return lost

    def _restart(self, at: float) -> None:
        self.scheduler = self._new_scheduler()
        self.to_load = self.scheduler.to_load
        self.clock = self.gpu_free = at
        self.outstanding = 0
        self.holding = HeldBlocks()
        self.late = 0.0
        self.stuck = False
        self.flight = None
        self.aborts.clear()
        if self.tiers is not None:
            self.tiers.restart()

    def _go_on(self, at: float) -> None:
        if self.stuck:
            self.stuck = False
            self.clock = max(self.clock, at)

    @property
    def due(self) -> float:
        """The next event that does not depend on scheduling: a client aborts, or fetched blocks arrive."""
        due = self.aborts[0][0] if self.aborts else float("inf")
        return min(due, self.loads[0][0]) if self.loads else due

    def _wake_by(self, until: float) -> None:
        due = self.due
        if due <= until:
            self._go_on(due)

    def advance(self, until: float, pause_after: int = _NEVER) -> None:
        """Run every step scheduled before ``until``, or until ``pause_after`` requests have ended.

        Stops when a request needs blocks that another engine has computed.
        """
        pause = 1 if self.reactive else pause_after
        if self.stuck:
            self._wake_by(until)
        while self.clock < until and not self.stuck and (self.outstanding or self.flight is not None):
            if self.aborts and self.aborts[0][0] <= self.clock:
                self._abort_due()
                if len(self.finished) >= pause:
                    return
            if self.loads and self.loads[0][0] <= self.clock:
                self._take_loaded()
            horizon = min(until, self.due) if self.aborts or self.loads else until
            if self.late or not (self.scheduler.only_decodes() and run_stretch(self, horizon)):
                self._one_step()
            if len(self.finished) >= pause or self.to_load:
                return
            if self.stuck and self.loads:
                self._wake_by(until)

    def _take_loaded(self) -> None:
        """Continue requests whose blocks have arrived from tiers below."""
        assert self.tiers is not None
        for r in self.tiers.arrived(self.clock):
            if r.status == LOADING:
                self.scheduler.loaded(r)

    def end_of(self, r: Request) -> float:
        """The second at which a request ended."""
        given_up = self.log.given_up.get(r.index)
        return self.log.end_of(r.last) if given_up is None else given_up[0]

    def next_end_bound(self) -> float:
        """No request ends before this second, if nothing is submitted meanwhile (infinite when idle)."""
        return end_bound(self)

    # -- one step at a time -------------------------------------------------------------------------------------

    def _one_step(self) -> None:
        batch = decide(self)
        if batch is not None:
            run_step(self, batch, time_of_step(self, batch), delay_of(self, batch))

    def end(self, r: Request, status: int, why: str = "") -> None:
        """End a request, or abort it for a reason: free its blocks and report it to the driver."""
        if status != FINISHED:
            r.keep, r.rest = False, KEPT
        holding, scheduler = self.holding, self.scheduler
        holding.kept += r.keep
        if r.rest == HELD:
            holding.held[r] = None
        scheduler.remove(r)
        if self.tiers is not None:
            self.tiers.write_through(self.clock)
        if holding.successors:
            holding.release_for(r, scheduler)
        r.status = status
        self.outstanding -= 1
        if status != FINISHED:
            self.log.given_up[r.index] = (self.clock, why)
        self.log.done(r)
        self.finished.append(r)

    def _abort_due(self) -> None:
        while self.aborts and self.aborts[0][0] <= self.clock:
            r = heappop(self.aborts)[3]
            if r.status < FINISHED:
                self._abort(r)

    def _abort(self, r: Request) -> None:
        self.scheduler.ungroup(self.step, self.flight)
        if r.in_flight:
            self._undo_in_flight(r)
        self.end(r, ABORTED, "the client gave up")

    def _undo_in_flight(self, r: Request) -> None:
        """Remove a request's tokens in flight, which will never be delivered."""
        r.undo_emit(self.step - 1)
