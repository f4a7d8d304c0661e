"""vLLM v1's scheduler: which request gets how many tokens in the next step.

Running requests come first and get what they lack, within the step's token budget. When blocks run out, the last (or
least important) running request is preempted and recomputed later. Then waiting requests are admitted while budget,
sequence slots and blocks last, but not in a step that preempted.
"""

from __future__ import annotations

from bisect import insort

from steelyard.engine.admission import admit_ready, admit_waiting
from steelyard.engine.batch import Batch, Entry
from steelyard.engine.content import POSITION_BITS, BlockNames, Names
from steelyard.engine.group import DecodeGroup
from steelyard.engine.kv import KVCache
from steelyard.engine.kv_groups import KVGroups
from steelyard.engine.kv_runs import RunCache
from steelyard.engine.kv_states import KVStates
from steelyard.engine.limits import Limits
from steelyard.engine.queues import ByPriority, FirstCome, WaitingQueue
from steelyard.engine.request import DROPPED, HELD, LOADING, RUNNING, WAITING, Request
from steelyard.engine.running import schedule_running
from steelyard.engine.tiers import Tiers
from steelyard.engine.tokens import commit, hand_out
from steelyard.engine.window_group import WindowGroup


class Scheduler:
    """Queues and blocks of one engine, and the decision what runs next."""

    def __init__(self, limits: Limits, names: BlockNames, *, plain: bool = False) -> None:
        self.limits = limits
        self.names = names
        self.kv: KVCache | RunCache = KVCache(*_memory(limits)) if plain else RunCache(*_memory(limits))
        self.tiers: Tiers | None = None
        self.group = DecodeGroup(limits.block_size)
        self.windows: WindowGroup | None = None
        if limits.slides:
            self.kv = cache = KVGroups(limits)
            self.group = self.windows = WindowGroup(cache, limits.async_scheduling)
        if limits.states:
            self.kv = KVStates(limits)
            self.group.width = len(limits.windows)
        self.running: dict[Request, None] = {}  # in admission order
        self.singles: dict[Request, None] = {}  # running requests outside the group
        self.waiting: WaitingQueue = ByPriority() if limits.priority else FirstCome()
        self.loading: dict[Request, None] = {}  # admitted, but their blocks are still being fetched
        self.ready: list[Request] = []  # admitted, and all their blocks have been fetched
        self.to_load: list[tuple[Request, int, float]] = []  # fetches requested since the driver last looked
        self.grouping = not plain and not limits.speculative_tokens and (limits.stages == 1 or not limits.slides)
        self.admissions = 0  # so far; numbers them
        self.steps_without_progress = 0  # preempting steps since any request got further than ever before
        self.head_blocked = False  # the first waiting request lacked blocks, and none were freed since

    def use(self, tiers: Tiers) -> None:
        """Add tiers below the cache, which need single blocks; call before the first request."""
        self.tiers = tiers
        self.kv = tiers.above = self.kv if isinstance(self.kv, KVCache) else KVCache(*_memory(self.limits))
        self.kv.gone = tiers.gone
        self.kv.fresh = tiers.fresh if tiers.through else None

    # -- queues -------------------------------------------------------------------------------------------------

    def enqueue(self, r: Request) -> None:
        """Add a new request to the waiting queue."""
        if not self.waiting or self.limits.priority:
            self.head_blocked = False
        if self.windows is not None and self.kv.caching and r.chain is not None:
            r.keys = self.names.names(r.chain, r.prompt + r.output)  # its output leaves its windows as it runs
        self.waiting.add(r)

    def put_first(self, r: Request) -> None:
        """Move a waiting request to the front, as far as the queue's order allows."""
        self.waiting.remove(r)
        self.waiting.put_back(r)
        self.head_blocked = False

    def only_decodes(self) -> bool:
        """Whether the next step is just one token for each member of the group."""
        size = self.group.size
        return (
            size > 0
            and not self.singles
            and (self._nobody_waits() or len(self.running) >= self.limits.max_num_seqs)
            and size <= self.limits.max_num_batched_tokens
        )

    def _nobody_waits(self) -> bool:
        """No request could be admitted, even with free sequence slots."""
        return not self.ready and (not self.waiting or self.head_blocked)

    def remove(self, r: Request) -> None:
        """Remove a request that has ended or is aborted, and free its blocks."""
        if r.status == RUNNING:
            if self.kv.caching and (r.chain is not None or self.tiers is not None):
                self.name_all(r)
            if not r.keep and r.rest != HELD:
                self._give_back(r)
            del self.running[r]
            self.singles.pop(r, None)
        elif r.status == LOADING:
            self.kv.release(r)
            if r in self.loading:
                del self.loading[r]
            else:
                self.ready.remove(r)
        else:
            self.waiting.remove(r)
        self.head_blocked = False

    def let_go(self, r: Request) -> None:
        """Free the blocks of an ended request that were kept or held."""
        self._give_back(r)
        self.head_blocked = False

    def _give_back(self, r: Request) -> None:
        if r.rest == DROPPED:
            self.kv.forget(r, r.opening)
        self.kv.release(r)

    def name_all(self, r: Request) -> None:
        """Name every complete block of a request, for itself when it resumes or for follow-up requests."""
        if r.cached <= r.keys.length and r.pages is None:
            return
        if r.chain is not None:
            names = self.names.continued(r.keys, r.chain, r.cached)
        else:
            base = -((r.index + 1) << POSITION_BITS)
            own = range(base + r.keys.length, base + r.cached)
            names = Names([*r.keys.ranges, own]) if own else r.keys
        self.kv.keep(r, names)

    def loaded(self, r: Request) -> None:
        """A request's blocks have been fetched: it runs next, in order of admission."""
        del self.loading[r]
        self.head_blocked = False
        self.kv.complete(r, r.computed)
        insort(self.ready, r, key=lambda each: each.order)

    def refuse_head(self) -> Request:
        """The request that blocks an otherwise empty engine, to be rejected."""
        return self.waiting.head() if self.waiting else next(iter(self.running))

    def _alone(self) -> bool:
        """Whether there is at most one request."""
        return len(self.running) + len(self.waiting) + len(self.ready) + len(self.loading) <= 1

    # -- one step -----------------------------------------------------------------------------------------------

    def schedule(self, step: int, now: float, flight: Batch | None) -> Batch:
        """Schedule the next step; its batch may be empty."""
        batch = Batch(step)
        limits = self.limits
        budget = limits.max_num_batched_tokens
        threshold = limits.long_prefill_token_threshold
        if threshold and not limits.threshold_alone and self._alone():
            threshold = 0  # a single request cannot starve others
        group = self.group
        if group.size:
            if self._group_fits(step, threshold):
                self.kv.take(group.due(step))
                if self.windows is not None:
                    self.windows.begin(step)
                group.tokens += group.size
                self.steps_without_progress = 0
                batch.decodes = group.size
                batch.kv = group.tokens
                batch.longest = group.longest(step) + 1
                budget -= group.size
            else:
                self.ungroup(step, flight)
        after_prefill = False
        if self.singles:
            budget, after_prefill = schedule_running(self, batch, budget, threshold)
        if self.windows is not None:
            self.windows.settle(step)
        if batch.preempted:
            self.steps_without_progress += 1
        elif self.waiting or self.ready:
            if self.ready:
                budget = admit_ready(self, batch, budget, threshold, now)
            self._admit_waiting(batch, budget, threshold, now, after_prefill)
        commit(self, batch)
        if self.tiers is not None:
            self.tiers.write_back(now)
        return batch

    def _group_fits(self, step: int, threshold: int) -> bool:
        """Whether all members get their token in any order of scheduling."""
        group = self.group
        size = self.limits.block_size
        budget = self.limits.max_num_batched_tokens - group.size
        blocks = self.kv.free - group.due(step)
        if budget < 0 or blocks < 0:
            return False
        for r in self.singles:
            wanted = r.prompt + r.outputs + r.owed - r.computed
            if 0 < threshold < wanted:
                wanted = threshold
            if wanted > budget:
                if r.order < group.newest:
                    return False
                wanted = budget
            budget -= wanted
            blocks -= (wanted // size + 1) * group.width
            if blocks < 0:
                return False
        return True

    # -- rules that other policies override --------------------------------------------------------------------

    def _admit_waiting(self, batch: Batch, budget: int, threshold: int, now: float, after_prefill: bool) -> None:
        admit_waiting(self, batch, budget, threshold, now, after_prefill)

    def fit(self, r: Request, hits: int, tokens: int) -> bool:
        """Give a waiting request its cached blocks and room for ``tokens``. False if blocks are lacking."""
        most, whole = self.limits.max_model_len, 0
        if self.limits.reserve_full_prompt:
            whole = r.prompt + r.outputs
            if whole > most:
                whole = most
        return self.kv.admit(r, hits, tokens if tokens < most else most, whole, bool(self.running))

    def start(self, r: Request, computed: int, now: float) -> None:
        """Start a request that has its blocks."""
        if r.status == WAITING:
            r.scheduled = now
            r.hit = computed
        r.status = RUNNING
        r.computed = computed
        self.admissions += 1
        r.order = self.admissions
        self.running[r] = None
        self.singles[r] = None

    def victim(self) -> Request:
        """The request to preempt when blocks run out: the last or least important running one."""
        if self.limits.priority:
            return max(self.running, key=lambda r: (r.priority, r.arrival))
        return next(reversed(self.running))

    # -- the group ----------------------------------------------------------------------------------------------

    def join(self, r: Request, step: int) -> None:
        """Move a request of this step into the group: it only decodes from the next step on."""
        if self.windows is not None and r.owed > 1:
            r.emit(step - 1)  # the result of that step finds it in the group
        r.emit(step)
        r.in_flight = 0
        r.owed = 0
        del self.singles[r]
        self.group.join(r, step + 1)

    def ungroup(self, step: int, flight: Batch | None) -> None:
        """Schedule requests one by one again; ``step`` is the next to be scheduled."""
        members = self.group.dissolve(step)
        if not members:
            return
        if flight is not None:
            self.await_last_token(members, flight)
        else:
            for r in members:
                r.outputs = r.computed + 1 - r.prompt
                self.kv.complete(r, r.computed)
        self.singles = dict.fromkeys(r for r in self.running if not r.grouped)

    def await_last_token(self, leavers: list[Request], flight: Batch) -> None:
        """Requests that left the group have one token in flight, which the step's result delivers."""
        for r in leavers:
            r.outputs = r.computed - r.prompt
            r.owed = 1
            r.in_flight = 1
            self.kv.complete(r, r.computed - 1)
            entry = Entry(r, 1, 0)
            entry.sampled = 1
            flight.entries.append(entry)
        if len(flight.entries) > 1:
            flight.entries.sort(key=lambda entry: entry.request.order)
        self.head_blocked = False

    # -- results ------------------------------------------------------------------------------------------------

    def update(self, batch: Batch) -> list[Request]:
        """Deliver a step's tokens. Returns the ended requests, in the order in which the engine frees them."""
        return hand_out(self, batch)


def _memory(limits: Limits) -> tuple[int, int, bool, float]:
    """Arguments of a cache."""
    return limits.blocks, limits.block_size, limits.enable_prefix_caching, limits.watermark
