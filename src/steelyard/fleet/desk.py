"""The front desk: turns a workload's rows into requests that engines understand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.host import NO_HOST, HostTerms
from steelyard.engine import FINISHED, BlockNames, Engine, Limits, Request, extend
from steelyard.fleet.frontend import Frontend, Shown
from steelyard.workload import Workload
from steelyard.workload.columns import root_of

Ints = NDArray[np.int64]


class Desk:
    """Makes requests when they are due, and notes when each was submitted and where it went.

    ``arrival`` is when the client sent a request, ``taken`` when the front end of its replica took it up. Where
    requests pass from one kind of engine to another, each ``stage`` has its kinds of engines, any of which may serve.
    """

    def __init__(self, workload: Workload, *stages: Sequence[Limits], host: HostTerms = NO_HOST) -> None:
        self.workload = workload
        self.host = host
        everybody = [limits for stage in stages for limits in stage]
        self.names = BlockNames(everybody[0].block_size)
        self.max_model_len = min(limits.max_model_len for limits in everybody)
        self.arrival = np.where(workload.after < 0, workload.at, np.nan)
        self.taken = np.full(len(workload), np.nan)
        self.replica = np.full(len(workload), -1, dtype=np.int64)
        self.roots = np.flatnonzero(workload.after < 0)
        self.followers: dict[int, list[int]] = defaultdict(list)
        for child in np.flatnonzero(workload.after >= 0).tolist():
            self.followers[int(workload.after[child])].append(child)
        self.refused = _refusals(workload, stages)
        self._shares = workload.content is not None and any(limits.enable_prefix_caching for limits in everybody)
        self._patient = not np.isfinite(workload.abort).any()

    @cached_property
    def session(self) -> Ints:
        """The first request of each one's session, by which a session is known."""
        return root_of(self.workload.after)

    def request(self, i: int, at: float) -> Request:
        """Row ``i`` as a request submitted at ``at``."""
        work = self.workload
        return self._make(i, at, int(work.prompt[i]), int(work.output[i]), int(work.priority[i]))

    def requests(self, rows: Ints) -> Iterator[tuple[Request, float]]:
        """Rows with a time of their own, all for one replica and none refused, as requests; and when it sees each."""
        work = self.workload
        frontend = Frontend(self.host)
        columns = (rows, work.at[rows], work.prompt[rows], work.output[rows], work.priority[rows])
        for i, at, prompt, output, priority in zip(*(column.tolist() for column in columns), strict=True):
            self.taken[i], seen = frontend.take(at, prompt)
            yield self._make(i, at, prompt, output, priority), seen

    def _make(self, i: int, at: float, prompt: int, output: int, priority: int) -> Request:
        room = self.max_model_len - prompt
        r = Request(i, at, prompt, output if output < room else room, priority)
        if self._shares:
            self._name_blocks(r, i)
        if self.workload.accept is not None:
            r.accept = self.workload.accept[i] or None
        if self.workload.given is not None:
            r.given = int(self.workload.given[i])
        return r

    def _name_blocks(self, r: Request, i: int) -> None:
        assert self.workload.content is not None
        content = self.workload.content[i]
        stream = int(self.workload.stream[i])
        if stream >= 0:
            r.chain = extend(content, stream)
            r.keys = self.names.names(r.chain, r.prompt)
        elif content:
            r.keys = self.names.names(content, r.prompt)

    def take(self, r: Request, frontend: Frontend) -> float:
        """A replica's front end takes a request up; the second at which the engine sees it."""
        self.arrival[r.index] = r.arrival
        self.taken[r.index], seen = frontend.take(r.arrival, r.prompt)
        return seen

    def ends(self, engine: Engine) -> Callable[[Request], float]:
        """When a client knows that its request has ended, for those that an engine ends one after the other."""
        shown = Shown(self.host, engine.log)
        return lambda r: shown.at(r.last) if r.status == FINISHED else engine.end_of(r)

    def abort_at(self, r: Request) -> float:
        """When a request's client gives up."""
        return inf if self._patient else r.arrival + float(self.workload.abort[r.index])

    def think(self, i: int) -> float:
        """Seconds between a request's end and its follower ``i``."""
        return float(self.workload.think[i])


def _refusals(workload: Workload, stages: Sequence[Sequence[Limits]]) -> dict[int, str]:
    """The requests that no engine of some stage could ever serve, and why."""
    found: dict[int, str] = {}
    for stage in stages:
        first, *others = (_refused(workload, limits) for limits in stage)
        found |= {i: why for i, why in first.items() if all(i in other for other in others)}
    return found


def _refused(workload: Workload, limits: Limits) -> dict[int, str]:
    prompt, output = workload.prompt, workload.output
    most = np.minimum(prompt + output - 1 + limits.speculative_tokens, limits.max_model_len)
    bad = (prompt + 1 > limits.max_model_len) | (most > limits.blocks * limits.block_size)
    if not limits.enable_chunked_prefill:
        bad |= prompt > limits.max_num_batched_tokens
    reasons = {i: limits.refusal(int(prompt[i]), int(output[i])) for i in np.flatnonzero(bad).tolist()}
    return {i: reason for i, reason in reasons.items() if reason is not None}
