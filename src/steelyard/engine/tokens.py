"""The tokens of a step: counted as computed when it is scheduled, delivered when its result is back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.engine.batch import Batch, Entry
from steelyard.engine.request import FINISHED, RUNNING, Request

if TYPE_CHECKING:
    from steelyard.engine.scheduler import Scheduler


def commit(scheduler: Scheduler, batch: Batch) -> None:
    """Count the scheduled tokens as computed, and set how many tokens each request samples."""
    asynchronous = scheduler.limits.async_scheduling
    windows = scheduler.windows
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
            scheduler.steps_without_progress = 0
        r.in_flight += tokens
        r.chunking = r.computed < r.prompt + r.outputs + r.owed
        if not r.chunking:
            entry.sampled = 1
            if entry.drafts:
                entry.sampled += _accepted(entry)
            if asynchronous:
                r.owed += 1 + entry.drafts
                r.eligible = batch.step + scheduler.limits.stages
                r.drafts = scheduler.limits.speculative_tokens
            goes_on = r.computed < r.prompt + r.output - 1
            if scheduler.grouping and goes_on and (windows is None or windows.admits(r, tokens)):
                scheduler.join(r, batch.step)
                continue
        kept.append(entry)
    batch.entries = kept


def _accepted(entry: Entry) -> int:
    """How many draft tokens of a request its next verify step accepts."""
    r = entry.request
    pattern = r.accept or (entry.drafts,)
    accepted = min(entry.drafts, pattern[r.verified % len(pattern)])
    r.verified += 1
    return accepted


def hand_out(scheduler: Scheduler, batch: Batch) -> list[Request]:
    """Deliver a step's tokens. Returns the ended requests, in the order in which the engine frees them."""
    ended: list[Request] = []
    asynchronous = scheduler.limits.async_scheduling
    for entry in batch.entries:
        r = entry.request
        if r.grouped:
            continue  # it has joined the group, which counts its tokens
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
            scheduler.kv.complete(r, r.computed - r.owed)
        if r.outputs >= r.output:
            ended.append(r)
        elif not asynchronous and scheduler.limits.speculative_tokens:
            r.drafts = 0 if r.chunking else scheduler.limits.speculative_tokens
    return ended
