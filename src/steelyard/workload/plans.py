"""Plans as rows: hidden rounds with tools between them, branches that join, and the answer at the end.

A request has *segments*: its stages, then its answer. A segment has *threads*, one per branch. A thread has rows, one
per round. Rows are ordered by segment, then by thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from steelyard.errors import UserError
from steelyard.records import Floats, Ints
from steelyard.scenario import PrefixSpec, StageSpec
from steelyard.scenario.numbers import MOST_IN_A_STAGE, MOST_ROUNDS
from steelyard.workload.columns import Content, Workload, plain
from steelyard.workload.draw import Dice, draw_seconds, draw_tokens
from steelyard.workload.rounds import HIDDEN, KEPT, RETENTIONS, VISIBLE, RoundColumns

Plan = tuple[StageSpec, ...]


@dataclass
class PlanLayout:
    """The rows of all requests, each of ``segments`` segments."""

    segments: int  # of one request
    branches: Ints  # by segment
    rounds: Ints  # by thread

    @cached_property
    def head(self) -> Ints:
        """The first thread of each segment."""
        return np.asarray(np.cumsum(self.branches) - self.branches)

    @cached_property
    def segment(self) -> Ints:
        """Of each thread."""
        return np.repeat(np.arange(len(self.branches)), self.branches)

    @cached_property
    def thread(self) -> Ints:
        """Of each row."""
        return np.repeat(np.arange(len(self.rounds)), self.rounds)

    @cached_property
    def start(self) -> Ints:
        """The first row of each thread."""
        return np.asarray(np.cumsum(self.rounds) - self.rounds)

    @cached_property
    def last(self) -> Ints:
        """The last row of each thread."""
        return self.start + self.rounds - 1

    @cached_property
    def stage(self) -> Ints:
        """Of each row."""
        return self.segment[self.thread] % self.segments

    @cached_property
    def first(self) -> Ints:
        """The first row of each row's request."""
        request = self.segment[self.thread] // self.segments
        return self.start[self.head[request * self.segments]]

    def joins(self) -> tuple[Ints, Ints]:
        """Rows that start a thread, and the further rows they wait for: the last of all earlier branches but the
        first."""
        before = self.segment - 1
        more = np.where(self.segment % self.segments > 0, self.branches[before] - 1, 0)
        which = np.arange(more.sum()) - np.repeat(np.cumsum(more) - more, more)
        branch = np.repeat(self.head[before] + 1, more) + which
        return np.repeat(self.start, more), self.last[branch]


@dataclass
class Amounts:
    """What each row generates, and the seconds and tokens of its tool."""

    output: Ints
    result: Ints
    tool: Floats


def lay_out(plan: Plan, requests: int, dice: Dice, base_dir: Path) -> PlanLayout:
    """Draw the branches and rounds of each request."""
    segments = len(plan) + 1
    branches = np.ones((requests, segments), dtype=np.int64)
    for k, stage in enumerate(plan):
        branches[:, k] = draw_tokens(stage.branches, requests, dice.of("branches", k), base_dir)
    _check_rounds(branches, requests, "branches")
    segment = np.repeat(np.arange(requests * segments), branches.ravel())
    rounds = np.ones(len(segment), dtype=np.int64)
    for k, stage in enumerate(plan):
        threads = np.flatnonzero(segment % segments == k)
        rounds[threads] = draw_tokens(stage.rounds, len(threads), dice.of("rounds", k), base_dir)
    _check_rounds(rounds, requests, "rounds")
    return PlanLayout(segments, branches.ravel(), rounds)


def _check_rounds(found: Ints, requests: int, key: str) -> None:
    """Refuse more rounds than can be simulated, before they are laid out."""
    most, total = int(found.max(initial=0)), float(found.sum())
    if most > MOST_IN_A_STAGE:
        raise UserError(f"workload.plan.{key}: {most:,} in a stage of one request; at most {MOST_IN_A_STAGE:,}")
    if total > MOST_ROUNDS:
        raise UserError(
            f"workload.plan.{key}: {total:,.0f} rounds for {requests:,} requests; at most {MOST_ROUNDS:,} can be "
            "simulated: give fewer requests, branches or rounds"
        )


def draw_amounts(plan: Plan, layout: PlanLayout, answers: Ints, dice: Dice, base_dir: Path) -> Amounts:
    """Draw what rows generate and what tools return; an answer calls no tool."""
    n = len(layout.thread)
    output, result, tool = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), np.zeros(n)
    for k, stage in enumerate(plan):
        rows = np.flatnonzero(layout.stage == k)
        output[rows] = draw_tokens(stage.output, len(rows), dice.of("round output", k), base_dir)
        result[rows] = draw_tokens(stage.result, len(rows), dice.of("result", k), base_dir)
        tool[rows] = draw_seconds(stage.tool, len(rows), dice.of("tool", k))
    output[layout.stage == len(plan)] = answers
    return Amounts(output, result, tool)


