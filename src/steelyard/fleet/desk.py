"""The front desk: turns rows of a workload into requests for engines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import inf, isnan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.host import NO_HOST, HostTerms
from steelyard.engine import FINISHED, BlockNames, Engine, Limits, Request, extend
from steelyard.engine.request import DROPPED, HELD, KEPT
from steelyard.fleet.frontend import Frontend, Shown
from steelyard.workload import Workload
from steelyard.workload.columns import root_of
from steelyard.workload.rounds import RETENTIONS, RoundColumns

Ints = NDArray[np.int64]

_REST = {"kept": KEPT, "held": HELD, "dropped": DROPPED}


class Models(NamedTuple):
    """Which model each workload asks for, and which model each kind of engine serves. For fleets of several models."""

    by_label: Sequence[str]  # by label of the workload
    by_stage: Sequence[Sequence[str]]  # by stage and kind of engine


class Desk:
    """Makes requests when they are due. Records when each was submitted and which replica got it.

    ``arrival`` is when the client sent a request. ``taken`` is when the front end of its replica took it up.
    ``stages`` are the limits of each kind of engine: one stage, or prefill and decode. Any kind of a stage may serve
    the requests for its model. ``output`` is the output length of each request, cut at the model's longest context.
    """

    def __init__(
        self, workload: Workload, *stages: Sequence[Limits], host: HostTerms = NO_HOST, models: Models | None = None
    ) -> None:
        self.workload = workload
        self.host = host
        everybody = [limits for stage in stages for limits in stage]
        self.names = BlockNames(everybody[0].block_size)
        self.models = models
        self.refused: dict[int, str] = {}
        longest = np.zeros(len(workload), dtype=np.int64)
        for rows, serving in _by_model(workload, stages, models):
            longest[rows] = min(limits.max_model_len for stage in serving for limits in stage)
            self.refused |= _refusals(workload, rows, serving)
        self.output = np.minimum(workload.output, np.maximum(longest - workload.prompt, 1))
        self.arrival = np.where(workload.after < 0, workload.at, np.nan)
        self.taken = np.full(len(workload), np.nan)
        self.replica = np.full(len(workload), -1, dtype=np.int64)
        self.roots = np.flatnonzero(workload.after < 0)
        self.followers: dict[int, list[int]] = defaultdict(list)
        for child in np.flatnonzero(workload.after >= 0).tolist():
            self.followers[int(workload.after[child])].append(child)
        self.holding: dict[int, Request] = {}  # by row: ended requests that hold blocks for a follower
        self._joins: dict[int, dict[int, float]] = {}  # by row that follows several: pause after each
        self._ready: dict[int, list[float]] = {}  # by such a row: earliest arrivals, one per ended request
        self._round: list[tuple[int, int, int]] | None = None  # by row: phase, rest, opening
        if workload.rounds is not None:
            self._read_rounds(workload.rounds)
        self._shares = workload.content is not None and any(limits.enable_prefix_caching for limits in everybody)
        self._patient = not np.isfinite(workload.abort).any()

    def _read_rounds(self, rounds: RoundColumns) -> None:
        waits = (rounds.join_row.tolist(), rounds.join_after.tolist(), rounds.join_think.tolist())
        for child, parent, pause in zip(*waits, strict=True):
            self.followers[parent].append(child)
            self._joins.setdefault(child, {int(self.workload.after[child]): self.think(child)})[parent] = pause
        rest = [_REST[name] for name in RETENTIONS]
        columns = (rounds.phase.tolist(), rounds.kv.tolist(), rounds.opening.tolist())
        self._round = [(phase, rest[kv], opening) for phase, kv, opening in zip(*columns, strict=True)]

    @cached_property
    def session(self) -> Ints:
        """By row: the first row of its session, which identifies the session."""
        return root_of(self.workload.after)

    def model_of(self, i: int) -> str:
        """The model that row ``i`` asks for; empty in a fleet of one model."""
        return "" if self.models is None else self.models.by_label[self.workload.label[i]]

    def request(self, i: int, at: float) -> Request:
        """Row ``i`` as a request submitted at ``at``."""
        work = self.workload
        return self._make(i, at, int(work.prompt[i]), int(self.output[i]), int(work.priority[i]))

    def requests(self, rows: Ints) -> Iterator[tuple[Request, float]]:
        """Requests of one replica, and when its engine sees each. No row may be a follower or refused."""
        work = self.workload
        frontend = Frontend(self.host)
        columns = (rows, work.at[rows], work.prompt[rows], self.output[rows], work.priority[rows])
        for i, at, prompt, output, priority in zip(*(column.tolist() for column in columns), strict=True):
            self.taken[i], seen = frontend.take(at, prompt)
            yield self._make(i, at, prompt, output, priority), seen

    def _make(self, i: int, at: float, prompt: int, output: int, priority: int) -> Request:
        r = Request(i, at, prompt, output, priority)
        if self._shares:
            self._name_blocks(r, i)
        if self.workload.accept is not None:
            r.accept = self.workload.accept[i] or None
        if self.workload.given is not None:
            r.given = int(self.workload.given[i])
        if self._round is not None:
            r.phase, r.rest, r.opening = self._round[i]
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

    def take(self, r: Request, frontend: Frontend, now: float) -> float:
        """A replica's front end takes a request up. Returns the second at which the engine sees it.

        ``taken`` keeps the first time if the request starts over."""
        self.arrival[r.index] = r.arrival
        taken, seen = frontend.take(now, r.prompt)
        if isnan(self.taken[r.index]):
            self.taken[r.index] = taken
        return seen

    def ends(self, engine: Engine) -> Callable[[Request], float]:
        """A function: when the client learns that its request has ended. Call it in the order in which requests end."""
        shown = Shown(self.host, engine.log)
        return lambda r: shown.at(r.last) if r.status == FINISHED else engine.end_of(r)

    def abort_at(self, r: Request) -> float:
        """When a request's client gives up."""
        if self._patient:
            return inf
        submitted = r.arrival if self.workload.rounds is None else self.arrival[self.workload.rounds.first[r.index]]
        return float(submitted + self.workload.abort[r.index])

    def follow(self, i: int, now: float) -> list[tuple[float, int]]:
        """(arrival, row) of the rows that the end of row ``i`` releases. A row that follows several waits for all."""
        found = []
        for child in self.followers.get(i, ()):
            pauses = self._joins.get(child)
            if pauses is None:
                found.append((now + self.think(child), child))
                continue
            ready = self._ready.setdefault(child, [])
            ready.append(now + pauses[i])
            if len(ready) == len(pauses):
                found.append((max(self._ready.pop(child)), child))
        return found

    def think(self, i: int) -> float:
        """Seconds between the end of the request that row ``i`` follows and its submission."""
        return float(self.workload.think[i])

    def note_holding(self, r: Request) -> None:
        """A request has ended. If it holds its blocks, `held_for` returns it for its follower."""
        if r.rest == HELD:
            self.holding[r.index] = r

    def held_for(self, i: int) -> list[Request]:
        """Take the requests that hold blocks for row ``i``. The first of several followers gets them."""
        if not self.holding:
            return []
        before = self._joins.get(i) or (int(self.workload.after[i]),)
        return [self.holding.pop(each) for each in before if each in self.holding]


