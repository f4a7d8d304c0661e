"""Which request gets how many tokens in the next step: vLLM v1's rules, in its order.

Running requests come first, each getting what it still lacks within the step's token budget; when blocks run out the
last (or least important) running request is preempted and recomputed later. Then waiting requests are admitted
while budget, sequence slots and blocks last; never in a step that had to preempt.
"""

from __future__ import annotations

from bisect import insort
from typing import TypeVar

from steelyard.engine.batch import Batch, Entry
from steelyard.engine.content import POSITION_BITS, BlockNames, Names
from steelyard.engine.group import DecodeGroup
from steelyard.engine.kv import KVCache
from steelyard.engine.kv_groups import KVGroups
from steelyard.engine.kv_runs import RunCache
from steelyard.engine.limits import Limits
from steelyard.engine.queues import ByPriority, FirstCome, WaitingQueue
from steelyard.engine.request import DROPPED, FINISHED, HELD, LOADING, PREEMPTED, RUNNING, WAITING, Request
from steelyard.engine.tiers import Tier, Tiers
from steelyard.engine.window_group import WindowGroup

Kept = TypeVar("Kept", KVCache, RunCache)


class Scheduler:
    """Queues and blocks of one engine, and the decision who runs next."""

    def __init__(self, limits: Limits, names: BlockNames, *, plain: bool = False) -> None:
        self.limits = limits
        self.names = names
        self.kv: KVCache | RunCache = _cache(limits, KVCache) if plain else _cache(limits, RunCache)
        self.tiers: Tiers | None = None
        self.group = DecodeGroup(limits.block_size)
        self._windows: WindowGroup | None = None
        if limits.slides:
            self.kv = cache = KVGroups(limits)
            self.group = self._windows = WindowGroup(cache, limits.async_scheduling)
        self.running: dict[Request, None] = {}  # in admission order
        self.singles: dict[Request, None] = {}  # those of them outside the group
        self.waiting: WaitingQueue = ByPriority() if limits.priority else FirstCome()
        self.loading: dict[Request, None] = {}  # admitted, and their keys and values still on the way
        self.ready: list[Request] = []  # admitted, and all of it has come
        self.to_load: list[tuple[Request, int, float]] = []  # asked for since the driver last looked: tokens, when
        self._groups = not plain and not limits.speculative_tokens and (limits.stages == 1 or not limits.slides)
        self._admissions = 0
        self.fruitless = 0  # steps that preempted since any request got further than ever before
        self._head_blocked = False  # the first waiting request lacked blocks, and none have been freed since

    def use(self, tiers: Tiers) -> None:
        """Have tiers of memory below the cache, which go by single blocks; before anything is submitted."""
        self.tiers = tiers
        self.kv = tiers.above = self.kv if isinstance(self.kv, KVCache) else _cache(self.limits, KVCache)
        self.kv.gone = tiers.gone
        self.kv.fresh = tiers.fresh if tiers.through else None

    # -- queues -------------------------------------------------------------------------------------------------

    def enqueue(self, r: Request) -> None:
        """A new request becomes visible."""
        if not self.waiting or self.limits.priority:
            self._head_blocked = False
        if self._windows is not None and self.kv.caching and r.chain is not None:
            r.keys = self.names.names(r.chain, r.prompt + r.output)  # its answer falls out of windows as it is given
        self.waiting.add(r)

    def put_first(self, r: Request) -> None:
        """A waiting request goes before the others, as far as the queue's order allows."""
        self.waiting.remove(r)
        self.waiting.put_back(r)
        self._head_blocked = False

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
        return not self.ready and (not self.waiting or self._head_blocked)

    def remove(self, r: Request) -> None:
        """A request has ended or is given up: take it out of its queue and free its blocks."""
        if r.status == RUNNING:
            if self.kv.caching and (r.chain is not None or self.tiers is not None):
                self._name_all(r)
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
        self._head_blocked = False

    def let_go(self, r: Request) -> None:
        """What an ended request had kept has been fetched, or is not held any longer."""
        self._give_back(r)
        self._head_blocked = False

    def _give_back(self, r: Request) -> None:
        if r.rest == DROPPED:
            self.kv.forget(r, r.opening)
        self.kv.release(r)

    def loaded(self, r: Request) -> None:
        """What was on the way to a request has come: it runs next, in the order in which requests were admitted."""
        del self.loading[r]
        self._head_blocked = False
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
                if self._windows is not None:
                    self._windows.begin(step)
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
            budget, after_prefill = self._schedule_running(batch, budget, threshold)
        if self._windows is not None:
            self._windows.settle(step)
        if batch.preempted:
            self.fruitless += 1
        elif self.waiting or self.ready:
            budget = self._admit_ready(batch, budget, threshold, now)
            self._admit_waiting(batch, budget, threshold, now, after_prefill)
        self._commit(batch)
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

    def _schedule_running(self, batch: Batch, budget: int, threshold: int) -> tuple[int, bool]:
        limits = self.limits
        after_prefill = False
        scheduled: dict[Request, Entry] = {}
        for r in list(self.singles):
            if budget <= 0:
                break
            if r not in self.singles:
                continue  # preempted by one before it
            if r.owed and r.computed + 2 - r.owed >= r.prompt + r.output:
                continue  # its last token is already on the way
            if r.eligible > batch.step:
                continue  # its token is not back at the first stage of the pipeline
            known = r.prompt + r.outputs
            tokens = known + r.drafts + r.owed - r.computed
            if 0 < threshold < tokens:
                tokens = threshold
            tokens = min(tokens, budget, limits.max_model_len - r.computed - 1)
            if tokens <= 0:
                continue
            while not self.kv.grow(r, min(r.computed + tokens + limits.lookahead, limits.max_model_len)):
                victim = self._victim()
                entry = scheduled.pop(victim, None)
                if entry is not None:
                    budget += entry.tokens
                self._preempt(victim, batch)
                if victim is r:
                    break
            if r.status != RUNNING:
                break
            self.kv.complete(r, min(r.computed + tokens, known))
            drafts = max(0, min(r.drafts, tokens + r.computed - known - r.owed))
            r.drafts = 0
            scheduled[r] = Entry(r, tokens, drafts)
            after_prefill = after_prefill or r.chunking
            budget -= tokens
        batch.entries = list(scheduled.values())
        return budget, after_prefill

    def _victim(self) -> Request:
        if self.limits.priority:
            return max(self.running, key=lambda r: (r.priority, r.arrival))
        return next(reversed(self.running))

    def _preempt(self, r: Request, batch: Batch) -> None:
        if self.kv.caching:
            self._name_all(r)
        self.kv.release(r)
        del self.running[r]
        self.singles.pop(r, None)
        r.status = PREEMPTED
        r.furthest = max(r.furthest, r.computed)
        r.computed = 0
        r.drafts = 0
        r.stale = r.in_flight
        r.owed = 0
        r.preemptions += 1
        self.waiting.put_back(r)
        self._head_blocked = False
        batch.preempted.append(r)

    def _name_all(self, r: Request) -> None:
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

    def _admit_waiting(self, batch: Batch, budget: int, threshold: int, now: float, after_prefill: bool) -> None:
        limits = self.limits
        skipped: list[Request] = []
        waiting = self.waiting
        company = bool(batch.entries or batch.decodes)  # of requests that were running already
        while budget > 0 and waiting and len(self.running) < limits.max_num_seqs:
            r = waiting.head()
            if r.stale:
                skipped.append(waiting.pop())  # its tokens are still on the way
                continue
            hits = self.kv.match(r) if r.keys.length else 0
            if limits.drops_last_hit and hits:
                hits -= 1
            computed = hits * limits.block_size
            below = self._below(r, hits, now) if self.tiers is not None else []
            if below is None:
                skipped.append(waiting.pop())  # its blocks are on the way to another
                continue
            if below or computed < r.remote:
                if not self._fit(r, hits, r.prompt + r.outputs):
                    self._block_head(skipped)
                    break
                waiting.pop()
                self._load(r, computed, below, now)
                continue
            if r.given >= 0 and r.status == WAITING:
                hits, computed = min(hits, r.given // limits.block_size), min(r.given, r.prompt - 1)
            tokens, drafts = r.prompt + r.outputs - computed, 0
            if limits.speculative_tokens:
                tokens, drafts = self._first_tokens(r, computed, company, after_prefill)
            if drafts and tokens > budget:
                break
            if 0 < threshold < tokens:
                tokens, drafts = (1, 0) if drafts else (threshold, 0)
            if tokens > budget:
                if not limits.enable_chunked_prefill:
                    break
                tokens = budget
            if not self._fit(r, hits, computed + tokens + limits.lookahead):
                self._block_head(skipped)
                break
            waiting.pop()
            if r.remote:  # all of it is here already
                self.to_load.append((r, 0, now))
                r.remote = 0
            self._start(r, computed, now)
            self.kv.complete(r, min(computed + tokens, r.prompt + r.outputs))
            batch.entries.append(Entry(r, tokens, drafts))
            budget -= tokens
        for r in reversed(skipped):
            waiting.put_back(r)

    def _block_head(self, skipped: list[Request]) -> None:
        """The first waiting request lacks blocks, and will until some are freed; unless the blocks that it takes to
        begin depend on what tiers hold, which may change before."""
        always_whole = self.limits.reserve_full_prompt and not self.limits.lookahead
        if self._windows is not None:  # steps free blocks: so many are enough, unless that depends on the cache
            self._head_blocked = not skipped and always_whole and not self.waiting.head().keys.length
            self._windows.wanted = self._windows.kv.wanted
            return
        self._head_blocked = not skipped and (self.tiers is None or always_whole)

    def _below(self, r: Request, hits: int, now: float) -> list[Tier] | None:
        """Where a request's prefix goes on in tiers below; None if that is on the way to another request."""
        assert self.tiers is not None
        if r.remote or r.given >= 0:
            return []
        found = self.tiers.find(r, hits, now)
        return found[:-1] if found and self.limits.drops_last_hit else found

    def _admit_ready(self, batch: Batch, budget: int, threshold: int, now: float) -> int:
        """Run requests whose keys and values have come, for which they have blocks: what is left of their prompts."""
        while self.ready and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            r = self.ready[0]
            tokens = r.prompt + r.outputs - r.computed
            if 0 < threshold < tokens:
                tokens = threshold
            if tokens > budget:
                if not self.limits.enable_chunked_prefill:
                    return 0
                tokens = budget
            self.ready.pop(0)
            self._start(r, r.computed, now)
            self.kv.complete(r, r.computed + tokens)
            batch.entries.append(Entry(r, tokens, 0))
            budget -= tokens
        return budget

    def _load(self, r: Request, computed: int, below: list[Tier], now: float) -> None:
        """Fetch what is in tiers below, or what another engine has computed but for the last token, into the blocks
        just taken."""
        found = len(below) * self.limits.block_size
        if r.status == WAITING:
            r.scheduled = now
            r.hit = computed + found
        if self.tiers is not None and below:
            self.tiers.load(r, r.keys[r.cached : r.cached + len(below)], below, now)
            r.computed = computed + found
        else:
            self.to_load.append((r, r.remote - computed, now))
            r.computed = min(r.remote, r.prompt - 1)
            r.remote = 0
        r.status = LOADING
        self._admissions += 1
        r.order = self._admissions
        self.loading[r] = None

    def _first_tokens(self, r: Request, computed: int, company: bool, after_prefill: bool) -> tuple[int, int]:
        """Tokens a waiting request lacks, and the drafts that pad it to a full verify step where only one is left."""
        tokens = r.prompt + r.outputs - computed
        drafts = self.limits.speculative_tokens
        lone_token = tokens == 1 and not after_prefill and (company or computed > 0)
        if drafts and lone_token and computed + 2 + drafts <= self.limits.max_model_len:
            return 1 + drafts, drafts
        return tokens, 0

    def _fit(self, r: Request, hits: int, tokens: int) -> bool:
        limits = self.limits
        whole = min(r.prompt + r.outputs, limits.max_model_len) if limits.reserve_full_prompt else 0
        return self.kv.admit(r, hits, min(tokens, limits.max_model_len), whole, bool(self.running))

    def _start(self, r: Request, computed: int, now: float) -> None:
        if r.status == WAITING:
            r.scheduled = now
            r.hit = computed
        r.status = RUNNING
        r.computed = computed
        self._admissions += 1
        r.order = self._admissions
        self.running[r] = None
        self.singles[r] = None

    def _commit(self, batch: Batch) -> None:
        """Count the scheduled tokens as computed and note what each request will get out of the step."""
        asynchronous = self.limits.async_scheduling
        windows = self._windows
        kept: list[Entry] = []
        batch.scheduled = batch.entries
        for entry in batch.entries:
            r = entry.request
            tokens = entry.tokens
            if tokens == 1:
                batch.decodes += 1
                batch.kv += r.computed + 1
                if r.computed >= batch.longest:
                    batch.longest = r.computed + 1
            else:
                batch.chunks.append((tokens, r.computed))
            r.computed += tokens
            if r.computed > r.furthest:
                self.fruitless = 0
            r.in_flight += tokens
            r.chunking = r.computed < r.prompt + r.outputs + r.owed
            if not r.chunking:
                self._expect_tokens(entry)
                if asynchronous:
                    r.owed += 1 + entry.drafts
                    r.eligible = batch.step + self.limits.stages
                    r.drafts = self.limits.speculative_tokens
                goes_on = r.computed < r.prompt + r.output - 1
                if self._groups and goes_on and (windows is None or windows.admits(r, tokens)):
                    self._join(r, batch.step)
                    continue
            kept.append(entry)
        batch.entries = kept

    def _expect_tokens(self, entry: Entry) -> None:
        r = entry.request
        entry.sampled = 1
        if entry.drafts:
            pattern = r.accept or (entry.drafts,)
            entry.sampled += min(entry.drafts, pattern[r.verified % len(pattern)])
            r.verified += 1

    # -- the group ----------------------------------------------------------------------------------------------

    def _join(self, r: Request, step: int) -> None:
        if self._windows is not None and r.owed > 1:
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
        self._head_blocked = False

    # -- results ------------------------------------------------------------------------------------------------

    def update(self, batch: Batch) -> list[Request]:
        """Hand out a step's tokens; returns the requests that have ended, in the order the engine frees them."""
        ended: list[Request] = []
        asynchronous = self.limits.async_scheduling
        for entry in batch.entries:
            r = entry.request
            if r.grouped:
                continue  # it joined the group since; the group knows how far it is
            r.in_flight -= entry.tokens
            stale = r.stale > 0
            if stale:
                r.stale -= entry.tokens
            if r.status >= FINISHED or not entry.sampled:
                continue
            if entry.drafts and not stale:
                rejected = entry.drafts + 1 - entry.sampled
                if r.computed:
                    r.computed -= rejected
                if r.owed:
                    r.owed -= rejected
            r.emit(batch.step)
            delivered = min(entry.sampled, r.output - r.outputs)
            r.outputs += delivered
            if asynchronous and not stale:
                r.owed -= delivered
            if asynchronous and r.status == RUNNING:
                self.kv.complete(r, r.computed - r.owed)
            if r.outputs >= r.output:
                ended.append(r)
            elif not asynchronous and self.limits.speculative_tokens:
                r.drafts = 0 if r.chunking else self.limits.speculative_tokens
        return ended


def _cache(limits: Limits, kind: type[Kept]) -> Kept:
    return kind(limits.blocks, limits.block_size, limits.enable_prefix_caching, limits.watermark)
