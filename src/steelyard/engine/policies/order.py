"""The order of SGLang's waiting queue. The constants are SGLang's own (`schedule_policy.py`, 0.5.23)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from steelyard.engine.policies.radix import Content, RadixTree
from steelyard.engine.request import Request

_MOST_SORTED = 128  # longer queues are served first come first served
_REFRESH_PASSES = 32  # passes after which the prefixes of a queue in arrival order count as used again
_SAME_BATCH = 32  # tokens: of requests that share at least as much only with each other, one goes first


class QueueOrder:
    """First come first served, or by the longest prefix in the tree."""

    def __init__(self, longest_prefix: bool) -> None:
        self._longest_prefix = longest_prefix
        self._passes = 0

    def sort(self, waiting: list[Request], contents: Mapping[Request, Content], tree: RadixTree) -> None:
        """Sort a queue; lookups update the tree's order of use."""
        if self._longest_prefix and len(waiting) <= _MOST_SORTED:
            ranks = _ranks(waiting, contents, tree)
            waiting.sort(key=lambda r: ranks[r])
        elif waiting:
            if self._passes % _REFRESH_PASSES == 0:
                for r in reversed(waiting[:_MOST_SORTED]):
                    tree.match(contents[r], r.prompt + r.outputs)
            self._passes += 1


def _ranks(waiting: Sequence[Request], contents: Mapping[Request, Content], tree: RadixTree) -> dict[Request, float]:
    """Ranks by cached prefix; last if another waiting request will compute the prefix."""
    ranks: dict[Request, float] = {}
    others = RadixTree()
    for r in waiting:
        content, length = contents[r], r.prompt + r.outputs
        known = tree.match(content, length).end
        ranks[r] = -min(known, length - 1)
        if known <= _SAME_BATCH:
            if others.match(content, length).end >= _SAME_BATCH:
                ranks[r] = float("inf")
            else:
                others.insert(content, length)
    return ranks
