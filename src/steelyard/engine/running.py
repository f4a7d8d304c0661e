"""Scheduling of running requests, one by one, with preemption when blocks run out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.engine.batch import Batch, Entry
from steelyard.engine.request import PREEMPTED, RUNNING, Request

if TYPE_CHECKING:
    from steelyard.engine.scheduler import Scheduler


def schedule_running(scheduler: Scheduler, batch: Batch, budget: int, threshold: int) -> tuple[int, bool]:
    """Give each its tokens. Returns the rest of the budget, and whether any request was within its prompt."""
    limits = scheduler.limits
    after_prefill = False
    scheduled: dict[Request, Entry] = {}
    for r in list(scheduler.singles):
        if budget <= 0:
            break
        if r not in scheduler.singles:
            continue  # preempted by an earlier one
        if r.owed and r.computed + 2 - r.owed >= r.prompt + r.output:
            continue  # its last token is in flight
        if r.eligible > batch.step:
            continue  # its token has not returned to the first pipeline stage
        known = r.prompt + r.outputs
        tokens = known + r.drafts + r.owed - r.computed
        if 0 < threshold < tokens:
            tokens = threshold
        tokens = min(tokens, budget, limits.max_model_len - r.computed - 1)
        if tokens <= 0:
            continue
        while not scheduler.kv.grow(r, min(r.computed + tokens + limits.lookahead, limits.max_model_len)):
            victim = scheduler.victim()
            entry = scheduled.pop(victim, None)
            if entry is not None:
                budget += entry.tokens
            _preempt(scheduler, victim, batch)
            if victim is r:
                break
        if r.status != RUNNING:
            break
        scheduler.kv.complete(r, min(r.computed + tokens, known))
        drafts = max(0, min(r.drafts, tokens + r.computed - known - r.owed))
        r.drafts = 0
        scheduled[r] = Entry(r, tokens, drafts)
        after_prefill = after_prefill or r.chunking
        budget -= tokens
    batch.entries = list(scheduled.values())
    return budget, after_prefill


def _preempt(scheduler: Scheduler, r: Request, batch: Batch) -> None:
    if scheduler.kv.caching:
        scheduler.name_all(r)
    scheduler.kv.release(r)
    del scheduler.running[r]
    scheduler.singles.pop(r, None)
    r.status = PREEMPTED
    r.furthest = max(r.furthest, r.computed)
    r.computed = 0
    r.drafts = 0
    r.stale = r.in_flight
    r.owed = 0
    r.preemptions += 1
    scheduler.waiting.put_back(r)
    scheduler.head_blocked = False
    batch.preempted.append(r)
