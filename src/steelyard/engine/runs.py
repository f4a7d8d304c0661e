"""Runs of cached blocks: how one is split, cut, joined with the next, and stands in the queue of free ones.

Whatever is done to a run leaves the blocks of its family in the order in which they got their names.
"""

from __future__ import annotations


class Run:
    """Blocks named ``first`` up to, not including, ``end``, that the same requests use; of no family: nameless ones.

    Who uses a run that is split for another finds its other part behind ``rest``.
    """

    __slots__ = ("after", "before", "end", "family", "first", "rest", "users")

    before: Run  # neighbours in the free queue
    after: Run

    def __init__(self, first: int, end: int, family: list[Run] | None = None, users: int = 0) -> None:
        self.first = first
        self.end = end
        self.family = family
        self.users = users
        self.rest: Run | None = None

    # -- parts --------------------------------------------------------------------------------------------------

    def split(self, at: int) -> Run:
        """The second part of a run that is used, as one of its own."""
        second = self._beside(at, self.end)
        second.rest = self.rest
        self.end, self.rest = at, second
        return second

    def cut(self, first: int, end: int) -> Run:
        """Take a part out of a run in the queue, for one user."""
        part = self._beside(first, end)
        part.users = 1
        if first == self.first:
            self.first = end
            return part
        if end < self.end:
            self._beside(end, self.end).link(self)
        self.end = first
        return part

    def _beside(self, first: int, end: int) -> Run:
        """A new run of names that this one has had so far, for as many users."""
        assert self.family is not None
        part = Run(first, end, self.family, self.users)
        self.family.insert(self.family.index(self), part)
        return part

    def join(self, later: Run) -> bool:
        """Become one with the run before it in the queue, if that one's names go on where its own end."""
        family = self.family
        if family is None or later.family is not family or later.first != self.end:
            return False
        if len(family) > 2 and abs(family.index(self) - family.index(later)) > 1:
            return False  # a third has got its names between the two
        later.first = self.first
        family.remove(self)
        return True

    # -- the queue ----------------------------------------------------------------------------------------------

    def link(self, behind: Run) -> None:
        """Go into the queue before another."""
        self.after, self.before = behind, behind.before
        behind.before.after = self
        behind.before = self

    def unlink(self) -> None:
        """Leave the queue."""
        self.before.after, self.after.before = self.after, self.before

    def stand_alone(self) -> None:
        """Be a queue with nothing in it but the mark where it begins and ends."""
        self.before = self.after = self


def whole(parts: list[tuple[Run, int]]) -> list[Run]:
    """Runs as they are by now, in order of position, of which somebody was given parts up to these names."""
    found: list[Run] = []
    for part, end in parts:
        run = part
        found.append(run)
        while run.end < end:
            assert run.rest is not None
            run = run.rest
            found.append(run)
    return found
