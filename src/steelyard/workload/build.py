"""Builds the columns of requests that a scenario describes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from steelyard.errors import UserError
from steelyard.records import Floats, Ints
from steelyard.scenario import (
    AcceptSpec,
    ClosedArrivals,
    MixSpec,
    PrefixSpec,
    StageSpec,
    TraceArrivals,
    WorkloadSpec,
)
from steelyard.scenario.numbers import MOST_REQUESTS
from steelyard.workload.arrivals import OpenArrivals, arrival_times
from steelyard.workload.columns import Workload, in_order, merge, plain, root_of, take
from steelyard.workload.draw import Dice, draw_accept, draw_group, draw_priority, draw_seconds, draw_tokens
from steelyard.workload.plans import Conversations, draw_amounts, lay_out, planned
from steelyard.workload.sharing import Sharing, conversations, unshared, with_prefix
from steelyard.workload.traces import read_trace
from steelyard.workload.traces.capture import read_given, read_sent

_SAME_SECOND = 1e-12  # seconds between requests of one time whose order is known


def build_workload(mix: MixSpec, seed: int, base_dir: Path, acceptance: AcceptSpec | None = None) -> Workload:
    """The requests of a scenario's workload, the same for the same seed.

    ``acceptance`` applies to workloads that do not define how many draft tokens are accepted.
    """
    works = []
    done = 0.0
    for i, (spec, share) in enumerate(zip(mix.workloads(), mix.shares(), strict=True)):
        name = spec.name or ("workload" if len(mix.mix) == 1 else f"workload-{i}")
        dice = Dice(seed, i)
        if spec.trace is not None:
            work = _recorded(spec, dice, base_dir)
        else:
            work = _drawn(spec, _Portion(done, done + share), dice, base_dir)
            done += share if spec.share is not None else 0.0
        if not len(work):
            raise UserError(f"workload {name!r} has no requests: its duration or its share of the mix is too small")
        works.append(replace(_with_manners(work, spec, dice, acceptance), labels=[name]))
    return merge(works)


@dataclass
class _Portion:
    """A part of a mix, from ``start`` to ``end`` of the whole; rounded parts of a number sum to it."""

    start: float
    end: float

    @property
    def share(self) -> float:
        return self.end - self.start

    def of(self, number: int) -> int:
        return round(self.end * number) - round(self.start * number)


def _drawn(spec: WorkloadSpec, portion: _Portion, dice: Dice, base_dir: Path) -> Workload:
    """A synthetic workload, without priorities and aborts."""
    assert spec.prompt is not None and spec.output is not None
    times, turns = _arrivals(spec, portion, dice, base_dir)
    n = int(turns.sum()) if turns is not None else len(times)
    if n > MOST_REQUESTS:
        raise UserError(
            f"workload.session.turns: {n:,} requests in {len(times):,} sessions; at most {MOST_REQUESTS:,} can be "
            "simulated: give requests, or a shorter duration"
        )
    prompt = draw_tokens(spec.prompt, n, dice.of("prompt"), base_dir)
    output = draw_tokens(spec.output, n, dice.of("output"), base_dir)
    if spec.plan is not None:
        work = _planned(spec, spec.plan, prompt, output, turns, dice, base_dir)
    else:
        work = _answered(spec, prompt, output, turns, dice)
    first = np.flatnonzero(work.after < 0)
    if isinstance(spec.arrivals, ClosedArrivals):
        last = np.append(first[1:], len(work)) - 1
        _close_loop(work, spec.arrivals, max(1, portion.of(spec.arrivals.users)), first, last, dice)
    else:
        work.at[first] = times
    if spec.requests is not None and n < portion.of(spec.requests):
        work.notes.append(f"{n} of {portion.of(spec.requests)} requests arrive before the duration or rate ends")
    return work


def _answered(spec: WorkloadSpec, prompt: Ints, output: Ints, turns: Ints | None, dice: Dice) -> Workload:
    """Requests without hidden rounds, in sessions or single."""
    n = len(prompt)
    sharing = _shared(spec, prompt, output, turns, dice)
    work = replace(
        plain(np.full(n, np.nan), sharing.prompt, output),
        content=sharing.content,
        stream=sharing.stream,
        streams=sharing.streams,
    )
    if spec.session is not None:
        assert turns is not None
        first = np.cumsum(turns) - turns
        work.after = np.arange(-1, n - 1)
        work.think = draw_seconds(spec.session.think, n, dice.of("think"))
        work.after[first], work.think[first] = -1, 0.0
    return work


def _planned(
    spec: WorkloadSpec,
    plan: tuple[StageSpec, ...],
    prompt: Ints,
    output: Ints,
    turns: Ints | None,
    dice: Dice,
    base_dir: Path,
) -> Workload:
    """Requests whose answer follows hidden rounds, in sessions or single."""
    n = len(prompt)
    opening, think = spec.prefix, np.zeros(n)
    if spec.session is not None:
        opening, think = spec.session.system, draw_seconds(spec.session.think, n, dice.of("think"))
    elif opening is not None:
        prompt = np.maximum(prompt - opening.tokens, 1)
    turns = np.ones(n, dtype=np.int64) if turns is None else turns
    users = Conversations(turns, prompt, think, opening, _groups(opening, len(turns), dice))
    layout = lay_out(plan, n, dice, base_dir)
    return planned(layout, draw_amounts(plan, layout, output, dice, base_dir), users, plan)


def _arrivals(spec: WorkloadSpec, portion: _Portion, dice: Dice, base_dir: Path) -> tuple[Floats, Ints | None]:
    """When each request or session arrives, and the turns of each session (None without sessions).

    The number of requests is exact: the last session is cut short if necessary.
    """
    n = None if spec.requests is None else portion.of(spec.requests)
    turns = None
    if spec.session is not None and n is not None:
        turns = draw_tokens(spec.session.turns, n, dice.of("turns"), base_dir)
        total = np.cumsum(turns)
        turns = turns[: int(np.searchsorted(total, n)) + 1]
        if len(turns):
            turns[-1] -= total[len(turns) - 1] - n
    units = len(turns) if turns is not None else n
    if isinstance(spec.arrivals, ClosedArrivals):
        assert units is not None
        return np.zeros(units), turns
    assert spec.arrivals is not None and not isinstance(spec.arrivals, TraceArrivals)
    times = arrival_times(spec.arrivals, portion.share, units, spec.duration, dice.of("arrivals"))
    if spec.session is not None and turns is None:
        turns = draw_tokens(spec.session.turns, len(times), dice.of("turns"), base_dir)
    return times, None if turns is None else turns[: len(times)]


def _shared(spec: WorkloadSpec, prompt: Ints, output: Ints, turns: Ints | None, dice: Dice) -> Sharing:
    if spec.session is not None:
        assert turns is not None
        system = spec.session.system
        tokens, groups = (system.tokens, system.groups) if system is not None else (0, 0)
        return conversations(turns, prompt, output, tokens, groups, _groups(system, len(turns), dice))
    if spec.prefix is not None:
        group = _groups(spec.prefix, len(prompt), dice)
        return with_prefix(prompt, spec.prefix.tokens, spec.prefix.groups, group)
    return unshared(prompt)


def _groups(prefix: PrefixSpec | None, n: int, dice: Dice) -> Ints:
    return np.zeros(n, dtype=np.int64) if prefix is None else draw_group(prefix, n, dice.of("group"))


def _close_loop(work: Workload, loop: ClosedArrivals, users: int, first: Ints, last: Ints, dice: Dice) -> None:
    """Chain requests (or sessions) so that each waits for the end of the same user's previous one."""
    starters, others = first[:users], first[users:]
    work.at[starters] = loop.ramp * np.arange(len(starters)) / users
    work.after[others] = last[: len(others)]
    work.think[others] = draw_seconds(loop.think, len(others), dice.of("user think"))


