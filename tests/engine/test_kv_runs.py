"""Runs of blocks against single blocks: conversations that share, fork, meet, are cut short and forgotten."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from steelyard.engine import BlockNames, Chain, Request, extend
from steelyard.engine.content import Names
from steelyard.engine.kv import KVCache
from steelyard.engine.kv_runs import RunCache
from steelyard.engine.runs import BlockRun
from support.engine_worlds import settled

Either = KVCache | RunCache
Call = tuple[str, int, int]

OPENINGS: list[Chain] = [
    ((0, 40),),
    ((0, 40),),
    ((0, 12), (1, 20)),
    ((0, 12), (1, 20), (2, 9)),
    ((3, 30),),
    (),
]
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["admit"] * 4 + ["grow", "complete", "complete", "finish", "finish", "end", "drop", "preempt"]),
        st.integers(0, 2 * len(OPENINGS) - 1),
        st.integers(1, 20),
    ),
    min_size=30,
    max_size=120,
)


@dataclass
class Talk:
    """A conversation: a turn at a time, each beginning with all that came before."""

    number: int
    opening: Chain
    length: int = 10
    turn: Request | None = None
    room: int = 0  # tokens that the turn has blocks for
    turns: int = 0

    def ask(self, names: BlockNames) -> Request:
        """The next turn, or the one that was preempted."""
        if self.turn is None:
            chain = extend(self.opening, 10 + self.number)
            self.turns += 1
            index = 100 * self.turns + self.number
            self.turn = Request(index, 0.0, self.length, 99, keys=names.names(chain, self.length), chain=chain)
        return self.turn


@dataclass
class Bench:
    """One cache, and what the calls made of it so far."""

    kv: Either
    names: BlockNames
    talks: list[Talk] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.talks = [Talk(i, OPENINGS[i % len(OPENINGS)]) for i in range(2 * len(OPENINGS))]

    def call(self, kind: str, i: int, n: int) -> object:
        """Make one call where it is allowed; the answer is all that a scheduler would see of it."""
        talk, kv = self.talks[i], self.kv
        if kind == "admit":
            return None if talk.room else self._admit(talk, n)
        r = talk.turn
        if r is None or not talk.room:
            return None
        if kind == "grow" and kv.grow(r, talk.room + n):
            talk.room += n
        elif kind in ("complete", "finish"):
            kv.complete(r, talk.room if kind == "finish" else max(0, talk.room - n))
        elif kind in ("end", "drop", "preempt"):
            self._end(talk, r, kind, n)
        return talk.room, r.blocks, r.cached, kv.free

    def _admit(self, talk: Talk, n: int) -> object:
        r, kv = talk.ask(self.names), self.kv
        found = kv.match(r)
        used = max(0, found - n % 2) if n > 15 else found
        tokens = used * kv.block_size + n
        if kv.admit(r, used, tokens, 2 * n if n > 10 else 0, watermark=n % 2 == 0):
            talk.room = tokens
        return found, talk.room, r.blocks, kv.free

    def _end(self, talk: Talk, r: Request, kind: str, n: int) -> None:
        """Leave as a request that has ended does, or as one whose stream is forgotten, or as one that comes again."""
        if n % 4 or kind == "preempt":
            self._name_all(r)
        if kind == "drop":
            self.kv.forget(r, n)
        self.kv.release(r)
        if kind != "preempt":
            talk.turn = None
            talk.length = max(talk.length, talk.room) + n
        talk.room = 0

    def _name_all(self, r: Request) -> None:
        if r.cached > len(r.keys):
            assert r.chain is not None
            self.kv.keep(r, self.names.names(r.chain, r.cached * self.kv.block_size))

    def reach(self) -> list[int]:
        """How many leading blocks each one's next turn would hit."""
        return [self.kv.match(talk.ask(self.names)) for talk in self.talks if not talk.room]

    def drain(self) -> list[tuple[int, list[int]]]:
        """Take the free blocks one by one: the order of eviction, as those see it who lose their blocks."""
        seen = []
        while self.kv.free:
            self.kv.take(1)
            seen.append((self.kv.free, self.reach()))
        return seen


@settled(150)
@given(CALLS, st.integers(1, 90), st.integers(1, 4), st.sampled_from([0.0, 0.2]))
def test_runs_answer_as_single_blocks_do(calls: list[Call], blocks: int, size: int, mark: float) -> None:
    names = BlockNames(size)
    single, runs = Bench(KVCache(blocks, size, True, mark), names), Bench(RunCache(blocks, size, True, mark), names)
    for call in calls:
        assert single.call(*call) == runs.call(*call), call
        assert single.reach() == runs.reach(), call
        assert_same_sharing(single, runs)
        assert_sound(runs)
    assert single.drain() == runs.drain()


