"""One request inside one engine: what was asked for, and its progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.engine.content import NO_NAMES, Names

if TYPE_CHECKING:
    from steelyard.engine.kv import Block
    from steelyard.engine.kv_groups import Pages
    from steelyard.engine.runs import BlockRun

# FINISHED and later: it has ended here. LOST: its engine crashed, and another attempt continues it.
WAITING, RUNNING, PREEMPTED, LOADING, FINISHED, ABORTED, REJECTED, LOST = range(8)

KEPT, DROPPED, HELD = range(3)  # what happens to the blocks of an ended request that later requests may hit
ANSWER, PLANNING = range(2)  # phases

NO_BLOCKS: list[Block] = []
NO_PARTS: list[tuple[BlockRun, int]] = []


class Request:
    """Counters mirror vLLM's own, so that each scheduling rule reads like vLLM's.

    ``computed`` tokens have been scheduled. ``outputs`` have been delivered. ``owed`` are output tokens that a step in
    flight will deliver (asynchronous scheduling only). ``stale`` tokens were in flight when the request was preempted
    and must arrive before it resumes.
    """

    __slots__ = (
        "accept",
        "arrival",
        "blocks",
        "breaks",
        "cached",
        "chain",
        "chunking",
        "computed",
        "drafts",
        "eligible",
        "first",
        "furthest",
        "given",
        "grouped",
        "held",
        "hit",
        "in_flight",
        "index",
        "keep",
        "keys",
        "last",
        "offset",
        "opening",
        "order",
        "output",
        "outputs",
        "owed",
        "pages",
        "parts",
        "phase",
        "preemptions",
        "priority",
        "prompt",
        "remote",
        "rest",
        "scheduled",
        "seen",
        "stale",
        "status",
        "stride",
        "verified",
    )

    def __init__(
        self,
        index: int,
        arrival: float,
        prompt: int,
        output: int,
        priority: int = 0,
        keys: Names = NO_NAMES,
        chain: tuple[tuple[int, int], ...] | None = None,
        accept: tuple[int, ...] | None = None,
        given: int = -1,
        remote: int = 0,
        keep: bool = False,
    ) -> None:
        self.index = index
        self.arrival = arrival
        self.prompt = prompt
        self.output = output
        self.priority = priority
        self.keys = keys  # names of the leading full blocks that other requests may share
        self.chain = chain  # streams that name its later blocks, which follow-up requests may hit once it has ended
        self.accept = accept  # accepted drafts per verify step, cycled
        self.given = given  # prompt tokens known to be in the cache; -1: look them up
        self.remote = remote  # prompt tokens that another engine has computed; they are fetched from there
        self.keep = keep  # its blocks stay after its end until another engine has fetched them
        self.phase = ANSWER  # PLANNING: a hidden round that an answer waits for
        self.rest = KEPT  # in the prefix cache; DROPPED: evicted at once; HELD: reserved for its next round
        self.opening = 0  # leading tokens that stay in the cache even when the rest is dropped

        self.seen = 0  # steps whose tokens its client already has from earlier attempts

        self.status = WAITING
        self.computed = 0
        self.outputs = 0
        self.owed = 0
        self.in_flight = 0
        self.stale = 0
        self.drafts = 0
        self.verified = 0  # verify steps so far
        self.chunking = False  # the last scheduled step left part of the prompt to do

        self.blocks = 0
        self.held = NO_BLOCKS  # the named ones among them, always the leading positions
        self.parts = NO_PARTS  # the same in a cache of runs: each run, and the name up to which this request holds it
        self.pages: Pages | None = None  # the same in a cache with sliding windows
        self.cached = 0  # leading blocks whose content is complete and hashed

        self.order = 0  # admission number: the running queue's order
        self.grouped = False
        self.offset = 0  # while grouped: step index minus computed tokens
        self.stride = 1  # steps from one of its tokens to the next: the pipeline stages of its engine
        self.eligible = 0  # the first step in which its next token may be scheduled

        self.hit = 0  # prompt tokens found in the cache at first admission
        self.preemptions = 0
        self.furthest = 0  # most tokens computed before any preemption
        self.scheduled = -1.0  # second of first admission
        self.first = -1  # step of the first output token
        self.last = -1  # step of the newest output token
        self.breaks: list[tuple[int, int]] | None = None  # (last, next) where it got no token in the steps between

    def emit(self, step: int) -> None:
        """Record that a step delivers output tokens."""
        if self.last == step:
            return
        if self.first < 0:
            self.first = step
        elif self.last != step - self.stride:
            if self.breaks is None:
                self.breaks = []
            self.breaks.append((self.last, step))
        self.last = step

    def undo_emit(self, step: int) -> None:
        """Remove a step's tokens, which will never be delivered."""
        if self.last != step:
            return
        if self.first == step:
            self.first = self.last = -1
        elif self.breaks and self.breaks[-1][1] == step:
            self.last = self.breaks.pop()[0]
        else:
            self.last -= self.stride

    @property
    def deliveries(self) -> int:
        """Steps that delivered tokens to its client, in this attempt and earlier ones."""
        if self.first < 0:
            return self.seen
        skipped = sum(after - before - self.stride for before, after in self.breaks or ())
        return max(self.seen, (self.last - self.first - skipped) // self.stride + 1)

    def first_news(self) -> int:
        """The step of the first token that no earlier attempt delivered; -1 if there is none."""
        if self.first < 0:
            return -1
        step = self.first + self.seen * self.stride
        for before, after in self.breaks or ():
            if step > before:
                step += after - before - self.stride
        return step if step <= self.last else -1
