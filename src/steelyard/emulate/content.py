"""Names for blocks of real tokens, by what is in them and all before them, as vLLM hashes blocks."""

from __future__ import annotations

from array import array
from hashlib import blake2b
from itertools import count

from steelyard.engine import BlockNames
from steelyard.engine.content import POSITION_BITS, Chain, Names

_ENDLESS = 1 << 60  # more tokens than any request has


class ContentNames(BlockNames):
    """Gives equal names to blocks with equal tokens before and in them.

    All tokens of a request are known when it begins, since an emulated engine chooses its output ahead. Names of at
    least the last ``most`` blocks are remembered.
    """

    def __init__(self, block_size: int, most: int) -> None:
        super().__init__(block_size)
        self._most = most
        self._known: dict[bytes, int] = {}  # names by hash
        self._older: dict[bytes, int] = {}  # names that are forgotten next
        self._families = count()
        self._requests: dict[int, Names] = {}

    def add(self, request: int, tokens: array[int]) -> Chain:
        """Name the full blocks of a request's prompt and output. Returns the chain that stands for them."""
        full = len(tokens) // self.block_size
        data, width = tokens.tobytes(), self.block_size * tokens.itemsize
        ranges: list[range] = []
        family, digest = -1, b""
        for position in range(full):
            digest = blake2b(digest + data[position * width : (position + 1) * width], digest_size=16).digest()
            name = self._find(digest)
            if name is None:
                if family < 0:
                    family = next(self._families) << POSITION_BITS
                name = self._known[digest] = family + position
            if ranges and ranges[-1].stop == name:
                ranges[-1] = range(ranges[-1].start, name + 1)
            else:
                ranges.append(range(name, name + 1))
        if len(self._known) > self._most:
            self._older, self._known = self._known, {}
        self._requests[request] = Names(ranges, full)
        return ((request, _ENDLESS),)

    def end(self, request: int) -> None:
        """A request has ended: its blocks keep their names, but are not asked for again by its chain."""
        self._requests.pop(request, None)

    def forget(self) -> None:
        """Nothing that was cached can be hit any more."""
        self._known.clear()
        self._older.clear()

    def names(self, chain: Chain, tokens: int) -> Names:
        return self._requests[chain[0][0]][: tokens // self.block_size]

    def continued(self, names: Names, chain: Chain, blocks: int) -> Names:
        return self._requests[chain[0][0]][:blocks]

    def _find(self, digest: bytes) -> int | None:
        found = self._known.get(digest)
        if found is None:
            found = self._older.get(digest)
            if found is not None:
                self._known[digest] = found
        return found
