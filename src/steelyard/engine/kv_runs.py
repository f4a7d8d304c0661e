"""The same cache as `KVCache`, kept as runs of blocks, so that a conversation costs the same however long it is.

Blocks with consecutive names that are completed, used and evicted one after the other form one *run*. A request frees
its blocks tails first and hits them heads first, so a run in the free queue only loses its end to eviction and its
beginning to a hit. Neither needs single blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.engine.content import POSITION_BITS, Names
from steelyard.engine.runs import BlockRun, whole
from steelyard.engine.sharing import SharedBlocks

if TYPE_CHECKING:
    from steelyard.engine.request import Request


class RunCache:
    """Free blocks in eviction order, and the named runs that a prefix can hit."""

    def __init__(self, blocks: int, block_size: int, caching: bool, watermark: float = 0.0) -> None:
        self.total = blocks
        self.block_size = block_size
        self.caching = caching
        self.watermark = int(watermark * (blocks + 1))
        self.free = blocks
        self.sharing = SharedBlocks()
        self._named_free = 0
        self._queue = BlockRun(0, 0)  # sentinel; used only while a named block is free
        self._queue.stand_alone()
        self._families: dict[int, list[BlockRun]] = {}  # runs by family, in the order in which they got their names

    # -- prefix hits --------------------------------------------------------------------------------------------

    def match(self, r: Request) -> int:
        """Blocks of the longest cached prefix of a waiting request; its last token is always recomputed."""
        most = (r.prompt + r.outputs - 1) // self.block_size
        found = 0
        for names in r.keys.ranges:
            family = self._families.get(names.start >> POSITION_BITS)
            if family is None:
                break
            begin = at = names.start
            end = begin + most - found
            if end > names.stop:
                end = names.stop
            while at < end:
                for run in family:
                    if run.first <= at < run.end:
                        at = run.end
                        break
                else:
                    return found + at - begin
            found += end - begin
            if found == most:
                break
        return found

    def _oldest(self, r: Request, found: int) -> list[tuple[BlockRun, int, int]]:
        """For each of a request's first names the block that got it first, as (run, first, end)."""
        parts: list[tuple[BlockRun, int, int]] = []
        for names in r.keys.ranges:
            if not found:
                break
            at = names.start
            end = at + found if at + found < names.stop else names.stop
            found -= end - at
            family = self._families[at >> POSITION_BITS]
            while at < end:
                until = end
                for run in family:
                    if run.first > at:
                        until = min(until, run.first)
                    elif at < run.end:
                        until = min(until, run.end)
                        parts.append((run, at, until))
                        break
                at = until
        return parts

    # -- allocation ---------------------------------------------------------------------------------------------

    def admit(self, r: Request, found: int, tokens: int, whole: int, watermark: bool) -> bool:
        """Give a waiting request its cached blocks and room for ``tokens``, if ``whole`` tokens would fit as well."""
        size = self.block_size
        spare = self.free - (self.watermark if watermark else 0)
        need = -(-tokens // size) - found
        if -(-whole // size) - found > spare or need > spare:
            return False
        held: list[tuple[BlockRun, int]] = []
        if found:
            parts = self._oldest(r, found)
            for run, first, end in parts:
                if not run.users:
                    spare -= end - first
            if -(-whole // size) - found > spare or need > spare:
                return False
            held = [(self._use(run, first, end), end) for run, first, end in reversed(parts)]
            held.reverse()
        r.parts = held
        r.blocks = r.cached = found
        if need > 0:
            self.take(need)
            r.blocks += need
        return True

    def grow(self, r: Request, tokens: int) -> bool:
        """Give a running request room for ``tokens`` in all. False if there are not enough free blocks."""
        need = -(-tokens // self.block_size) - r.blocks
        if need > 0:
            if need > self.free:
                return False
            self.take(need)
            r.blocks += need
        return True

    def take(self, count: int) -> None:
        """Allocate blocks from the head of the free queue, evicting the named ones among them."""
        self.free -= count
        if not self._named_free:
            return
        while count:
            run = self._queue.after
            size = run.end - run.first
            taken = size if size < count else count
            count -= taken
            run.end -= taken
            if taken == size:
                run.unlink()
            if run.family is not None:
                if taken == size:
                    self._forget(run)
                self._named_free -= taken
                if not self._named_free:
                    self._queue.stand_alone()
                    return

    def _use(self, run: BlockRun, first: int, end: int) -> BlockRun:
        """Add a user to a part of a run; the rest of the run stays where it is."""
        if run.users:
            if end < run.end:
                run.split(end)
            if first > run.first:
                run = run.split(first)
            run.users += 1
            self.sharing.joined(run.users, run.end - run.first)
            return run
        self.free -= end - first
        self._named_free -= end - first
        if end - first == run.end - run.first:
            run.unlink()
            run.users = 1
        else:
            run = run.cut(first, end)
        if not self._named_free:
            self._queue.stand_alone()
        return run

    # -- naming and freeing -------------------------------------------------------------------------------------

    def complete(self, r: Request, tokens: int) -> None:
        """The request's first ``tokens`` tokens are (being) computed: its full blocks can be hit from now on."""
        if not self.caching:
            return
        full = tokens // self.block_size
        cached = r.cached
        if full > cached:
            if cached < r.keys.length:
                self._name(r, cached, full)
            r.cached = full

    def keep(self, r: Request, names: Names) -> None:
        """Name a request's nameless complete blocks, so that later requests can hit them."""
        known, r.keys = r.keys.length, names
        self._name(r, known, r.cached)

    def _name(self, r: Request, first: int, last: int) -> None:
        """Name a request's blocks at these positions, as far as it has names for them."""
        for names in r.keys.ranges:
            if last <= 0:
                return
            start = names.start
            size = names.stop - start
            if first < size:
                begin = start + first if first > 0 else start
                self._add(r.parts, begin, start + (last if last < size else size))
            first -= size
            last -= size

    def _add(self, parts: list[tuple[BlockRun, int]], first: int, end: int) -> None:
        family = self._families.setdefault(first >> POSITION_BITS, [])
        if family and parts:
            run = parts[-1][0]
            if run.end == first and run is family[-1] and run.users == 1:
                run.end = end
                parts[-1] = run, end
                return
        run = BlockRun(first, end, family, users=1)
        family.append(run)
        parts.append((run, end))

    def forget(self, r: Request, tokens: int) -> None:
        """Remove the names of a request's blocks from the given token on, unless other requests use them."""
        position, first = 0, tokens // self.block_size
        kept: list[tuple[BlockRun, int]] = []
        for run in whole(r.parts):
            size = run.end - run.first
            if run.users == 1 and position + size > first:
                if position < first:
                    kept.append((run, run.first + first - position))
                    run = run.split(run.first + first - position)
                self._forget(run)
            else:
                kept.append((run, run.end))
            position += size
        r.parts = kept
        r.cached = min(r.cached, r.keys.length)

    def release(self, r: Request) -> None:
        """Free all blocks: incomplete ones are reused first, complete ones last, tails before heads."""
        complete = max(0, r.cached - r.keys.length) if self.caching else 0
        first = r.blocks - complete
        returned: list[BlockRun] = []
        for run in reversed(whole(r.parts)):
            size = run.end - run.first
            first -= size
            run.users -= 1
            if run.users:
                self.sharing.left(run.users, size)
            else:
                run.rest = None
                returned.append(run)
        if returned or self._named_free:
            self._give_back(first, complete, returned)
        self.free += first + complete
        r.parts = []
        r.blocks = r.cached = 0

    def _give_back(self, first: int, last: int, named: list[BlockRun]) -> None:
        queue = self._queue
        if not self._named_free and self.free:
            BlockRun(0, self.free).link(queue)
        if first:
            if queue.after.family is None and queue.after is not queue:
                queue.after.end += first
            else:
                BlockRun(0, first).link(queue.after)
        if last:
            if queue.before.family is None and queue.before is not queue:
                queue.before.end += last
            else:
                BlockRun(0, last).link(queue)
        for run in named:
            size = run.end - run.first
            self._named_free += size
            self.free += size
            if not run.join(queue.before):
                run.link(queue)

    def _forget(self, run: BlockRun) -> None:
        family = run.family
        assert family is not None
        family.remove(run)
        if not family:
            del self._families[run.first >> POSITION_BITS]