@dataclass
class Conversations:
    """The requests of a workload by session: the users' tokens, and the prefix of each session."""

    turns: Ints  # requests of each session
    prompt: Ints  # new tokens of each request
    think: Floats  # seconds before each request but the first of a session
    opening: PrefixSpec | None  # prefix that sessions share
    group: Ints  # which prefix each session has

    @property
    def begins(self) -> Ints:
        """The first request of each session."""
        return np.asarray(np.cumsum(self.turns) - self.turns)

    @property
    def opening_tokens(self) -> int:
        """Length of the shared prefix."""
        return 0 if self.opening is None else self.opening.tokens

    def openings(self) -> list[Content]:
        """The prefix of each group; these are the first streams."""
        return [()] if self.opening is None else [((i, self.opening.tokens),) for i in range(self.opening.groups)]


def planned(layout: PlanLayout, each: Amounts, users: Conversations, plan: Plan) -> Workload:
    """All rounds as rows; roots have no time yet."""
    segment = layout.segment[layout.thread]
    main, own = _contexts(layout, each, users)
    hidden = layout.stage < layout.segments - 1
    retention = np.array([*(RETENTIONS.index(stage.kv) for stage in plan), KEPT])
    rows, behind = layout.joins()
    work = replace(
        plain(np.full(len(segment), np.nan), users.opening_tokens + main[segment] + own, each.output),
        rounds=RoundColumns(
            first=layout.first,
            phase=np.where(hidden, HIDDEN, VISIBLE),
            kv=retention[layout.stage],
            opening=np.full(len(segment), users.opening_tokens),
            join_row=rows,
            join_after=behind,
            join_think=each.tool[behind],
        ),
    )
    _share(work, layout, users, main, own)
    _chain(work, layout, each, users)
    return work


def _contexts(layout: PlanLayout, each: Amounts, users: Conversations) -> tuple[Ints, Ints]:
    """Tokens of the session that each segment's threads start with, and further tokens of each row's own thread.

    A single thread continues the session's tokens. Of several threads, only their last results enter the session.
    """
    start, last, head = layout.start, layout.last, layout.head
    left = each.output + each.result  # what a round adds to the next one's context
    before = np.cumsum(left) - left
    own = before - before[start][layout.thread]
    reads = np.empty_like(layout.branches)
    reads[1:] = np.add.reduceat(each.result[last], head)[:-1]
    reads[:: layout.segments] = users.prompt
    alone = (own + each.output)[last[head]]
    gains = reads + np.where(layout.branches == 1, alone, 0)
    total = np.cumsum(gains) - gains
    session = np.repeat(total[users.begins * layout.segments], users.turns * layout.segments)
    return total - session + reads, own


def _share(work: Workload, layout: PlanLayout, users: Conversations, main: Ints, own: Ints) -> None:
    """Set the streams of prompts: the shared prefix, the session's, and those of threads that branched off."""
    openings = users.openings()
    shared = 0 if users.opening is None else len(openings)
    segment = layout.segment[layout.thread]
    session = np.repeat(np.arange(len(users.turns)), users.turns)[segment // layout.segments]
    branched = layout.branches[segment] > 1
    told = np.where(branched, main[segment], main[segment] + own)
    columns = zip(users.group[session].tolist(), (shared + session).tolist(), told.tolist(), strict=True)
    content: list[Content] = [(*openings[group], (stream, tokens)) for group, stream, tokens in columns]
    apart = np.flatnonzero((layout.branches[layout.segment] > 1) & (layout.rounds > 1))
    threads = np.full(len(layout.rounds), -1, dtype=np.int64)
    threads[apart] = shared + len(users.turns) + np.arange(len(apart))
    thread = threads[layout.thread]
    later = np.flatnonzero(branched & (own > 0))
    for row, stream, tokens in zip(later.tolist(), thread[later].tolist(), own[later].tolist(), strict=True):
        content[row] = (*content[row], (stream, tokens))
    work.content = content
    work.stream = np.where(branched, thread, shared + session)
    work.streams = shared + len(users.turns) + len(apart)


def _chain(work: Workload, layout: PlanLayout, each: Amounts, users: Conversations) -> None:
    """Set what each row waits for: rounds and segments for the previous one, requests for the answer."""
    start, segment = layout.start, layout.segment
    work.after = np.arange(-1, len(work) - 1)
    begins = np.flatnonzero(segment % layout.segments)  # threads of later segments
    work.after[start[begins]] = layout.last[layout.head[segment[begins] - 1]]
    work.think = each.tool[work.after]
    requests = np.flatnonzero(layout.first == np.arange(len(work)))
    work.think[requests] = users.think
    roots = requests[users.begins]
    work.after[roots], work.think[roots] = -1, 0.0