_Rows = NDArray[np.bool_]


def _by_model(
    workload: Workload, stages: Sequence[Sequence[Limits]], models: Models | None
) -> Iterator[tuple[_Rows, Sequence[Sequence[Limits]]]]:
    """For each model: its rows, and the limits of the engines that serve it, by stage."""
    if models is None:
        yield np.ones(len(workload), dtype=np.bool_), stages
        return
    requested = np.array(models.by_label, dtype=object)[workload.label]
    for model in dict.fromkeys(models.by_label):
        serving = [
            [limits for limits, name in zip(stage, names, strict=True) if name == model]
            for stage, names in zip(stages, models.by_stage, strict=True)
        ]
        yield requested == model, serving


def _refusals(workload: Workload, rows: _Rows, stages: Sequence[Sequence[Limits]]) -> dict[int, str]:
    """Requests that no engine of some stage can serve, and why."""
    found: dict[int, str] = {}
    for stage in stages:
        first, *others = (_refused(workload, rows, limits) for limits in stage)
        found |= {i: why for i, why in first.items() if all(i in other for other in others)}
    return found


def _refused(workload: Workload, rows: _Rows, limits: Limits) -> dict[int, str]:
    prompt, output = workload.prompt, workload.output
    most = np.minimum(prompt + output - 1 + limits.speculative_tokens + limits.lookahead, limits.max_model_len)
    tokens = -(-most // limits.block_size)
    need = limits.states + sum(np.minimum(tokens, limits.most_blocks(window)) for window in limits.windows)
    bad = (prompt + 1 > limits.max_model_len) | (need > limits.blocks)
    if not limits.enable_chunked_prefill:
        bad |= prompt > limits.max_num_batched_tokens
    reasons = {i: limits.refusal(int(prompt[i]), int(output[i])) for i in np.flatnonzero(bad & rows).tolist()}
    return {i: reason for i, reason in reasons.items() if reason is not None}
