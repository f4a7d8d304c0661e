"""The decoding requests of an engine as sums, where some layers have a sliding window.

A member frees blocks of a window as regularly as it needs new ones: one every ``block_size`` steps, in those congruent
to its offset plus the window. So freed blocks are counted like needed ones, with two exceptions: a member shorter than
the window frees nothing before a known step, and a named block is freed by itself, as an event.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from steelyard.engine.group import DecodeGroup
from steelyard.engine.kv_groups import KVGroups
from steelyard.engine.request import Request


class WindowSpan:
    """The members as KV-cache groups with one window see them."""

    def __init__(self, window: int, groups: list[int], block_size: int, lag: int) -> None:
        self.window = window
        self.groups = groups
        self.block_size = block_size
        self.lag = lag + window - 1  # steps after which a token is no longer attended to
        self.phase: list[dict[Request, int]] = [{} for _ in range(block_size)]  # who frees in which steps, and since
        self.events: list[tuple[int, int, int, Request]] = []  # heap: (step, order, position) of a member's next event
        self.left: deque[tuple[int, int, int, int]] = deque()  # (left, since, order, phase) of recent members

    def expect(self, r: Request, position: int) -> None:
        """A member's next event is the block at a position."""
        heappush(self.events, (r.offset + self.lag + (position + 1) * self.block_size, r.order, position, r))

    def next_event(self, step: int) -> int | None:
        """The next step with an event; members whose regular freeing starts by ``step`` are moved to ``phase``."""
        while self.events:
            due, _, position, r = self.events[0]
            if r.grouped and (due > step or position < len(r.keys)):
                return due
            heappop(self.events)
            if r.grouped:
                self.phase[due % self.block_size][r] = due
        return None

    def freed_with(self, position: int) -> int:
        """The position after the last block that is freed together with this one."""
        return position + 1

    def remove(self, r: Request, step: int) -> None:
        """Remove a member before a step."""
        own = (r.offset + self.lag) % self.block_size
        since = self.phase[own].pop(r, None)
        if since is not None:
            self.left.append((step, since, r.order, own))
        while self.left and self.left[0][0] <= step - self.block_size:
            self.left.popleft()

    def falling(self, step: int) -> list[tuple[int, int, Request | None]]:
        """Nameless blocks freed in one of the last steps: order, KV-cache group, and request if still a member."""
        own = step % self.block_size
        orders: list[tuple[int, Request | None]]
        orders = [(r.order, r) for r, since in self.phase[own].items() if since <= step]
        orders += [(order, None) for left, since, order, at in self.left if at == own and since <= step < left]
        return [(order, g, r) for order, r in orders for g in self.groups]


