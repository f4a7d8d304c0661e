"""The pool of KV slots, one token each, and the slots of each running request."""

from __future__ import annotations

from steelyard.engine.policies.radix import Content, Node, RadixTree
from steelyard.engine.request import Request
from steelyard.engine.sharing import SharedBlocks


class RequestSlots:
    """The KV slots of one running request."""

    __slots__ = ("content", "node", "prefix", "protected")

    def __init__(self, content: Content, node: Node | None, prefix: int) -> None:
        self.content = content
        self.node = node  # of the tree, locked for this request
        self.prefix = prefix  # tokens that the prompt's next chunk does not compute
        self.protected = prefix  # leading tokens whose slots belong to the tree


class TokenPool:
    """KV slots of one token each: idle ones, those of the tree, and those of single requests."""

    def __init__(self, tokens: int, caching: bool) -> None:
        self.total = tokens
        self.idle = tokens
        self.sharing = SharedBlocks()  # stays empty: sharing of slots is not counted
        self.tree = RadixTree() if caching else None
        self.holdings: dict[Request, RequestSlots] = {}

    @property
    def free(self) -> int:
        """Slots that can be allocated: idle ones, and those of unused prefixes."""
        return self.idle + (self.tree.evictable if self.tree is not None else 0)

    def clear(self, tokens: int) -> bool:
        """Evict until ``tokens`` slots are idle. False if that is impossible."""
        if self.idle < tokens and self.tree is not None:
            self.idle += self.tree.evict(tokens - self.idle)
        return self.idle >= tokens

    def take(self, tokens: int) -> None:
        """Allocate slots, which must be available."""
        self.clear(tokens)
        self.idle -= tokens

    def complete(self, r: Request, tokens: int) -> None:
        """Nothing to do: computed tokens enter the tree when a prompt or a request is done."""

    def keep(self, r: Request, length: int) -> None:
        """Insert a request's first tokens into the tree, and use the slots that it has for the same tokens."""
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
        """Free a request's slots; what it inserted into the tree stays."""
        holding = self.holdings.pop(r)
        self.idle += r.computed - holding.protected
        if self.tree is not None and holding.node is not None:
            self.tree.unlock(holding.node)
