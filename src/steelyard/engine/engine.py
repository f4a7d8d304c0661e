"""One serving engine in virtual time: vLLM v1's scheduling decisions, step for step.

The decisions are made one request at a time by `Scheduler`, exactly as the engine's own code does. Requests that merely
decode are moved into a `DecodeGroup` and carried as sums; while nothing but the group runs, a whole stretch of steps is
taken at once. Both short cuts give the same bits as the plain path (``plain=True``), which stays as reference.
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
from steelyard.engine.holding import Holding
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

_NEVER = 1 << 60


class Engine:
    """An engine that is told of requests and runs up to a given second.

    ``clock`` is the next moment at which the engine schedules; a request submitted by then is visible there.
    With asynchronous scheduling one step stays in flight: the next one is scheduled before its tokens are known, and
    the host sees a step's result only once it has launched the next one.
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
        self.wake = wake  # seconds until an idle engine looks at what it was handed
        self.taking_in = taking_in  # seconds by which a new request holds up the next step, and each of its tokens
        self.rested = rested  # share of its GPU time that a step takes after a pause
        self.first_uses = first_uses  # kernels that steps may have to compile; None: all are there
        self.shared_reads = shared_reads  # what becomes of blocks that several requests hold; None: each reads its own
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
        self.finished: list[Request] = []  # ended since the driver last looked, in order
        self.to_load = self.scheduler.to_load  # fetches asked for since then
        self.holding = Holding()
        self.stuck = False  # nothing can run before a fetch is through, here or from here
        self.gpu_free = 0.0
        self.flight: Batch | None = None
        self.late = 0.0  # seconds that requests since the last step was launched hold up the next
        self.aborts: list[tuple[float, int, int, Request]] = []
        self._tickets = count()  # a request may come again, as another attempt
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
        """Nothing to run until something is submitted."""
        return not self.outstanding and self.flight is None

    def submit(self, r: Request, at: float, abort_at: float = float("inf")) -> None:
        """Hand over a request; the engine must have been run up to ``at`` before."""
        request, token = self.taking_in
        if self.idle or self.stuck:
            self.stuck = False
            self.clock = max(self.clock, at + self.wake)
            token = 0.0  # its tokens were read while nobody else had anything to do
        self.outstanding += 1
        self.late += request + token * r.prompt
        self.scheduler.enqueue(r)
        if abort_at != float("inf"):
            heappush(self.aborts, (abort_at, r.index, next(self._tickets), r))

    def loaded(self, r: Request, at: float) -> None:
        """What a request was fetching has come; the engine must have been run up to ``at`` before."""
        if r.status == LOADING:
            self.scheduler.loaded(r)
            self._go_on(at)

    def let_go(self, r: Request, at: float) -> None:
        """The blocks of a request that has ended here have been fetched; run up to ``at`` before."""
        self.holding.kept -= 1
        self.scheduler.let_go(r)
        self._go_on(at)

    def hand_down(self, held: Sequence[Request], heir: Request) -> None:
        """A request that has been submitted takes over, when it begins, what ended requests hold here.

        It goes before others: they could wait for the very blocks that are held for it.
        """
        self.holding.heirs[heir] = held
        self.scheduler.put_first(heir)

    def unhold(self, r: Request, at: float) -> None:
        """Nobody comes back here for what an ended request holds; run up to ``at`` before."""
        self.holding.stop(r, self.scheduler)
        self._go_on(at)

    def withdraw(self, r: Request, at: float) -> None:
        """Take back a request that waits here or for what it was to fetch; run up to ``at`` before."""
        self.scheduler.remove(r)
        self.holding.inherit(r, self.scheduler)
        self.outstanding -= 1
        r.status = LOST
        self.log.done(r)
        self._go_on(at)

    def abort(self, r: Request, at: float) -> None:
        """A request that is here and has not ended is given up before the next decision; run up to ``at`` before."""
        self._abort(r)
        self._go_on(at)

    def crash(self, at: float) -> list[Request]:
        """Lose all that is here at a second up to which the engine was run: requests, cache, steps under way.

        Tokens of steps that had ended by then were given out. Who ended in a later step has not, and is among the
        lost, which are returned; the driver leaves these in ``finished`` until then.
        """
        lost = lose_requests(self, at)
        self._start_afresh(at)
        return lost

    def _start_afresh(self, at: float) -> None:
        self.scheduler = self._new_scheduler()
        self.to_load = self.scheduler.to_load
        self.clock = self.gpu_free = at
        self.outstanding = 0
        self.holding = Holding()
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
        """When something will have happened that no decision brings about: a client gives up, blocks have come."""
        due = self.aborts[0][0] if self.aborts else float("inf")
        return min(due, self.loads[0][0]) if self.loads else due

    def _wake_by(self, until: float) -> None:
        due = self.due
        if due <= until:
            self._go_on(due)

    def advance(self, until: float, pause_after: int = _NEVER) -> None:
        """Take every scheduling decision that falls before ``until``, or until so many requests have ended.

        Stops where a request asks for what another engine has computed.
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
        """Blocks have come from tiers below."""
        assert self.tiers is not None
        for r in self.tiers.arrived(self.clock):
            if r.status == LOADING:
                self.scheduler.loaded(r)

    def end_of(self, r: Request) -> float:
        """The second at which a request ended."""
        given_up = self.log.given_up.get(r.index)
        return self.log.ends[r.last] if given_up is None else given_up[0]

    def next_end_bound(self) -> float:
        """No request ends before this second, if nothing is submitted meanwhile (infinite when idle)."""
        return end_bound(self)

    # -- one step at a time -------------------------------------------------------------------------------------

    def _one_step(self) -> None:
        batch = decide(self)
        if batch is not None:
            run_step(self, batch, time_of_step(self, batch), delay_of(self, batch))

    def end(self, r: Request, status: int, why: str = "") -> None:
        """A request has ended, or is given up for a reason: free what it had and tell the driver."""
        if status != FINISHED:
            r.keep, r.rest = False, KEPT
        holding, scheduler = self.holding, self.scheduler
        holding.kept += r.keep
        if r.rest == HELD:
            holding.held[r] = None
        scheduler.remove(r)
        if self.tiers is not None:
            self.tiers.write_through(self.clock)
        if holding.heirs:
            holding.inherit(r, scheduler)
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
            self._unsay(r)
        self.end(r, ABORTED, "the client gave up")

    def _unsay(self, r: Request) -> None:
        """What is in flight for a request will never be delivered."""
        r.unsay(self.step - 1)
