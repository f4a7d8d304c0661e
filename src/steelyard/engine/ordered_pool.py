"""Free blocks in eviction order, with the order of nameless ones, too.

A block that leaves its window is freed while its request runs and cannot be named later. So complete blocks are
numbered as they are freed, and a run of nameless ones keeps their numbers.
"""

from __future__ import annotations

from steelyard.engine.kv import Block, KVCache

UNKNOWN = -1  # the number of an incomplete block


class OrderedPool(KVCache):
    """A free queue that is always kept. ``users`` of a nameless run is the number of its last block."""

    def __init__(self, blocks: int, block_size: int, caching: bool, watermark: float) -> None:
        super().__init__(blocks, block_size, caching, watermark)
        self._came = 0  # complete blocks ever put at the queue's end
        self._queue[self._run(UNKNOWN)] = blocks

    def take(self, count: int) -> None:
        """Allocate blocks from the head of the free queue, evicting the named ones among them."""
        self.free -= count
        queue = self._queue
        while count:
            node = next(iter(queue))
            size = queue[node]
            if size > count:
                queue[node] = size - count
                return
            count -= size
            del queue[node]
            if node.name is not None:
                self._forget(node)

    def _find_again(self, fell: int, name: int) -> None:
        """Name the block freed with this number, if it is still in the queue, which is short when this is called."""
        run = next(
            (
                node
                for node, size in self._queue.items()
                if node.name is None and node.users != UNKNOWN and node.users - size < fell <= node.users
            ),
            None,
        )
        if run is None:
            return
        nodes, self._queue = self._queue, type(self._queue)()
        for node, size in nodes.items():
            if node is not run:
                self._queue[node] = size
                continue
            older, newer = fell - (run.users - size) - 1, run.users - fell
            if older:
                self._queue[self._run(fell - 1)] = older
            found = Block()
            self._name(found, name)
            self._queue[found] = 1
            if newer:
                self._queue[self._run(run.users)] = newer

    def fall(self, count: int) -> int:
        """Put nameless complete blocks into the queue; returns how many complete ones entered it before."""
        before = self._came
        self._give_back(0, count, [])
        return before

    def _give_back(self, first: int, last: int, named: list[Block]) -> None:
        queue = self._queue
        if first:
            head = next(iter(queue), None)
            if head is not None and head.name is None and head.users == UNKNOWN:
                queue[head] += first
            else:
                run = self._run(UNKNOWN)
                queue[run] = first
                queue.move_to_end(run, last=False)
        if last:
            tail = next(reversed(queue), None)
            if tail is not None and tail.name is None and tail.users == self._came:
                queue[tail] += last
                tail.users += last
            else:
                queue[self._run(self._came + last)] = last
        for block in named:
            queue[block] = 1
        self._came += last + len(named)
        self.free += first + last + len(named)

    def _run(self, newest: int) -> Block:
        run = Block()
        run.users = newest
        return run

    def _unqueue(self, block: Block) -> None:
        del self._queue[block]
        self.free -= 1