def _recorded(spec: WorkloadSpec, dice: Dice, base_dir: Path) -> Workload:
    """A trace's requests, at its own arrival times or at others."""
    assert spec.trace is not None and spec.arrivals is not None
    path = base_dir / spec.trace.file
    limits = [limit for limit in (spec.trace.limit, spec.requests) if limit is not None]
    work = read_trace(path, spec.trace.format, min(limits, default=None))
    if spec.trace.sent is not None:
        work.at = work.at + _SAME_SECOND * read_sent(path, base_dir / spec.trace.sent)[: len(work)]
    if spec.trace.cached is not None:
        work.given = read_given(path, base_dir / spec.trace.cached)[: len(work)]
    roots = np.flatnonzero(work.after < 0)
    if isinstance(spec.arrivals, TraceArrivals):
        if np.isnan(work.at[roots]).any():
            raise UserError(
                f"{path}: has no arrival times; give the workload arrivals of its own, such as "
                "{kind: poisson, rate: 10} or {kind: burst}"
            )
        work.at, work.think = work.at / spec.arrivals.scale, work.think / spec.arrivals.scale
    elif isinstance(spec.arrivals, ClosedArrivals):
        if len(roots) < len(work):
            raise UserError(f"{path}: its requests already wait for each other; closed arrivals cannot be laid over")
        work.at = np.full(len(work), np.nan)
        _close_loop(work, spec.arrivals, spec.arrivals.users, roots, roots, dice)
    else:
        work.at[roots] = _replaced(spec.arrivals, len(roots), spec.duration, dice)
    return in_order(_within(work, spec.duration))


def _replaced(arrivals: OpenArrivals, n: int, duration: float | None, dice: Dice) -> Floats:
    """New arrival times for a trace's roots; those after ``duration`` are dropped."""
    times = np.full(n, np.inf)
    came = arrival_times(arrivals, 1.0, n, duration, dice.of("arrivals"))
    times[: len(came)] = came
    return times


def _within(work: Workload, duration: float | None) -> Workload:
    """Requests whose chain starts before ``duration``."""
    starts = work.at[root_of(work.after)]
    kept = np.isfinite(starts) if duration is None else starts <= duration
    return work if kept.all() else take(work, np.flatnonzero(kept))


def _with_manners(work: Workload, spec: WorkloadSpec, dice: Dice, acceptance: AcceptSpec | None) -> Workload:
    """Add priority, abort time and accepted drafts, for drawn and recorded requests alike."""
    n = len(work)
    work.priority = draw_priority(spec.priority, n, dice.of("priority"))
    if spec.abort_after is not None:
        work.abort = np.maximum(draw_seconds(spec.abort_after, n, dice.of("abort")), 1e-9)
    accept = spec.accept or acceptance
    if accept is not None:
        work.accept = draw_accept(accept, n, dice.of("accept"))
    if work.rounds is not None:  # all rounds of a request have one priority and one abort time
        work.priority, work.abort = work.priority[work.rounds.first], work.abort[work.rounds.first]
    return work
