"""The front desk: turns a workload's rows into requests that engines understand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from steelyard.engine import BlockNames, Limits, Request, extend
from steelyard.workload import Workload
from steelyard.workload.columns import root_of

Ints = NDArray[np.int64]


class Desk:
    """Makes requests when they are due, and notes when each was submitted and where it went."""

    def __init__(self, workload: Workload, limits: Limits) -> None:
        self.workload = workload
        self.names = BlockNames(limits.block_size)
        self.max_model_len = limits.max_model_len
        self.arrival = np.where(workload.after < 0, workload.at, np.nan)
        self.replica = np.full(len(workload), -1, dtype=np.int64)
        self.roots = np.flatnonzero(workload.after < 0)
        self.followers: dict[int, list[int]] = defaultdict(list)
        for child in np.flatnonzero(workload.after >= 0).tolist():
            self.followers[int(workload.after[child])].append(child)
        self.refused = _refusals(workload, limits)
        self._shares = workload.content is not None and limits.enable_prefix_caching
        self._patient = not np.isfinite(workload.abort).any()

    @cached_property
    def session(self) -> Ints:
        """The first request of each one's session, by which a session is known."""
        return root_of(self.workload.after)

    def request(self, i: int, at: float) -> Request:
        """Row ``i`` as a request submitted at ``at``."""
        work = self.workload
        return self._make(i, at, int(work.prompt[i]), int(work.output[i]), int(work.priority[i]))

    def requests(self, rows: Ints) -> Iterator[Request]:
        """Rows with a time of their own as requests, those aside that cannot be served."""
        work = self.workload
        columns = (rows, work.at[rows], work.prompt[rows], work.output[rows], work.priority[rows])
        for i, at, prompt, output, priority in zip(*(column.tolist() for column in columns), strict=True):
            if i not in self.refused:
                yield self._make(i, at, prompt, output, priority)

    def _make(self, i: int, at: float, prompt: int, output: int, priority: int) -> Request:
        room = self.max_model_len - prompt
        r = Request(i, at, prompt, output if output < room else room, priority)
        if self._shares:
            self._name_blocks(r, i)
        if self.workload.accept is not None:
            r.accept = self.workload.accept[i] or None
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

    def abort_at(self, r: Request) -> float:
        """When a request's client gives up."""
        return inf if self._patient else r.arrival + float(self.workload.abort[r.index])

    def think(self, i: int) -> float:
        """Seconds between a request's end and its follower ``i``."""
        return float(self.workload.think[i])


def _refusals(workload: Workload, limits: Limits) -> dict[int, str]:
    """The requests that no engine of this kind could ever serve, and why."""
    prompt, output = workload.prompt, workload.output
    most = np.minimum(prompt + output - 1 + limits.speculative_tokens, limits.max_model_len)
    bad = (prompt + 1 > limits.max_model_len) | (most > limits.blocks * limits.block_size)
    if not limits.enable_chunked_prefill:
        bad |= prompt > limits.max_num_batched_tokens
    reasons = {i: limits.refusal(int(prompt[i]), int(output[i])) for i in np.flatnonzero(bad).tolist()}
    return {i: reason for i, reason in reasons.items() if reason is not None}
