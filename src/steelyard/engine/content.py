"""Names for blocks of tokens: equal names exactly where token prefixes are equal.

A prompt is a chain of *streams*: ``((system, 1000), (chat-7, 412))`` means the first 1,000 tokens of stream ``system``
followed by the first 412 of ``chat-7``. A block's name is the chain up to its end plus its position. Two requests share
a name only if every token up to there is the same, which an engine finds out by hashing tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain as chained
from typing import overload

Chain = tuple[tuple[int, int], ...]

POSITION_BITS = 24  # of a name: 16 million blocks; the rest is its family (one chain of streams, or one request)
_ENDLESS = 1 << 60  # more tokens than any request has


class Names(Sequence[int]):
    """Names of a request's leading blocks, as ranges of consecutive names.

    No range is empty, and all names of a range belong to one family.
    """

    __slots__ = ("length", "ranges")

    def __init__(self, ranges: Sequence[range] = (), length: int | None = None) -> None:
        self.ranges = ranges
        self.length = sum(map(len, ranges)) if length is None else length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return chained.from_iterable(self.ranges)

    def __reversed__(self) -> Iterator[int]:
        return chained.from_iterable(map(reversed, reversed(self.ranges)))

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Names: ...

    def __getitem__(self, at: int | slice) -> int | Names:
        if isinstance(at, slice):
            return self._between(*at.indices(self.length)[:2])
        at = at if at >= 0 else at + self.length
        for each in self.ranges:
            if 0 <= at < len(each):
                return each[at]
            at -= len(each)
        raise IndexError("no such block")

    def _between(self, first: int, last: int) -> Names:
        found: list[range] = []
        for each in self.ranges:
            part = each[max(first, 0) : max(last, 0)]
            if part:
                found.append(part)
            first -= len(each)
            last -= len(each)
        return Names(found)


NO_NAMES = Names()


class BlockNames:
    """Numbers chains of streams. All engines of a fleet share it, so that routers can compare names."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._chains: dict[tuple[int, int, int], int] = {}  # by previous chain, tokens of its last stream, and stream
        self._count = 0  # chains so far

    def names(self, chain: Chain, tokens: int) -> Names:
        """Names of the full blocks among the first ``tokens`` tokens of a chain."""
        size, chains = self.block_size, self._chains
        ranges: list[range] = []
        known = start = before = 0
        number = -1
        for stream, length in chain:
            if length <= 0:
                continue
            key = (number, before, stream)
            found = chains.get(key)
            if found is None:
                found = chains[key] = self._count
                self._count += 1
            number, before = found, length
            start += length
            full = (start if start < tokens else tokens) // size
            if full > known:
                base = number << POSITION_BITS
                ranges.append(range(base + known, base + full))
                known = full
            if start >= tokens:
                break
        return Names(ranges, known)

    def forget_before(self, stream: int) -> None:
        """Drop the chains that end in an earlier stream, if no request has one of them any more."""
        self._chains = {key: number for key, number in self._chains.items() if key[2] >= stream}

    def continued(self, names: Names, chain: Chain, blocks: int) -> Names:
        """Names of a chain's first blocks, given some of them: within its last stream they are consecutive."""
        known, before = names.length, 0
        for _, length in chain[:-1]:
            before += length
        if known * self.block_size <= before:
            return self.names(chain, blocks * self.block_size)
        if blocks == known:
            return names
        ranges = [*names.ranges]
        last = ranges[-1]
        ranges[-1] = range(last.start, last.stop + blocks - known)
        return Names(ranges, blocks)


def extend(chain: Chain, stream: int) -> Chain:
    """The chain of a request with its output: its own tokens, however many, belong to ``stream``."""
    if chain and chain[-1][0] == stream:
        chain = chain[:-1]
    return (*chain, (stream, _ENDLESS))
