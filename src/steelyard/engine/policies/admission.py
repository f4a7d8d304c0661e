"""One pass of SGLang's scheduler over the waiting queue: whose prompts run in the next step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from steelyard.engine.policies.budget import PassBudget
from steelyard.engine.policies.expecting import MOST_EXPECTED, Expectation
from steelyard.engine.policies.radix import Content
from steelyard.engine.policies.slots import RequestSlots, TokenPool
from steelyard.engine.request import Request


class AdmissionPass:
    """The requests admitted in one pass with their tokens, the chunked one of them, and whether the batch is full."""

    def __init__(
        self,
        kv: TokenPool,
        room: PassBudget,
        expects: Expectation,
        decoding: Sequence[Request],
        answered: Callable[[Request], int],
    ) -> None:
        self.admitted: dict[Request, int] = {}
        self.chunked: Request | None = None
        self.full = False
        self._kv = kv
        self._room = room
        self._expects = expects
        self._decoding = decoding
        self._answered = answered  # output tokens of a decoding request so far
        self._states: list[tuple[int, int]] = []  # if all lengths are known: remaining tokens, and slots in use

    def carry_on(self, carried: Request) -> None:
        """Continue the chunked prompt of the last step."""
        room = self._room
        assert room.chunk is not None
        most = min(room.chunk, int(room.total))
        if most <= 0:
            most = room.chunk
        lacks = carried.prompt + carried.outputs - carried.computed
        self.admitted[carried] = min(lacks, most)
        room.take(self.admitted[carried], self._answer(carried) if lacks <= most else 0)
        self.chunked = None if lacks <= most else carried

    def admit(self, waiting: Sequence[Request], contents: Mapping[Request, Content], seats: int) -> None:
        """Admit waiting requests in order, while seats and slots last."""
        room = self._room
        for r in waiting:
            if not room.exhausted and room.spent:
                break
            if len(self.admitted) >= seats:
                self.full = True
            if self.full:
                break
            if not self._try(r, contents[r]):
                break
            if room.exhausted or room.spent:
                if room.exhausted:
                    self.full = True
                break

    def _answer(self, r: Request) -> int:
        return min(self._expects.allowed(r), MOST_EXPECTED)

    def _try(self, r: Request, content: Content) -> bool:
        """Admit a request if it fits. False if the pass is over."""
        room, tree = self._room, self._kv.tree
        length = r.prompt + r.outputs
        node = tree.match(content, length - 1) if tree is not None else None
        prefix = node.end if node is not None else 0
        if tree is not None and node is not None:
            tree.lock(node)
        tokens = length - prefix
        if not self._fits(r, tokens):
            if tree is not None and node is not None:
                tree.unlock(node)
            return False
        answer = self._answer(r)
        if room.chunk is not None and tokens > room.chunk:
            tokens, answer = room.chunk, 0
            self.chunked = r
        self._kv.holdings[r] = RequestSlots(content, node, prefix)
        self.admitted[r] = tokens
        room.take(tokens, answer)
        return True

    def _fits(self, r: Request, tokens: int) -> bool:
        """Whether ``tokens`` of a prompt fit this step, and its output fits later."""
        room = self._room
        to_the_end = self._kv.tree is None and self._expects.known
        if to_the_end:
            fits = self._fits_to_the_end(r)
        else:
            fits = tokens + min(max(self._expects.allowed(r) - r.outputs, 0), MOST_EXPECTED) + 1 < room.total
        if not fits:
            self.full = bool(self.admitted or self._decoding)
            return False
        if not to_the_end and room.chunk is None and self.admitted and tokens >= room.input:
            return False
        return room.chunk is None or room.chunk > 0

    def _fits_to_the_end(self, r: Request) -> bool:
        """Whether slots last until all requests have ended, one after the other, if all lengths are known."""
        room, states, allowed = self._room, self._states, self._expects.allowed
        need = r.prompt + r.outputs + 1
        if need > min(room.current, room.total):
            return False
        if not states:
            for each in (r, *self._decoding, *self.admitted):
                answered = self._answered(each)
                left = allowed(each) - answered
                if left > 0:
                    states.append((left, each.prompt + answered))
            states.sort(key=lambda state: state[0])
        else:
            left = allowed(r) - r.outputs
            at = next((i for i, state in enumerate(states) if left <= state[0]), len(states) - 1)
            states.insert(at, (left, r.prompt + r.outputs))
        spare = room.current - need
        for i, (left, occupied) in enumerate(states):
            others = len(states) - i
            if spare - left * others <= others:
                return False
            spare += occupied
        return True
