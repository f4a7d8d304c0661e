"""The decoding requests of an engine as sums, so that a step costs the same however many there are."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from steelyard.engine.request import Request

_MOST_LEFT = 64  # stale entries of the length heap below which no clean-up pays; chosen


class DecodeGroup:
    """Requests that get one token every step until they end, with nothing else to schedule.

    A member's computed tokens at step ``s`` are ``s - offset``, so nothing per member changes from step to step:
    ``tokens`` (their sum) grows by ``size`` a step, and a member needs a new block in the steps congruent to its
    offset modulo the block size. ``phase`` counts these blocks, over all KV-cache groups. The longest member has the
    smallest offset.
    """

    __slots__ = ("_by_length", "block_size", "ends", "newest", "phase", "size", "tokens", "width")

    slides = False  # whether members have blocks in sliding windows

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.width = 1  # blocks for the same tokens: one per KV-cache group
        self.size = 0
        self.tokens = 0  # computed tokens of all members before the next step
        self.phase = [0] * block_size
        self.ends: list[tuple[int, int, Request]] = []  # heap of (last step, admission order, member)
        self.newest = -1  # highest admission order since the group was last empty
        self._by_length: list[tuple[int, int, Request]] = []  # heap of (offset, order, member), with stale entries

    def join(self, r: Request, step: int) -> None:
        """Add a request whose tokens are all computed; ``step`` is the next one to be scheduled."""
        r.grouped = True
        r.offset = offset = step - r.computed
        self.size += 1
        self.tokens += r.computed
        self.phase[offset % self.block_size] += self.width
        if r.order > self.newest:
            self.newest = r.order
        heappush(self.ends, (step - 1 + r.prompt + r.output - 1 - r.computed, r.order, r))
        if len(self._by_length) > 2 * self.size + _MOST_LEFT:
            self._by_length = [(member.offset, member.order, member) for _, _, member in self.ends]
            heapify(self._by_length)
        else:
            heappush(self._by_length, (offset, r.order, r))

    def longest(self, step: int) -> int:
        """Computed tokens of the longest member before ``step``; there must be one."""
        heap = self._by_length
        while True:
            offset, _, r = heap[0]
            if r.grouped and r.offset == offset:
                return step - offset
            heappop(heap)

    def leave_ended(self, step: int) -> list[Request]:
        """Remove and return members whose last step is before ``step``, in running order, with counters updated."""
        ended: list[Request] = []
        ends = self.ends
        while ends and ends[0][0] < step:
            r = heappop(ends)[2]
            self._remove(r, step)
            ended.append(r)
        if not self.size:
            self.newest = -1
        return ended

    def dissolve(self, step: int) -> list[Request]:
        """Remove and return all members, to be scheduled one by one."""
        members = [r for _, _, r in self.ends]
        for r in members:
            self._remove(r, step)
        self.ends.clear()
        self._by_length.clear()
        self.newest = -1
        return members

    def _remove(self, r: Request, step: int) -> None:
        r.grouped = False
        r.computed = computed = step - r.offset
        r.blocks = -(-computed // self.block_size)
        r.last = step - 1
        self.size -= 1
        self.tokens -= computed
        self.phase[r.offset % self.block_size] -= self.width

    def due(self, step: int) -> int:
        """Blocks that members need in a step."""
        return self.phase[step % self.block_size]

    def freed(self, step: int, count: int) -> int:
        """Blocks that ``count`` steps free."""
        return 0

    def fall(self, step: int, count: int) -> None:
        """Free the blocks that ``count`` steps without scheduling have freed."""

    def quiet(self, step: int, count: int) -> int:
        """How many of ``count`` steps need no scheduling because of blocks they free."""
        return count

    def lacks(self, free: int, step: int, count: int) -> bool:
        """Whether ``count`` steps from ``step`` on need more than ``free`` blocks; mostly a bound suffices."""
        most = self.size * self.width * (count // self.block_size + 1)
        return most > free and self.blocks_needed(step, count) > free

    def blocks_needed(self, step: int, count: int) -> int:
        """New blocks that ``count`` steps from ``step`` on need."""
        size = self.block_size
        cycles, rest = divmod(count, size)
        need = cycles * self.size * self.width
        if rest:
            start = step % size
            end = start + rest
            need += sum(self.phase[start:end])
            if end > size:
                need += sum(self.phase[: end - size])
        return need

    def steps_that_fit(self, step: int, free: int, count: int) -> int:
        """The largest number of steps, up to ``count``, that need at most ``free`` new blocks."""
        low, high = 0, count
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_needed(step, middle) <= free:
                low = middle
            else:
                high = middle - 1
        return low
