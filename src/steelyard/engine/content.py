"""Names for blocks of tokens: equal names exactly where token prefixes are equal.

A prompt is known by *streams*: ``((system, 1000), (chat-7, 412))`` means the first 1,000 tokens of stream
``system`` followed by the first 412 of ``chat-7``. A block's name is the chain of streams that leads up to its
end plus its position, so two requests share a name only if every token up to there is the same: the property
that an engine gets by hashing tokens, without the tokens.
"""

from __future__ import annotations

Chain = tuple[tuple[int, int], ...]

_POSITION_BITS = 24
_ENDLESS = 1 << 60


class BlockNames:
    """Interns chains of streams; shared by all engines of a fleet so that routers can compare names."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._chains: dict[tuple[Chain, int], int] = {}

    def names(self, chain: Chain, tokens: int) -> list[int]:
        """Names of the full blocks among the first ``tokens`` tokens of a chain."""
        size = self.block_size
        names: list[int] = []
        start = 0
        for i, (stream, length) in enumerate(chain):
            if length <= 0:
                continue
            start += length
            full = min(start, tokens) // size
            if full > len(names):
                base = self._base(chain[:i], stream)
                names.extend(range(base + len(names), base + full))
            if start >= tokens:
                break
        return names

    def _base(self, before: Chain, stream: int) -> int:
        key = (before, stream)
        number = self._chains.get(key)
        if number is None:
            number = self._chains[key] = len(self._chains)
        return number << _POSITION_BITS


def extend(chain: Chain, stream: int) -> Chain:
    """A request's whole sequence, however long it grows: its own tokens belong to ``stream``."""
    if chain and chain[-1][0] == stream:
        chain = chain[:-1]
    return (*chain, (stream, _ENDLESS))