def assert_same_sharing(single: Bench, runs: Bench) -> None:
    """Both count the blocks that several hold as one finds them by going through all."""
    assert isinstance(runs.kv, RunCache)
    known = [run for family in runs.kv._families.values() for run in family if run.users > 1]
    several = sum(run.end - run.first for run in known)
    again = sum((run.users - 1) * (run.end - run.first) for run in known)
    for kv in (single.kv, runs.kv):
        assert (kv.sharing.several, kv.sharing.again) == (several, again)


def assert_sound(bench: Bench) -> None:
    """Free blocks are those in the queue, users are those who hold, and no run is empty or in two places."""
    kv = bench.kv
    assert isinstance(kv, RunCache)
    queued = queue_of(kv)
    named = [run for run in queued if run.family is not None]
    if named:
        assert sum(run.end - run.first for run in queued) == kv.free
    known = [run for family in kv._families.values() for run in family]
    assert len(set(map(id, known))) == len(known)
    assert {id(run) for run in known if not run.users} == {id(run) for run in named}
    assert all(run.first < run.end for run in (*known, *queued))
    held = sum(talk.turn.blocks for talk in bench.talks if talk.turn is not None and talk.room)
    shared = sum((run.users - 1) * (run.end - run.first) for run in known if run.users)
    assert held - shared + kv.free == kv.total


def queue_of(kv: RunCache) -> list[BlockRun]:
    """The free queue, next victim first."""
    found = []
    run = kv._queue.after
    while run is not kv._queue:
        found.append(run)
        run = run.after
    return found


def asking(index: int, blocks: int) -> Request:
    """A request of so many blocks and a token, that all share."""
    return Request(index, 0.0, 4 * blocks + 1, 8, keys=Names([range(blocks)]))


def test_a_conversation_is_one_run_however_often_it_is_split() -> None:
    kv = RunCache(1000, 4, caching=True)
    for turn in range(1, 30):
        whole, part = asking(2 * turn, 8 * turn), asking(2 * turn + 1, 3)
        for r in (part, whole):
            assert kv.admit(r, kv.match(r), r.prompt, 0, watermark=False)
            kv.complete(r, r.prompt)
        kv.release(whole)
        kv.release(part)
    assert [run.end - run.first for run in queue_of(kv) if run.family is not None] == [8 * 29]
    kv.take(kv.free - 8 * 29 + 1)
    assert kv.match(asking(99, 8 * 29)) == 8 * 29 - 1


def test_of_equal_blocks_those_are_hit_that_were_complete_first() -> None:
    kv = RunCache(12, 4, caching=True)
    first, second, other = asking(0, 4), asking(1, 4), Request(2, 0.0, 8, 8, keys=Names([range(50, 52)]))
    for r, tokens in ((first, 16), (second, 16), (other, 8)):
        assert kv.admit(r, 0, tokens, 0, watermark=False)
    for r, tokens in ((first, 8), (second, 16), (first, 16), (other, 8)):
        kv.complete(r, tokens)
    for r in (first, other, second):
        kv.release(r)
    third = asking(3, 4)
    assert kv.admit(third, 4, 16, 0, watermark=False)  # two blocks of the first, two of the second
    kv.take(4)  # two that never had content and the first one's other two
    assert kv.match(Request(4, 0.0, 9, 8, keys=Names([range(50, 52)]))) == 2


def test_a_run_that_others_share_in_part_is_found_again_whole() -> None:
    kv = RunCache(20, 4, caching=True)
    first, second = (Request(i, 0.0, n, 8, keys=Names([range(n // 4)])) for i, n in ((0, 40), (1, 17)))
    assert kv.admit(first, 0, 40, 0, watermark=False)
    kv.complete(first, 40)
    assert kv.match(second) == 4 and kv.admit(second, 4, 17, 0, watermark=False)
    assert kv.free == 9
    kv.release(first)
    assert kv.free == 15  # all but what the second uses
    kv.release(second)
    assert kv.free == 20 and kv.match(Request(2, 0.0, 41, 8, keys=Names([range(10)]))) == 10


NAMES = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 6)), max_size=4)


@given(NAMES, st.integers(-30, 30), st.integers(-30, 30))
def test_names_are_a_sequence_as_any_other(parts: list[tuple[int, int]], first: int, last: int) -> None:
    names = Names([range(100 * begin, 100 * begin + count) for begin, count in parts])
    plain = [100 * begin + i for begin, count in parts for i in range(count)]
    assert (list(names), len(names), list(reversed(names))) == (plain, len(plain), plain[::-1])
    assert list(names[first:last]) == plain[first:last] and list(names[:last]) == plain[:last]
    if -len(plain) <= first < len(plain):
        assert names[first] == plain[first]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=3).map(tuple),
    st.integers(1, 5),
    st.integers(0, 40),
    st.integers(0, 12),
)
def test_names_go_on_as_if_asked_for_anew(opening: Chain, size: int, tokens: int, more: int) -> None:
    names, chain = BlockNames(size), extend(opening, 9)
    known = names.names(chain, tokens)
    blocks = len(known) + more
    assert list(names.continued(known, chain, blocks)) == list(names.names(chain, blocks * size))
