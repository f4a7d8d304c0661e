"""The pool of KV slots, one token each, and what each running request has of it."""

from __future__ import annotations

from steelyard.engine.policies.radix import Content, Node, RadixTree
from steelyard.engine.request import Request
from steelyard.engine.sharing import Sharing


class Holding:
    """The KV slots of one running request."""

    __slots__ = ("content", "node", "prefix", "protected")

    def __init__(self, content: Content, node: Node | None, prefix: int) -> None:
        self.content = content
        self.node = node  # of the tree, locked for it
        self.prefix = prefix  # tokens that need not be computed in the prompt's next part
        self.protected = prefix  # leading tokens whose slots are the tree's


class TokenPool:
    """KV slots of one token each: free ones, those of the tree, and those of requests alone."""

    def __init__(self, tokens: int, caching: bool) -> None:
        self.total = tokens
        self.idle = tokens
        self.sharing = Sharing()  # of slots it is not counted
        self.tree = RadixTree() if caching else None
        self.holdings: dict[Request, Holding] = {}

    @property
    def free(self) -> int:
        """Slots that could be had: idle ones, and those of prefixes nobody uses."""
        return self.idle + (self.tree.evictable if self.tree is not None else 0)

    def clear(self, tokens: int) -> bool:
        """Evict until so many slots are idle; False if that is not to be had."""
        if self.idle < tokens and self.tree is not None:
            self.idle += self.tree.evict(tokens - self.idle)
        return self.idle >= tokens

    def take(self, tokens: int) -> None:
        """Take slots, which must be there."""
        self.clear(tokens)
        self.idle -= tokens

    def complete(self, r: Request, tokens: int) -> None:
        """Nothing to do: what was computed becomes known when a prompt or a request is done."""

    def keep(self, r: Request, length: int) -> None:
        """Make a request's first tokens known to all, and use the slots that others have for the same tokens."""
        holding, tree = self.holdings[r], self.tree
        holding.prefix = length
        if tree is None:
            return
        known, node = tree.insert(holding.content, length)
        self.idle += max(0, known - holding.protected)
        if 0 < r.prompt < length:
            tree.insert(holding.content, r.prompt)  # so that an answer can be evicted without its prompt
        if holding.node is not None:
            tree.unlock(holding.node)
        tree.lock(node)
        holding.node = node
        holding.protected = length

    def release(self, r: Request) -> None:
        """Take a request's slots back; what it has made known stays."""
        holding = self.holdings.pop(r)
        self.idle += r.computed - holding.protected
        if self.tree is not None and holding.node is not None:
            self.tree.unlock(holding.node)
