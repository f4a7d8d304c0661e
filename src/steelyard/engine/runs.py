"""Runs of cached blocks: how they are split, cut, joined, and linked in the free queue.

No operation changes the order in which the blocks of a family got their names.
"""

from __future__ import annotations


class BlockRun:
    """Blocks named ``first`` up to, not including, ``end``, that the same requests use. Without a family: nameless.

    When a run is split for one user, its other users find the second part at ``rest``.
    """

    __slots__ = ("after", "before", "end", "family", "first", "rest", "users")

    before: BlockRun  # neighbours in the free queue
    after: BlockRun

    def __init__(self, first: int, end: int, family: list[BlockRun] | None = None, users: int = 0) -> None:
        self.first = first
        self.end = end
        self.family = family
        self.users = users
        self.rest: BlockRun | None = None

    # -- parts --------------------------------------------------------------------------------------------------

    def split(self, at: int) -> BlockRun:
        """Split a run that is in use; returns the second part."""
        second = self._beside(at, self.end)
        second.rest = self.rest
        self.end, self.rest = at, second
        return second

    def cut(self, first: int, end: int) -> BlockRun:
        """Take a part out of a free run, for one user."""
        part = self._beside(first, end)
        part.users = 1
        if first == self.first:
            self.first = end
            return part
        if end < self.end:
            self._beside(end, self.end).link(self)
        self.end = first
        return part

    def _beside(self, first: int, end: int) -> BlockRun:
        """A new run with some of this one's names and as many users."""
        assert self.family is not None
        part = BlockRun(first, end, self.family, self.users)
        self.family.insert(self.family.index(self), part)
        return part

    def join(self, later: BlockRun) -> bool:
        """Merge with the previous run of the queue, if that one's names continue this one's."""
        family = self.family
        if family is None or later.family is not family or later.first != self.end:
            return False
        if len(family) > 2 and abs(family.index(self) - family.index(later)) > 1:
            return False  # a third run got its names between the two
        later.first = self.first
        family.remove(self)
        return True

    # -- the queue ----------------------------------------------------------------------------------------------

    def link(self, behind: BlockRun) -> None:
        """Enter the queue before another run."""
        self.after, self.before = behind, behind.before
        behind.before.after = self
        behind.before = self

    def unlink(self) -> None:
        """Leave the queue."""
        self.before.after, self.after.before = self.after, self.before

    def stand_alone(self) -> None:
        """Become an empty queue: a sentinel linked to itself."""
        self.before = self.after = self


def whole(parts: list[tuple[BlockRun, int]]) -> list[BlockRun]:
    """The runs that parts given out earlier consist of now, in order of position."""
    found: list[BlockRun] = []
    for part, end in parts:
        run = part
        found.append(run)
        while run.end < end:
            assert run.rest is not None
            run = run.rest
            found.append(run)
    return found
