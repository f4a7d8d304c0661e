"""One pass of SGLang's scheduler over the requests that wait: whose prompts run in the next step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from steelyard.engine.policies.expecting import MOST_EXPECTED, Expectation
from steelyard.engine.policies.radix import Content
from steelyard.engine.policies.room import Room
from steelyard.engine.policies.slots import Holding, TokenPool
from steelyard.engine.request import Request


class Admission:
    """Who is admitted in one pass, with the tokens of each; who of them has more to come; whether all is full then."""

    def __init__(
        self,
        kv: TokenPool,
        room: Room,
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
        self._answered = answered  # tokens that one of those has had
        self._states: list[tuple[int, int]] = []  # where all lengths are known: tokens to go, and slots by now

    def carry_on(self, carried: Request) -> None:
        """The prompt that was begun before goes first."""
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
        """As many of those who wait as there are seats and room for, in their order."""
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
        """Admit a request if there is room for it; False if the pass is over."""
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
        self._kv.holdings[r] = Holding(content, node, prefix)
        self.admitted[r] = tokens
        room.take(tokens, answer)
        return True

    def _fits(self, r: Request, tokens: int) -> bool:
        """Whether there is room for so many tokens of a prompt in this step, and for the answer to it."""
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
        """Whether slots last until everybody has ended, one after the other, where all lengths are known."""
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