class ChunkSpan(WindowSpan):
    """The same where tokens attend in chunks: all blocks of a chunk are freed, as one event, when the next begins."""

    def expect(self, r: Request, position: int) -> None:
        """A member's next event is the end of the chunk that has the block at a position."""
        end = self.freed_with(position) * self.block_size
        heappush(self.events, (r.offset + self.lag - self.window + 1 + end, r.order, position, r))

    def next_event(self, step: int) -> int | None:
        """The next step with an event."""
        while self.events and not self.events[0][3].grouped:
            heappop(self.events)
        return self.events[0][0] if self.events else None

    def freed_with(self, position: int) -> int:
        """The first position of the next chunk."""
        return (position * self.block_size // self.window + 1) * self.window // self.block_size

    def remove(self, r: Request, step: int) -> None:
        """Events of those that have left are skipped."""


class WindowGroup(DecodeGroup):
    """A group whose members have sliding windows. The next waiting request needs ``wanted`` free blocks."""

    __slots__ = ("_lag", "_marks", "kv", "spans", "wanted")

    slides = True

    def __init__(self, kv: KVGroups, asynchronous: bool) -> None:
        super().__init__(kv.block_size)
        self.kv = kv
        self.width = len(kv.windows)
        self.wanted: int | None = None
        self._lag = int(asynchronous)  # steps in flight, whose tokens still attend to earlier blocks
        span = ChunkSpan if kv.chunked else WindowSpan
        self.spans = [span(window, groups, kv.block_size, self._lag) for window, groups in kv.sliding]
        self._marks: dict[int, int] = {}  # by recent step: complete blocks that had entered the queue before

    def admits(self, r: Request, tokens: int) -> bool:
        """Whether a request with ``tokens`` in a step has its windows where a member has them."""
        return tokens == 1 and r.pages is not None and r.pages.slid == r.computed - 1 - self._lag

    def join(self, r: Request, step: int) -> None:
        """Add a request whose tokens are all computed; ``step`` is the next one to be scheduled."""
        super().join(r, step)
        assert r.pages is not None
        for span in self.spans:
            span.expect(r, self.kv.gone_before(span.window, r.pages.slid))

    def _remove(self, r: Request, step: int) -> None:
        super()._remove(r, step)
        assert r.pages is not None
        r.pages.slid = r.computed - 1 - self._lag
        for span in self.spans:
            span.remove(r, step)

    def dissolve(self, step: int) -> list[Request]:
        """Remove and return all members; each knows where in the queue its newest freed blocks are."""
        for earlier in range(step - self.block_size, step):
            mark = self._marks.get(earlier)
            if mark is not None:
                self._tell(earlier, mark)
        members = super().dissolve(step)
        self._marks.clear()
        for span in self.spans:
            span.events.clear()
            span.left.clear()
        return members

    def _tell(self, step: int, mark: int) -> None:
        falling = [fall for span in self.spans for fall in span.falling(step)]
        for place, (_, g, r) in enumerate(sorted(falling, key=lambda fall: fall[:2]), 1):
            if r is not None and r.pages is not None:
                r.pages.fell[g] = mark + place

    # -- one step -----------------------------------------------------------------------------------------------

    def begin(self, step: int) -> None:
        """A step was scheduled for all members; blocks freed in it wait for `settle`."""
        self.kv.moved = []
        for span in self.spans:
            while span.next_event(step) == step:
                _, _, position, r = heappop(span.events)
                after = span.freed_with(position)
                self.kv.complete(r, after * self.block_size)
                for g in span.groups:
                    self.kv.drop(r, g, position, after)
                span.expect(r, after)

    def settle(self, step: int) -> None:
        """Put the blocks freed in a step into the queue, in the order of scheduling one by one."""
        kv = self.kv
        self.wanted = None
        if kv.moved is None:
            return  # requests were scheduled one by one
        if not kv.moved:
            kv.moved = None
            self.fall(step, 1)
            return
        for span in self.spans:
            for r in span.phase[step % self.block_size]:
                kv.moved.extend((r.order, g, r, 0, 1, []) for g in span.groups)
        kv.settle()

    # -- many steps ---------------------------------------------------------------------------------------------

    def freed(self, step: int, count: int) -> int:
        """Blocks freed in ``count`` steps without an event."""
        size = self.block_size
        cycles, rest = divmod(count, size)
        falls = [self._falls(step + i) for i in range(size if cycles else rest)]
        return cycles * sum(falls) + sum(falls[:rest])

    def _falls(self, step: int) -> int:
        own = step % self.block_size
        return sum(len(span.phase[own]) * len(span.groups) for span in self.spans)

    def fall(self, step: int, count: int) -> None:
        """Free the blocks of ``count`` steps without an event."""
        size, marks = self.block_size, self._marks
        older = max(0, count - size)
        if older:
            marks.clear()
            self.kv.fall(self.freed(step, older))
        for each in range(step + older, step + count):
            marks[each] = self.kv.fall(self._falls(each))
            marks.pop(each - size, None)

    def quiet(self, step: int, count: int) -> int:
        """How many of ``count`` steps pass without an event and without room for the next waiting request."""
        for span in self.spans:
            event = span.next_event(step)
            if event is not None:
                count = min(count, event - step)
        if self.wanted is not None:
            free = self.kv.free
            for i in range(min(count, self.block_size)):  # later cycles never have more free blocks than the first
                free += self._falls(step + i) - self.due(step + i)
                if free >= self.wanted:
                    return i
        return count
