"""A workload as columns: a dozen arrays, whatever the number of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from steelyard.records import Floats, Ints
from steelyard.workload.rounds import RoundColumns, merge_rounds, single_rounds

Content = tuple[tuple[int, int], ...]


@dataclass
class Workload:
    """Requests in order: roots by submission time, followers after the request they wait for.

    Shared parts of prompts are *streams* of tokens: the same stream means the same tokens, from its start.
    """

    at: Floats  # submission second of roots, NaN for followers
    prompt: Ints  # tokens
    output: Ints  # tokens
    after: Ints  # the request whose end a follower waits for; -1 for roots
    think: Floats  # seconds between that end and submission
    priority: Ints  # lower is served first
    abort: Floats  # the client aborts this many seconds after submission; inf: never
    stream: Ints  # the stream of the rest of the prompt and the output; -1: never shared
    content: list[Content] | None  # leading part of each prompt as (stream, tokens); None: nothing is shared
    accept: list[tuple[int, ...]] | None  # accepted draft tokens per verify step, cycled; (): not given
    label: Ints  # index into labels
    labels: list[str]
    streams: int  # stream ids in use are 0 .. streams - 1
    given: Ints | None = None  # prompt tokens known to be in the cache, -1 where unknown; None: all unknown
    rounds: RoundColumns | None = None  # of requests whose answer follows hidden rounds; None: there are none
    notes: list[str] = field(default_factory=list)  # for the user: how the workload was made

    def __len__(self) -> int:
        return len(self.prompt)

    def validate(self) -> None:
        """Raise ValueError unless all invariants of this class hold."""
        for promise, kept in self._promises().items():
            if not kept:
                raise ValueError(f"workload: {promise}")

    def _promises(self) -> dict[str, bool]:
        n = len(self)
        roots = self.after < 0
        columns = (
            self.at,
            self.output,
            self.after,
            self.think,
            self.priority,
            self.abort,
            self.stream,
            self.label,
        )
        lists = [each for each in (self.content, self.accept) if each is not None]
        covered = np.array([sum(k for _, k in each) for each in self.content or ()], dtype=np.int64)
        segments = [part for each in self.content or () for part in each]
        return {
            "columns differ in length": all(len(column) == n for column in (*columns, *lists)),
            "a root has no finite time of at least 0": bool(
                (self.at[roots] >= 0).all() and np.isfinite(self.at[roots]).all()
            ),
            "roots are not in order of time": bool((np.diff(self.at[roots]) >= 0).all()),
            "a follower has a time of its own": bool(np.isnan(self.at[~roots]).all()),
            "a follower comes before its parent": bool((self.after < np.arange(n)).all() and (self.after >= -1).all()),
            "a prompt or output is shorter than one token": bool((self.prompt >= 1).all() and (self.output >= 1).all()),
            "a pause is negative or endless": bool((self.think >= 0).all() and np.isfinite(self.think).all()),
            "a client gives up before asking": bool((self.abort > 0).all()),
            "content is longer than the prompt": not len(covered) or bool((covered <= self.prompt).all()),
            "a segment of content is empty or of no stream": all(
                tokens > 0 and 0 <= stream < self.streams for stream, tokens in segments
            ),
            "a stream is out of range": bool((self.stream >= -1).all() and (self.stream < self.streams).all()),
            "a label is out of range": bool((self.label >= 0).all() and (self.label < len(self.labels)).all()),
            **({} if self.rounds is None else self.rounds.promises(self.after)),
        }


def plain(at: Floats, prompt: Ints, output: Ints) -> Workload:
    """Independent requests that share nothing; the other columns at their neutral values."""
    n = len(prompt)
    return Workload(
        at=at,
        prompt=prompt,
        output=output,
        after=np.full(n, -1, dtype=np.int64),
        think=np.zeros(n),
        priority=np.zeros(n, dtype=np.int64),
        abort=np.full(n, np.inf),
        stream=np.full(n, -1, dtype=np.int64),
        content=None,
        accept=None,
        label=np.zeros(n, dtype=np.int64),
        labels=["workload"],
        streams=0,
    )


def root_of(after: Ints) -> Ints:
    """The root of each request's chain, by pointer doubling."""
    rows = np.arange(len(after), dtype=np.int64)
    up = np.where(after < 0, rows, after)
    while True:
        further = up[up]
        if np.array_equal(further, up):
            return up
        up = further


