"""Admission of waiting requests, in vLLM's order and within its limits.

Requests are admitted in queue order while budget, sequence slots and blocks last. Tokens found in the cache are not
computed. A request whose prefix is in a tier below or on another engine fetches it first, while others continue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.engine.batch import Batch, Entry
from steelyard.engine.request import LOADING, WAITING, Request
from steelyard.engine.tiers import Tier

if TYPE_CHECKING:
    from steelyard.engine.scheduler import Scheduler


def admit_ready(scheduler: Scheduler, batch: Batch, budget: int, threshold: int, now: float) -> int:
    """Schedule the rest of the prompts whose fetched blocks have arrived."""
    while scheduler.ready and budget > 0 and len(scheduler.running) < scheduler.limits.max_num_seqs:
        r = scheduler.ready[0]
        tokens = r.prompt + r.outputs - r.computed
        if 0 < threshold < tokens:
            tokens = threshold
        if tokens > budget:
            if not scheduler.limits.enable_chunked_prefill:
                return 0
            tokens = budget
        scheduler.ready.pop(0)
        scheduler.start(r, r.computed, now)
        scheduler.kv.complete(r, r.computed + tokens)
        batch.entries.append(Entry(r, tokens, 0))
        budget -= tokens
    return budget


def admit_waiting(
    scheduler: Scheduler, batch: Batch, budget: int, threshold: int, now: float, after_prefill: bool
) -> None:
    """Admit waiting requests in queue order. ``after_prefill``: the step continues a chunked prompt."""
    limits = scheduler.limits
    skipped: list[Request] = []
    waiting = scheduler.waiting
    company = bool(batch.entries or batch.decodes)  # requests that were already running are in the step
    while budget > 0 and waiting and len(scheduler.running) < limits.max_num_seqs:
        r = waiting.head()
        if r.stale:
            skipped.append(waiting.pop())  # its tokens are still in flight
            continue
        hits = scheduler.kv.match(r) if r.keys.length else 0
        if limits.drops_last_hit and hits:
            hits -= 1
        computed = hits * limits.block_size
        below = _below(scheduler, r, hits, now) if scheduler.tiers is not None else []
        if below is None:
            skipped.append(waiting.pop())  # its blocks are being fetched for another request
            continue
        if below or computed < r.remote:
            if not scheduler.fit(r, hits, r.prompt + r.outputs):
                _block_head(scheduler, skipped)
                break
            waiting.pop()
            _load(scheduler, r, computed, below, now)
            continue
        if r.given >= 0 and r.status == WAITING:
            hits, computed = min(hits, r.given // limits.block_size), min(r.given, r.prompt - 1)
        tokens, drafts = r.prompt + r.outputs - computed, 0
        if limits.speculative_tokens:
            tokens, drafts = _first_tokens(scheduler, r, computed, company, after_prefill)
        if drafts and tokens > budget:
            break
        if 0 < threshold < tokens:
            tokens, drafts = (1, 0) if drafts else (threshold, 0)
        if tokens > budget:
            if not limits.enable_chunked_prefill:
                break
            tokens = budget
        if not scheduler.fit(r, hits, computed + tokens + limits.lookahead):
            _block_head(scheduler, skipped)
            break
        waiting.pop()
        if r.remote:  # all of it is already here
            scheduler.to_load.append((r, 0, now))
            r.remote = 0
        scheduler.start(r, computed, now)
        scheduler.kv.complete(r, min(computed + tokens, r.prompt + r.outputs))
        batch.entries.append(Entry(r, tokens, drafts))
        budget -= tokens
    for r in reversed(skipped):
        waiting.put_back(r)


def _block_head(scheduler: Scheduler, skipped: list[Request]) -> None:
    """The first waiting request lacks blocks until some are freed, unless the blocks it needs depend on what
    tiers hold, which may change earlier."""
    always_whole = scheduler.limits.reserve_full_prompt and not scheduler.limits.lookahead
    if scheduler.windows is not None:  # steps free blocks; how many suffice is known unless it depends on the cache
        scheduler.head_blocked = not skipped and always_whole and not scheduler.waiting.head().keys.length
        scheduler.windows.wanted = scheduler.windows.kv.wanted
        return
    scheduler.head_blocked = not skipped and (scheduler.tiers is None or always_whole)


def _below(scheduler: Scheduler, r: Request, hits: int, now: float) -> list[Tier] | None:
    """The tiers that continue a request's prefix; None if their blocks are being fetched for another request."""
    assert scheduler.tiers is not None
    if r.remote or r.given >= 0:
        return []
    found = scheduler.tiers.find(r, hits, now)
    return found[:-1] if found and scheduler.limits.drops_last_hit else found


def _load(scheduler: Scheduler, r: Request, computed: int, below: list[Tier], now: float) -> None:
    """Fetch into the blocks just allocated what tiers below hold, or what another engine has computed but for the
    last token."""
    found = len(below) * scheduler.limits.block_size
    if r.status == WAITING:
        r.scheduled = now
        r.hit = computed + found
    if scheduler.tiers is not None and below:
        scheduler.tiers.load(r, r.keys[r.cached : r.cached + len(below)], below, now)
        r.computed = computed + found
    else:
        scheduler.to_load.append((r, r.remote - computed, now))
        r.computed = min(r.remote, r.prompt - 1)
        r.remote = 0
    r.status = LOADING
    scheduler.admissions += 1
    r.order = scheduler.admissions
    scheduler.loading[r] = None


def _first_tokens(
    scheduler: Scheduler, r: Request, computed: int, company: bool, after_prefill: bool
) -> tuple[int, int]:
    """Tokens a waiting request lacks, and the drafts that pad it to a full verify step if only one is left."""
    tokens = r.prompt + r.outputs - computed
    drafts = scheduler.limits.speculative_tokens
    lone_token = tokens == 1 and not after_prefill and (company or computed > 0)
    if drafts and lone_token and computed + 2 + drafts <= scheduler.limits.max_model_len:
        return 1 + drafts, drafts
    return tokens, 0
