"""A radix tree of token prefixes with page size one, as in SGLang.

Prefixes are compared by content, not by tokens: `Content` says which stream each range of positions belongs to. Unused
nodes are evicted leaf by leaf, least recently used first. Lookups and insertions touch and split nodes in SGLang's
order, since that decides what is evicted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush

from steelyard.engine.content import BlockNames
from steelyard.engine.request import Request

_PRIVATE_BITS = 24  # of the base of unshared output: room for 16 million positions


class Content:
    """What a request's tokens are: from ``begins[i]`` on, they belong to ``bases[i]``. The last range has no end."""

    __slots__ = ("bases", "begins")

    def __init__(self, names: Sequence[int], own: int) -> None:
        self.begins: list[int] = []
        self.bases: list[int] = []
        at, count = 0, len(names)
        while at < count:
            self._from(at, names[at] - at)
            at = _run_end(names, at)
        self._from(count, own)

    def _from(self, begin: int, base: int) -> None:
        if not self.bases or self.bases[-1] != base:
            self.begins.append(begin)
            self.bases.append(base)

    @classmethod
    def of(cls, r: Request, names: BlockNames) -> Content:
        """A request's prompt and output. Output without a stream is shared with no other request."""
        if r.chain is not None:
            known = names.names(r.chain, r.prompt + 1)
            return cls(known[: r.prompt], known[-1] - r.prompt)
        return cls(r.keys, -((r.index + 1) << _PRIVATE_BITS))

    def at(self, position: int) -> int:
        """The base of the token at a position."""
        return self.bases[bisect_right(self.begins, position) - 1]

    def common(self, other: Content, start: int, end: int) -> int:
        """The first position from ``start`` on at which the two differ, or ``end``."""
        at = start
        while at < end:
            i, k = bisect_right(self.begins, at), bisect_right(other.begins, at)
            if self.bases[i - 1] != other.bases[k - 1]:
                return at
            if i < len(self.begins):
                at = min(self.begins[i], other.begins[k]) if k < len(other.begins) else self.begins[i]
            elif k < len(other.begins):
                at = other.begins[k]
            else:
                return end
        return end


def _run_end(names: Sequence[int], at: int) -> int:
    """The end of the run of consecutive names that starts at ``at``."""
    base = names[at] - at
    return bisect_left(range(len(names)), True, lo=at + 1, key=lambda position: names[position] - position != base)


class Node:
    """Tokens ``start`` to ``end`` of a content, after those of the parent."""

    __slots__ = ("children", "content", "end", "locks", "parent", "start", "used")

    def __init__(self, content: Content, start: int, end: int, parent: Node | None, used: int) -> None:
        self.content = content
        self.start = start
        self.end = end
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.locks = 0
        self.used = used


class RadixTree:
    """Cached prefixes, and which of them no request uses."""

    def __init__(self) -> None:
        self.root = Node(Content((), 0), 0, 0, None, 0)
        self.evictable = 0  # tokens in unlocked nodes
        self._clock = 0
        self._pushed = 0
        self._leaves: list[tuple[int, int, Node]] = []  # heap by last use, with stale entries

    def match(self, content: Content, limit: int) -> Node:
        """The node at which the longest cached prefix, up to ``limit`` tokens, ends; ``node.end`` is its length."""
        node = self.root
        while node.end < limit:
            child = node.children.get(content.at(node.end))
            if child is None:
                break
            agreed = child.content.common(content, child.start, min(child.end, limit))
            if agreed < child.end:
                node = self._split(child, agreed)
                break
            node = child
        used = self._tick()
        above: Node | None = node
        while above is not None:
            self._use(above, used)
            above = above.parent
        return node

    def insert(self, content: Content, length: int) -> tuple[int, Node]:
        """Insert a prefix; returns how much of it was cached before, and the node at which it ends."""
        node = self.root
        while node.end < length:
            child = node.children.get(content.at(node.end))
            if child is None:
                break
            self._use(child, self._tick())
            agreed = child.content.common(content, child.start, min(child.end, length))
            node = child if agreed == child.end else self._split(child, agreed)
        known = node.end
        if known < length:
            leaf = Node(content, known, length, node, self._tick())
            node.children[content.at(known)] = leaf
            self.evictable += length - known
            self._offer(leaf)
            node = leaf
        return known, node

    def lock(self, node: Node) -> None:
        """Protect a prefix from eviction."""
        above: Node | None = node
        while above is not None:
            if not above.locks:
                self.evictable -= above.end - above.start
            above.locks += 1
            above = above.parent

    def unlock(self, node: Node) -> None:
        """Remove one user of a prefix."""
        above: Node | None = node
        while above is not None:
            above.locks -= 1
            if not above.locks:
                self.evictable += above.end - above.start
                self._offer(above)
            above = above.parent

    def evict(self, tokens: int) -> int:
        """Evict whole leaves until ``tokens`` are free or nothing is evictable; returns how many were evicted."""
        gone = 0
        while gone < tokens and self._leaves:
            used, _, node = heappop(self._leaves)
            parent = node.parent
            if parent is None or node.used != used or node.locks or node.children:
                continue
            del parent.children[node.content.at(node.start)]
            node.parent = None
            gone += node.end - node.start
            self._offer(parent)
        self.evictable -= gone
        return gone

    def _split(self, child: Node, at: int) -> Node:
        """Split a node: the first half becomes the parent of the second, which counts as the newer one."""
        parent = child.parent
        assert parent is not None
        upper = Node(child.content, child.start, at, parent, self._tick())
        upper.locks = child.locks
        parent.children[child.content.at(child.start)] = upper
        child.start = at
        child.parent = upper
        upper.children[child.content.at(at)] = child
        self._use(child, self._tick())
        return upper

    def _use(self, node: Node, used: int) -> None:
        node.used = used
        self._offer(node)

    def _offer(self, node: Node) -> None:
        if not node.locks and not node.children and node.parent is not None:
            self._pushed += 1
            heappush(self._leaves, (node.used, self._pushed, node))

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
