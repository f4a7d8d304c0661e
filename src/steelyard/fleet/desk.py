"""The front desk: turns a workload's rows into requests that engines understand."""

from __future__ import annotations

from collections import defaultdict
from math import inf

import numpy as np

from steelyard.engine import BlockNames, Limits, Request, extend
from steelyard.workload import Workload
from steelyard.workload.columns import root_of


class Desk:
    """Rows of a workload as plain lists (fast to index), requests made only when they are due."""

    def __init__(self, workload: Workload, limits: Limits) -> None:
        self.workload = workload
        self.names = BlockNames(limits.block_size)
        self.refused: dict[int, str] = {}
        self.arrival = np.where(workload.after < 0, workload.at, np.nan)
        self.replica = np.full(len(workload), -1, dtype=np.int64)
        self.roots: list[int] = np.flatnonzero(workload.after < 0).tolist()
        self.at: list[float] = workload.at.tolist()
        self.session: list[int] = root_of(workload.after).tolist()
        self.followers: dict[int, list[int]] = defaultdict(list)
        for child in np.flatnonzero(workload.after >= 0).tolist():
            self.followers[int(workload.after[child])].append(child)
        self._limits = limits
        self.max_model_len = limits.max_model_len
        self._prompt: list[int] = workload.prompt.tolist()
        self._output: list[int] = workload.output.tolist()
        self._priority: list[int] = workload.priority.tolist()
        self._stream: list[int] = workload.stream.tolist()
        self._think: list[float] = workload.think.tolist()
        self._abort: list[float] | None = (
            workload.abort.tolist() if np.isfinite(workload.abort).any() else None
        )
        self._shares = workload.content is not None and limits.enable_prefix_caching
        self._judge()

    def _judge(self) -> None:
        """Find the requests that no engine of this kind could ever serve."""
        limits = self._limits
        prompt, output = self.workload.prompt, self.workload.output
        most = np.minimum(prompt + output - 1 + limits.speculative_tokens, limits.max_model_len)
        bad = (prompt + 1 > limits.max_model_len) | (most > limits.blocks * limits.block_size)
        if not limits.enable_chunked_prefill:
            bad |= prompt > limits.max_num_batched_tokens
        for i in np.flatnonzero(bad).tolist():
            reason = limits.refusal(self._prompt[i], self._output[i])
            if reason is not None:
                self.refused[i] = reason

    def request(self, i: int, at: float) -> Request:
        """Row ``i`` as a request submitted at ``at``."""
        prompt = self._prompt[i]
        output = self._output[i]
        room = self._limits.max_model_len - prompt
        r = Request(i, at, prompt, output if output < room else room, self._priority[i])
        if self._shares:
            self._name_blocks(r, i)
        if self.workload.accept is not None:
            r.accept = self.workload.accept[i] or None
        return r

    def _name_blocks(self, r: Request, i: int) -> None:
        assert self.workload.content is not None
        content = self.workload.content[i]
        stream = self._stream[i]
        if stream >= 0:
            r.chain = extend(content, stream)
            r.keys = self.names.names(r.chain, r.prompt)
        elif content:
            r.keys = self.names.names(content, r.prompt)

    def abort_at(self, i: int, at: float) -> float:
        """When the client of row ``i`` gives up."""
        return inf if self._abort is None else at + self._abort[i]

    def think(self, i: int) -> float:
        """Seconds between a request's end and its follower ``i``."""
        return self._think[i]
