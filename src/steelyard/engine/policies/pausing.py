"""Decodes that pause in the steps in which prompts run."""

from __future__ import annotations

from heapq import heapify

from steelyard.engine.batch import Batch
from steelyard.engine.group import DecodeGroup
from steelyard.engine.request import Request


class PausingGroup(DecodeGroup):
    """A group whose members pause in steps that run prompts."""

    __slots__ = ()

    def pause(self, step: int) -> None:
        """The members pause in ``step``: all their tokens come one step later."""
        self.ends = [(end + 1, order, r) for end, order, r in self.ends]
        for _, _, r in self.ends:
            r.offset += 1
            if r.breaks is None:
                r.breaks = []
            if r.breaks and r.breaks[-1][1] == step:
                r.breaks[-1] = (r.breaks[-1][0], step + 1)
            else:
                r.breaks.append((step - 1, step + 1))
        self._by_length = [(r.offset, order, r) for _, order, r in self.ends]
        heapify(self._by_length)

    def _remove(self, r: Request, step: int) -> None:
        super()._remove(r, step)
        if r.breaks and r.breaks[-1][1] == step:
            r.last = r.breaks.pop()[0]  # it was waiting for this step


class PromptOrDecodes(Batch):
    """A batch without the group if prompts run."""

    __slots__ = ()

    def tokens_by_request(self, group: DecodeGroup) -> dict[int, int]:
        """Tokens of every request of the step, given the group right after scheduling."""
        if self.chunks:
            return {entry.request.index: entry.tokens for entry in self.scheduled}
        return super().tokens_by_request(group)
