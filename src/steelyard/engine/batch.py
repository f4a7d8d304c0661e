"""The batch of one step: its requests and their tokens."""

from __future__ import annotations

from steelyard.engine.group import DecodeGroup
from steelyard.engine.request import Request


class Entry:
    """One request in a step: scheduled tokens, drafts among them, and sampled tokens."""

    __slots__ = ("drafts", "request", "sampled", "tokens")

    def __init__(self, request: Request, tokens: int, drafts: int) -> None:
        self.request = request
        self.tokens = tokens
        self.drafts = drafts
        self.sampled = 0


class Batch:
    """The batch of one step. ``entries`` are requests whose results are processed; grouped decodes have none."""

    __slots__ = ("chunks", "decodes", "end", "entries", "kv", "longest", "preempted", "scheduled", "step")

    def __init__(self, step: int) -> None:
        self.step = step
        self.end = 0.0
        self.decodes = 0
        self.kv = 0  # cached tokens of all decodes after the step
        self.longest = 0  # and of the longest of them
        self.chunks: list[tuple[int, int]] = []
        self.entries: list[Entry] = []
        self.preempted: list[Request] = []
        self.scheduled: list[Entry] = []

    @property
    def empty(self) -> bool:
        """Nothing was scheduled."""
        return not self.decodes and not self.chunks

    def tokens_by_request(self, group: DecodeGroup) -> dict[int, int]:
        """Tokens of every request of the step, given the group right after scheduling."""
        tokens = {r.index: 1 for _, _, r in group.ends}
        tokens.update((entry.request.index, entry.tokens) for entry in self.scheduled)
        return tokens
