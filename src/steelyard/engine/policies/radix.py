"""A radix tree of token prefixes, page size one, as SGLang keeps it.

A prefix is known by its content, not its tokens: `Content` says of which stream each stretch of positions is, so two
contents are compared stretch by stretch. Nodes that nobody uses are evicted leaf by leaf, least recently used first;
the order in which lookups and insertions touch and split nodes is SGLang's, since it decides who is evicted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush

from steelyard.engine.content import BlockNames
from steelyard.engine.request import Request

_PRIVATE_BITS = 24


class Content:
    """What a request's tokens are: from ``begins[i]`` on, they belong to ``bases[i]``. The last stretch has no end."""

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
        """A request's prompt and, after it, its answer: of its own stream if it has one, else nobody else's."""
        if r.chain is not None:
            known = names.names(r.chain, r.prompt + 1)
            return cls(known[: r.prompt], known[-1] - r.prompt)
        return cls(r.keys, -((r.index + 1) << _PRIVATE_BITS))

    def at(self, position: int) -> int:
        """What the token at a position belongs to."""
        return self.bases[bisect_right(self.begins, position) - 1]

    def common(self, other: Content, start: int, end: int) -> int:
        """Where the two part, from ``start`` on; ``end`` if nowhere before."""
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
    """Where the run of consecutive names ends that begins at ``at``."""
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
    """Prefixes that were computed, and which of them nobody uses at present."""

    def __init__(self) -> None:
        self.root = Node(Content((), 0), 0, 0, None, 0)
        self.evictable = 0  # tokens in nodes that nobody has locked
        self._clock = 0
        self._pushed = 0
        self._leaves: list[tuple[int, int, Node]] = []  # heap by last use, with some entries out of date

    def match(self, content: Content, limit: int) -> Node:
        """The node at which the longest known prefix of ``limit`` tokens ends; ``node.end`` is its length."""
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
        """Make a prefix known; how much of it was so before, and the node at which it ends."""
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
        """Keep a prefix from being evicted."""
        above: Node | None = node
        while above is not None:
            if not above.locks:
                self.evictable -= above.end - above.start
            above.locks += 1
            above = above.parent

    def unlock(self, node: Node) -> None:
        """One user less."""
        above: Node | None = node
        while above is not None:
            above.locks -= 1
            if not above.locks:
                self.evictable += above.end - above.start
                self._offer(above)
            above = above.parent

    def evict(self, tokens: int) -> int:
        """Forget whole leaves until so many tokens are free, or nothing can go any more; how many went."""
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
        """Part a node's edge: the first half becomes the parent of the second, which counts as the newer one."""
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