def in_order(work: Workload) -> Workload:
    """The same requests with roots sorted by time; a chain follows its root. Ties keep their order."""
    chained = bool((work.after >= 0).any())
    starts = work.at[root_of(work.after)] if chained else work.at
    if bool((np.diff(starts) >= 0).all()):
        return work
    return take(work, np.argsort(starts, kind="stable"))


def take(work: Workload, rows: Ints) -> Workload:
    """The given rows in the given order. A row's parent must be among them."""
    place = np.full(len(work) + 1, -1, dtype=np.int64)  # the last entry maps -1 to -1
    place[rows] = np.arange(len(rows))
    return replace(
        work,
        at=work.at[rows],
        prompt=work.prompt[rows],
        output=work.output[rows],
        after=place[work.after[rows]],
        think=work.think[rows],
        priority=work.priority[rows],
        abort=work.abort[rows],
        stream=work.stream[rows],
        content=None if work.content is None else [work.content[row] for row in rows],
        accept=None if work.accept is None else [work.accept[row] for row in rows],
        label=work.label[rows],
        given=None if work.given is None else work.given[rows],
        rounds=None if work.rounds is None else work.rounds.take(rows, place),
    )


def merge(works: Sequence[Workload]) -> Workload:
    """All requests of several workloads, interleaved by time; streams stay distinct, labels are kept."""
    if len(works) == 1:
        return works[0]
    rows = _offsets([len(work) for work in works])
    streams = _offsets([work.streams for work in works])
    labels = _offsets([len(work.labels) for work in works])
    joined = Workload(
        at=np.concatenate([work.at for work in works]),
        prompt=np.concatenate([work.prompt for work in works]),
        output=np.concatenate([work.output for work in works]),
        after=_shifted([work.after for work in works], rows),
        think=np.concatenate([work.think for work in works]),
        priority=np.concatenate([work.priority for work in works]),
        abort=np.concatenate([work.abort for work in works]),
        stream=_shifted([work.stream for work in works], streams),
        content=_joined_content(works, streams),
        accept=_joined_accept(works),
        label=_shifted([work.label for work in works], labels),
        labels=[name for work in works for name in work.labels],
        streams=streams[-1],
        given=_joined_given(works),
        rounds=_joined_rounds(works, rows),
        notes=[note for work in works for note in work.notes],
    )
    return in_order(joined)


def _offsets(sizes: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(sizes, dtype=np.int64).tolist()]


def _shifted(columns: Sequence[Ints], offsets: Sequence[int]) -> Ints:
    """References shifted by their workload's offset; -1 stays -1."""
    moved = [np.where(column < 0, -1, column + offset) for column, offset in zip(columns, offsets, strict=False)]
    return np.concatenate(moved)


def _joined_content(works: Sequence[Workload], offsets: Sequence[int]) -> list[Content] | None:
    if all(work.content is None for work in works):
        return None
    joined: list[Content] = []
    for work, offset in zip(works, offsets, strict=False):
        moved: dict[Content, Content] = {}  # equal contents stay one object
        for each in work.content if work.content is not None else [()] * len(work):
            if each not in moved:
                moved[each] = tuple((stream + offset, tokens) for stream, tokens in each)
            joined.append(moved[each])
    return joined


def _joined_accept(works: Sequence[Workload]) -> list[tuple[int, ...]] | None:
    if all(work.accept is None for work in works):
        return None
    return [each for work in works for each in (work.accept if work.accept is not None else [()] * len(work))]


def _joined_given(works: Sequence[Workload]) -> Ints | None:
    if all(work.given is None for work in works):
        return None
    return np.concatenate([np.full(len(w), -1, dtype=np.int64) if w.given is None else w.given for w in works])


def _joined_rounds(works: Sequence[Workload], offsets: Sequence[int]) -> RoundColumns | None:
    if all(work.rounds is None for work in works):
        return None
    parts = [single_rounds(len(work)) if work.rounds is None else work.rounds for work in works]
    return merge_rounds(parts, offsets[:-1])
