"""Which request gets how many tokens in the next step: vLLM v1's rules, in its order.

Running requests come first, each getting what it still lacks within the step's token budget; when blocks run out the
last (or least important) running request is preempted and recomputed later. Then waiting requests are admitted
while budget, sequence slots and blocks last; never in a step that had to preempt.
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
from steelyard.engine.limits import Limits
from steelyard.engine.queues import ByPriority, FirstCome, WaitingQueue
from steelyard.engine.request import DROPPED, HELD, LOADING, RUNNING, WAITING, Request
from steelyard.engine.running import schedule_running
from steelyard.engine.tiers import Tiers
from steelyard.engine.tokens import commit, hand_out
from steelyard.engine.window_group import WindowGroup


class Scheduler:
    """Queues and blocks of one engine, and the decision who runs next."""

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
        self.running: dict[Request, None] = {}  # in admission order
        self.singles: dict[Request, None] = {}  # those of them outside the group
        self.waiting: WaitingQueue = ByPriority() if limits.priority else FirstCome()
        self.loading: dict[Request, None] = {}  # admitted, and their keys and values still on the way
        self.ready: list[Request] = []  # admitted, and all of it has come
        self.to_load: list[tuple[Request, int, float]] = []  # asked for since the driver last looked: tokens, when
        self.grouping = not plain and not limits.speculative_tokens and (limits.stages == 1 or not limits.slides)
        self.admissions = 0  # so far: each is numbered
        self.fruitless = 0  # steps that preempted since any request got further than ever before
        self.head_blocked = False  # the first waiting request lacked blocks, and none have been freed since

    def use(self, tiers: Tiers) -> None:
        """Have tiers of memory below the cache, which go by single blocks; before anything is submitted."""
        self.tiers = tiers
        self.kv = tiers.above = self.kv if isinstance(self.kv, KVCache) else KVCache(*_memory(self.limits))
        self.kv.gone = tiers.gone
        self.kv.fresh = tiers.fresh if tiers.through else None

    # -- queues -------------------------------------------------------------------------------------------------

    def enqueue(self, r: Request) -> None:
        """A new request becomes visible."""
        if not self.waiting or self.limits.priority:
            self.head_blocked = False
        if self.windows is not None and self.kv.caching and r.chain is not None:
            r.keys = self.names.names(r.chain, r.prompt + r.output)  # its answer falls out of windows as it is given
        self.waiting.add(r)

    def put_first(self, r: Request) -> None:
        """A waiting request goes before the others, as far as the queue's order allows."""
        self.waiting.remove(r)
        self.waiting.put_back(r)
        self.head_blocked = False

    def only_decodes(self) -> bool:
        """Whether the next step can be nothing but one token for each member of the group."""
        size = self.group.size
        return (
            size > 0
            and not self.singles
            and (self._nobody_waits() or len(self.running) >= self.limits.max_num_seqs)
            and size <= self.limits.max_num_batched_tokens
        )

    def _nobody_waits(self) -> bool:
        """Nobody could be admitted, whatever the seats."""
        return not self.ready and (not self.waiting or self.head_blocked)

    def remove(self, r: Request) -> None:
        """A request has ended or is given up: take it out of its queue and free its blocks."""
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
        """What an ended request had kept has been fetched, or is not held any longer."""
        self._give_back(r)
        self.head_blocked = False

    def _give_back(self, r: Request) -> None:
        if r.rest == DROPPED:
            self.kv.forget(r, r.opening)
        self.kv.release(r)

    def name_all(self, r: Request) -> None:
        """Give every complete block of a request a name, for itself when it resumes or for its followers."""
        if r.cached <= r.keys.length and r.pages is None:
            return
        if r.chain is not None:
            names = self.names.go_on(r.keys, r.chain, r.cached)
        else:
            base = -((r.index + 1) << POSITION_BITS)
            own = range(base + r.keys.length, base + r.cached)
            names = Names([*r.keys.ranges, own]) if own else r.keys
        self.kv.keep(r, names)

    def loaded(self, r: Request) -> None:
        """What was on the way to a request has come: it runs next, in the order in which requests were admitted."""
        del self.loading[r]
        self.head_blocked = False
        self.kv.complete(r, r.computed)
        insort(self.ready, r, key=lambda each: each.order)

    def refuse_head(self) -> Request:
        """The request that keeps an otherwise empty engine from doing anything."""
        return self.waiting.head() if self.waiting else next(iter(self.running))

    # -- one step -----------------------------------------------------------------------------------------------

    def schedule(self, step: int, now: float, flight: Batch | None) -> Batch:
        """Decide the next step; it may turn out empty."""
        batch = Batch(step)
        limits = self.limits
        budget = limits.max_num_batched_tokens
        threshold = limits.long_prefill_token_threshold
        if threshold and len(self.running) + len(self.waiting) + len(self.ready) + len(self.loading) <= 1:
            threshold = 0  # a lone request has nobody to starve
        group = self.group
        if group.size:
            if self._group_fits(step, threshold):
                self.kv.take(group.due(step))
                if self.windows is not None:
                    self.windows.begin(step)
                group.tokens += group.size
                self.fruitless = 0
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
            self.fruitless += 1
        elif self.waiting or self.ready:
            if self.ready:
                budget = admit_ready(self, batch, budget, threshold, now)
            self._admit_waiting(batch, budget, threshold, now, after_prefill)
        commit(self, batch)
        if self.tiers is not None:
            self.tiers.write_back(now)
        return batch

    def _group_fits(self, step: int, threshold: int) -> bool:
        """Whether all members can have their token whatever the order in which requests are looked at."""
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

    # -- rules that other policies change ----------------------------------------------------------------------

    def _admit_waiting(self, batch: Batch, budget: int, threshold: int, now: float, after_prefill: bool) -> None:
        admit_waiting(self, batch, budget, threshold, now, after_prefill)

    def fit(self, r: Request, hits: int, tokens: int) -> bool:
        """Give a waiting request its cached blocks and room for ``tokens``, if there is room for it."""
        most, whole = self.limits.max_model_len, 0
        if self.limits.reserve_full_prompt:
            whole = r.prompt + r.outputs
            if whole > most:
                whole = most
        return self.kv.admit(r, hits, tokens if tokens < most else most, whole, bool(self.running))

    def start(self, r: Request, computed: int, now: float) -> None:
        """A request that was given blocks runs from now on."""
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
        """Who gives way when blocks run out: the last or least important running request."""
        if self.limits.priority:
            return max(self.running, key=lambda r: (r.priority, r.arrival))
        return next(reversed(self.running))

    # -- the group ----------------------------------------------------------------------------------------------

    def join(self, r: Request, step: int) -> None:
        """A request in this step will merely decode from the next one on."""
        if self.windows is not None and r.owed > 1:
            r.emit(step - 1)  # whose result will find it in the group
        r.emit(step)
        r.in_flight = 0
        r.owed = 0
        del self.singles[r]
        self.group.join(r, step + 1)

    def ungroup(self, step: int, flight: Batch | None) -> None:
        """Go back to one request at a time; ``step`` is the next to be scheduled."""
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
        """Requests that left the group have one token in flight, which the step's result will bring."""
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
        """Hand out a step's tokens; returns the requests that have ended, in the order the engine frees them."""
        return hand_out(self, batch)


def _memory(limits: Limits) -> tuple[int, int, bool, float]:
    """What a cache is made of."""
    return limits.blocks, limits.block_size, limits.enable_prefix_caching, limits.watermark
