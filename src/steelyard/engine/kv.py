"""The paged KV cache with prefix caching, block for block as in vLLM.

Tiers and sliding windows build on it, since they need single blocks. Other engines use `RunCache`, for which this is
the reference.

Only blocks that a later request could hit have an identity (`Block`). All others are alike and only counted: the free
queue holds named blocks and *runs* of nameless ones, in eviction order. It costs nothing while no named block is free.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from steelyard.engine.sharing import SharedBlocks

if TYPE_CHECKING:
    from steelyard.engine.content import Names
    from steelyard.engine.request import Request


class Block:
    """A block that requests may share. In the free queue a block without a name stands for a run of nameless ones."""

    __slots__ = ("name", "users")

    def __init__(self) -> None:
        self.name: int | None = None
        self.users = 0


class KVCache:
    """Free blocks in eviction order, and the named blocks that a prefix can hit."""

    def __init__(self, blocks: int, block_size: int, caching: bool, watermark: float = 0.0) -> None:
        self.total = blocks
        self.block_size = block_size
        self.caching = caching
        self.watermark = int(watermark * (blocks + 1))
        self.free = blocks
        self.sharing = SharedBlocks()
        self._queue: OrderedDict[Block, int] = OrderedDict()
        self._named_free = 0
        self._table: dict[int, Block] = {}
        self._twins: dict[int, list[Block]] = {}
        self.gone: list[int] | None = None  # names evicted for good; None without tiers below
        self.fresh: list[int] | None = None  # names of blocks that have been completed; None without tiers below

    # -- prefix hits --------------------------------------------------------------------------------------------

    def match(self, r: Request) -> int:
        """Blocks of the longest cached prefix of a waiting request; its last token is always recomputed."""
        table = self._table
        if not table:
            return 0
        names = r.keys[: (r.prompt + r.outputs - 1) // self.block_size]
        return next((i for i, name in enumerate(names) if name not in table), len(names))

    @property
    def spare(self) -> int:
        """Blocks that can be allocated without evicting a named one."""
        if not self._named_free:
            return self.free
        head = next(iter(self._queue))
        return self._queue[head] if head.name is None else 0

    # -- allocation ---------------------------------------------------------------------------------------------

    def admit(self, r: Request, found: int, tokens: int, whole: int, watermark: bool) -> bool:
        """Give a waiting request its cached blocks and room for ``tokens``, if ``whole`` tokens would fit as well."""
        size = self.block_size
        hits = [self._table[name] for name in r.keys[:found]]
        idle = 0
        for block in hits:
            if not block.users:
                idle += 1
        spare = self.free - idle - (self.watermark if watermark else 0)
        need = -(-tokens // size) - found
        if -(-whole // size) - found > spare or need > spare:
            return False
        for block in hits:
            if not block.users:
                self._unqueue(block)
            block.users += 1
            self.sharing.joined(block.users, 1)
        r.held = hits
        r.blocks = r.cached = found
        if need > 0:
            self.take(need)
            self._attach(r, need)
        return True

    def grow(self, r: Request, tokens: int) -> bool:
        """Give a running request room for ``tokens`` in all. False if there are not enough free blocks."""
        need = -(-tokens // self.block_size) - r.blocks
        if need > 0:
            if need > self.free:
                return False
            self.take(need)
            self._attach(r, need)
        return True

    def take(self, count: int) -> None:
        """Allocate blocks from the head of the free queue, evicting the named ones among them."""
        self.free -= count
        if not self._named_free:
            return
        queue = self._queue
        while count:
            node = next(iter(queue))
            size = queue[node]
            if node.name is None:
                if size > count:
                    queue[node] = size - count
                    return
                count -= size
                del queue[node]
            else:
                del queue[node]
                self._forget(node)
                if self.gone is not None and node.name not in self._table:
                    self.gone.append(node.name)
                count -= 1
                self._named_free -= 1
                if not self._named_free:
                    queue.clear()
                    return

    def _attach(self, r: Request, count: int) -> None:
        nameable = min(r.blocks + count, len(r.keys)) - len(r.held)
        if nameable > 0:
            if not r.held:
                r.held = []
            for _ in range(nameable):
                block = Block()
                block.users = 1
                r.held.append(block)
        r.blocks += count

    # -- naming and freeing -------------------------------------------------------------------------------------

    def complete(self, r: Request, tokens: int) -> None:
        """The request's first ``tokens`` tokens are (being) computed: its full blocks can be hit from now on."""
        if not self.caching:
            return
        full = tokens // self.block_size
        if full <= r.cached:
            return
        for i in range(r.cached, min(full, len(r.held))):
            self._name(r.held[i], r.keys[i])
        r.cached = full

    def keep(self, r: Request, names: Names) -> None:
        """Name a request's nameless complete blocks, so that later requests can hit them."""
        r.keys = names
        count = min(r.cached, len(names)) - len(r.held)
        if count <= 0:
            return
        held = list(r.held)
        for i in range(len(held), len(held) + count):
            block = Block()
            block.users = 1
            held.append(block)
            self._name(block, names[i])
        r.held = held

    def forget(self, r: Request, tokens: int) -> None:
        """Remove the names of a request's blocks from the given token on, unless other requests use them."""
        first = tokens // self.block_size
        for block in r.held[first:]:
            if block.users == 1 and block.name is not None:
                self._forget(block)
                block.name = None
        r.cached = min(r.cached, len(r.held))

    def release(self, r: Request) -> None:
        """Free all blocks: incomplete ones are reused first, complete ones last, tails before heads."""
        held = r.held
        nameless = r.blocks - len(held)
        complete = max(0, r.cached - len(held)) if self.caching else 0
        first = nameless - complete
        returned: list[Block] = []
        for block in reversed(held):
            block.users -= 1
            self.sharing.left(block.users, 1)
            if not block.users:
                if block.name is None:
                    first += 1
                else:
                    returned.append(block)
        if not returned and not self._named_free:
            self.free += first + complete
        else:
            self._give_back(first, complete, returned)
        r.held = []
        r.blocks = r.cached = 0

    def _give_back(self, first: int, last: int, named: list[Block]) -> None:
        queue = self._queue
        if not self._named_free and self.free:
            queue[Block()] = self.free
        if first:
            head = next(iter(queue), None)
            if head is not None and head.name is None:
                queue[head] += first
            else:
                run = Block()
                queue[run] = first
                queue.move_to_end(run, last=False)
        if last:
            tail = next(reversed(queue), None)
            if tail is not None and tail.name is None:
                queue[tail] += last
            else:
                queue[Block()] = last
        for block in named:
            queue[block] = 1
        self._named_free += len(named)
        self.free += first + last + len(named)

    def _unqueue(self, block: Block) -> None:
        del self._queue[block]
        self.free -= 1
        self._named_free -= 1
        if not self._named_free:
            self._queue.clear()

    def _name(self, block: Block, name: int) -> None:
        block.name = name
        if self.fresh is not None:
            self.fresh.append(name)
        if name in self._table:
            self._twins.setdefault(name, []).append(block)
        else:
            self._table[name] = block

    def _forget(self, block: Block) -> None:
        name = block.name
        assert name is not None
        twins = self._twins.get(name)
        if twins is None:
            del self._table[name]
            return
        if self._table[name] is block:
            self._table[name] = twins.pop(0)
        else:
            twins.remove(block)
        if not twins:
            del self._twins[name]
