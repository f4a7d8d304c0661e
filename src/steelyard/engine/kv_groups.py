"""The paged KV cache of a model with sliding windows, as in vLLM's hybrid KV-cache manager.

Layers with the same window form KV-cache groups, and every group has its own block for the same tokens. A group with
a window frees a block as soon as no later token attends to it. A prefix is hit as far as every group still has the
blocks that the next token attends to. All groups allocate from one queue. If tokens attend in chunks, a group frees the
blocks of a whole chunk when the next one begins.

A block that leaves its window is freed while its request runs, so it cannot be named later. Blocks that other requests
may hit are therefore freed with their names. For all others the queue keeps the order in which they were freed, so
that a preempted request finds its own again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.engine.kv import Block
from steelyard.engine.limits import Limits
from steelyard.engine.ordered_pool import UNKNOWN, OrderedPool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.engine.content import Names
    from steelyard.engine.request import Request


class Pages:
    """The blocks of one request in each group. ``slid`` tokens were computed when its windows were last moved."""

    __slots__ = ("fell", "slid", "tables")

    def __init__(self, tables: list[list[Block | None]], slid: int) -> None:
        self.tables = tables  # by group: the leading positions that can have names; None where the block was freed
        self.fell = [UNKNOWN] * len(tables)  # by group: when its newest nameless block was freed
        self.slid = slid


class KVGroups(OrderedPool):
    """Blocks of several KV-cache groups, and the named ones among them that a prefix can hit."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits.blocks, limits.block_size, limits.enable_prefix_caching, limits.watermark)
        self.windows = limits.windows
        self.chunked = limits.chunked
        self.caps = [limits.most_blocks(window) for window in limits.windows]
        self.sliding = [
            (window, [g for g, each in enumerate(limits.windows) if each == window])
            for window in dict.fromkeys(limits.windows)
            if window is not None
        ]
        self.wanted = 0  # free blocks that the last request which did not fit would have needed
        self.moved: list[tuple[int, int, Request, int, int, list[Block]]] | None = None  # see `settle`
        self._spans = sorted(set(limits.windows), key=lambda window: (window is not None, window or 0))

    # -- prefix hits --------------------------------------------------------------------------------------------

    def match(self, r: Request) -> int:
        """Blocks of the longest prefix that all groups can continue; the last token is always recomputed."""
        if not self._table:
            return 0
        length, before = min(len(r.keys), (r.prompt + r.outputs - 1) // self.block_size), -1
        while length and length != before:
            before = length
            for window in self._spans:
                length = self._reach(r.keys, window, length)
        return length

    def _reach(self, keys: Sequence[int], window: int | None, most: int) -> int:
        """How many blocks of a prefix, up to ``most``, groups with one window can continue."""
        groups = [g for g, each in enumerate(self.windows) if each == window]
        table, width = self._table, len(self.windows)
        if window is None:
            return next((i for i in range(most) if any(keys[i] * width + g not in table for g in groups)), most)
        if self.chunked:
            first = self.gone_before(window, most * self.block_size)
            return next((i for i in range(first, most) if any(keys[i] * width + g not in table for g in groups)), most)
        need, row = -(-(window - 1) // self.block_size), 0
        for i in range(most - 1, -1, -1):
            row = row + 1 if all(keys[i] * width + g in table for g in groups) else 0
            if row == need:
                return i + row
        return row

    def gone_before(self, window: int | None, tokens: int) -> int:
        """Leading blocks of a group that no token after the first ``tokens`` attends to."""
        if window is None:
            return 0
        if self.chunked:
            return tokens // window * window // self.block_size
        return max(0, tokens - window + 1) // self.block_size

    # -- allocation ---------------------------------------------------------------------------------------------

    def admit(self, r: Request, found: int, tokens: int, whole: int, watermark: bool) -> bool:
        """Give a waiting request its cached blocks and room for ``tokens``, if ``whole`` tokens would fit as well."""
        size, width = self.block_size, len(self.windows)
        tables: list[list[Block | None]] = []
        for g, window in enumerate(self.windows):
            gone = self.gone_before(window, found * size)
            table: list[Block | None] = [None] * gone
            table += [self._table.get(name * width + g) for name in r.keys[gone:found]]
            tables.append(table)
        touched = [block for table in tables for block in table if block is not None]
        spare = self.free - sum(not block.users for block in touched) - (self.watermark if watermark else 0)
        need = max(0, -(-tokens // size) - found) * len(tables)
        all_of_it = sum(max(0, min(-(-whole // size), cap) - found) for cap in self.caps)
        if max(need, all_of_it) > spare:
            self.wanted = max(need, all_of_it) + self.free - spare
            return False
        for block in touched:
            if not block.users:
                self._unqueue(block)
            block.users += 1
        r.pages = Pages(tables, found * size)
        r.blocks = r.cached = found
        if need > 0:
            self.take(need)
            self._attach(r, need // len(tables))
        return True

    def grow(self, r: Request, tokens: int) -> bool:
        """Move a running request's windows and give it room for ``tokens`` in all. False if blocks are lacking."""
        self._slide(r, r.computed - r.in_flight)
        need = -(-tokens // self.block_size) - r.blocks
        if need > 0:
            if need * len(self.windows) > self.free:
                return False
            self.take(need * len(self.windows))
            self._attach(r, need)
        return True

    def _attach(self, r: Request, count: int) -> None:
        assert r.pages is not None
        r.blocks += count
        for g, table in enumerate(r.pages.tables):
            self._identify(r, g, self.gone_before(self.windows[g], r.pages.slid), min(r.cached, len(r.keys)))
            for _ in range(min(r.blocks, len(r.keys)) - len(table)):
                block = Block()
                block.users = 1
                table.append(block)

    # -- naming -------------------------------------------------------------------------------------------------

    def complete(self, r: Request, tokens: int) -> None:
        """The request's first ``tokens`` tokens are (being) computed: its full blocks can be hit from now on."""
        full = tokens // self.block_size
        if not self.caching or full <= r.cached:
            return
        assert r.pages is not None
        for g, table in enumerate(r.pages.tables):
            for i in range(r.cached, min(full, len(table))):
                block = table[i]
                if block is not None:
                    self._name(block, r.keys[i] * len(self.windows) + g)
        r.cached = full

    def keep(self, r: Request, names: Names) -> None:
        """Name a request's nameless complete blocks, so that later requests can hit them."""
        pages = r.pages
        assert pages is not None
        if len(names) > len(r.keys):
            r.keys = names
        for g, window in enumerate(self.windows):
            known = len(pages.tables[g])
            last = self.gone_before(window, pages.slid) - 1
            self._identify(r, g, last + 1, min(r.cached, len(r.keys)))
            if known <= last < len(r.keys) and pages.fell[g] != UNKNOWN:
                self._find_again(pages.fell[g], r.keys[last] * len(self.windows) + g)

    def _identify(self, r: Request, g: int, gone: int, count: int) -> None:
        """Make a `Block` for each of the first ``count`` positions of a group but the ``gone`` leading ones."""
        assert r.pages is not None
        table = r.pages.tables[g]
        for i in range(len(table), count):
            block: Block | None = None
            if i >= gone:
                block = Block()
                block.users = 1
                self._name(block, r.keys[i] * len(self.windows) + g)
            table.append(block)

    def forget(self, r: Request, tokens: int) -> None:
        """Remove the names of a request's blocks from the given token on, unless other requests use them."""
        assert r.pages is not None
        first, width = tokens // self.block_size, len(self.windows)
        for g, table in enumerate(r.pages.tables):
            for i in range(first, len(table)):
                block = table[i] or self._table.get(r.keys[i] * width + g)
                if block is not None and block.name is not None and block.users == (table[i] is not None):
                    self._forget(block)
                    block.name = None
                    if not block.users:
                        block.users = UNKNOWN
        r.cached = min(r.cached, len(r.pages.tables[0]))

    # -- freeing ------------------------------------------------------------------------------------------------

    def _slide(self, r: Request, processed: int) -> None:
        """Free the blocks that no token after the first ``processed`` attends to."""
        pages = r.pages
        assert pages is not None
        if processed <= pages.slid:
            return
        before, pages.slid = pages.slid, processed
        for window, groups in self.sliding:
            first, last = self.gone_before(window, before), min(self.gone_before(window, processed), r.blocks)
            if last > first:
                for g in groups:
                    self.drop(r, g, first, last)

    def drop(self, r: Request, g: int, first: int, last: int) -> None:
        """Free a request's blocks of a group at these positions; the last one is reused first."""
        assert r.pages is not None
        table = r.pages.tables[g]
        self._identify(r, g, first, min(last, r.cached, len(r.keys)))
        begin = max(first, len(table))
        complete = max(0, min(last, r.cached) - begin) if self.caching else 0
        incomplete = max(0, last - begin) - complete
        named: list[Block] = []
        for i in range(min(last, len(table)) - 1, first - 1, -1):
            block, table[i] = table[i], None
            assert block is not None
            incomplete += self._leave(block, named)
        if self.moved is not None:
            self.moved.append((r.order, g, r, incomplete, complete, named))
        else:
            self._put(r, g, incomplete, complete, named)

    def settle(self) -> None:
        """Put the blocks freed in this step into the queue, in the order in which vLLM visits requests."""
        moved, self.moved = self.moved, None
        for _, g, r, incomplete, complete, named in sorted(moved or (), key=lambda each: each[:2]):
            self._put(r, g, incomplete, complete, named)

    def _put(self, r: Request, g: int, incomplete: int, complete: int, named: list[Block]) -> None:
        if r.pages is not None and complete:
            r.pages.fell[g] = self._came + 1
        self._give_back(incomplete, complete, named)

    def release(self, r: Request) -> None:
        """Free all blocks, group by group: incomplete ones are reused first, tails before heads."""
        pages = r.pages
        if pages is None:
            return
        for window, table in zip(self.windows, pages.tables, strict=True):
            begin = max(len(table), self.gone_before(window, pages.slid))
            complete = max(0, r.cached - begin) if self.caching else 0
            incomplete = max(0, r.blocks - begin) - complete
            named: list[Block] = []
            for block in reversed(table):
                if block is not None:
                    incomplete += self._leave(block, named)
            self._give_back(incomplete, complete, named)
        r.pages = None
        r.blocks = r.cached = 0

    def _leave(self, block: Block, named: list[Block]) -> int:
        """Remove one user. Returns 1 if the block is now free and nameless; a free named one is added to ``named``."""
        block.users -= 1
        if block.users:
            return 0
        if block.name is None:
            return 1
        named.append(block)
        return 0
