"""The counted KV cache against one that keeps every block as an object, in vLLM's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.engine import BlockNames, Chain, Engine, Limits, Request, extend
from steelyard.engine.content import Names
from steelyard.engine.kv import KVCache
from steelyard.engine.kv_runs import RunCache
from steelyard.validate.parity import LinearCost
from support.engine_worlds import Ask, World, serve, settled, vectorised_from, vllm, worlds

# -- the reference ----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class PlainBlock:
    """One physical block."""

    name: int | None = None
    users: int = 0


@dataclass
class PlainKV:
    """A prefix cache with no short cuts: every block is in a list, every complete block has a name at once.

    It answers the calls that a scheduler makes of `KVCache`, for engines on the plain path.
    """

    total: int
    block_size: int
    caching: bool
    watermark: int
    names: BlockNames
    queue: list[PlainBlock] = field(default_factory=list)  # free blocks, next victim first
    table: dict[int, list[PlainBlock]] = field(default_factory=dict)  # by name, oldest first
    own: dict[int, list[PlainBlock]] = field(default_factory=dict)  # by request index

    def __post_init__(self) -> None:
        self.queue.extend(PlainBlock() for _ in range(self.total))

    @property
    def free(self) -> int:
        return len(self.queue)

    def match(self, r: Request) -> int:
        hits = 0
        for name in r.keys[: (r.prompt + r.outputs - 1) // self.block_size]:
            if name not in self.table:
                break
            hits += 1
        return hits

    def admit(self, r: Request, found: int, tokens: int, whole: int, watermark: bool) -> bool:
        hits = [self.table[name][0] for name in r.keys[:found]]
        spare = self.free - sum(1 for block in hits if not block.users) - (self.watermark if watermark else 0)
        if self._blocks(max(tokens, whole)) - len(hits) > spare:
            return False
        for block in hits:
            if not block.users:
                self.queue.remove(block)
            block.users += 1
        self.own[r.index] = list(hits)
        r.cached = len(hits)
        self._take(r, self._blocks(tokens) - len(hits))
        return True

    def grow(self, r: Request, tokens: int) -> bool:
        need = self._blocks(tokens) - len(self.own[r.index])
        if need > self.free:
            return False
        self._take(r, need)
        return True

    def complete(self, r: Request, tokens: int) -> None:
        if not self.caching:
            return
        full = tokens // self.block_size
        for i in range(r.cached, full):
            block = self.own[r.index][i]
            block.name = self._name(r, i)
            self.table.setdefault(block.name, []).append(block)
        r.cached = max(r.cached, full)

    def keep(self, r: Request, names: Names) -> None:
        """Blocks have their names already; the request only learns them, to find its own blocks again."""
        if len(names) > len(r.keys):
            r.keys = names

    def release(self, r: Request) -> None:
        unnamed: list[PlainBlock] = []
        named: list[PlainBlock] = []
        for block in reversed(self.own.pop(r.index)):
            block.users -= 1
            if not block.users:
                (unnamed if block.name is None else named).append(block)
        self.queue[:0] = unnamed
        self.queue.extend(named)
        r.blocks = r.cached = 0

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _name(self, r: Request, i: int) -> int:
        if r.chain is not None:
            return self.names.names(r.chain, (i + 1) * self.block_size)[i]
        return r.keys[i] if i < len(r.keys) else -((r.index + 1) << 24) + i

    def _take(self, r: Request, count: int) -> None:
        for _ in range(count):
            block = self.queue.pop(0)
            if block.name is not None:
                twins = self.table[block.name]
                twins.remove(block)
                if not twins:
                    del self.table[block.name]
                block.name = None
            block.users = 1
            self.own[r.index].append(block)
        r.blocks = len(self.own[r.index])


def with_plain_kv(engine: Engine, names: BlockNames) -> None:
    """Give an engine the reference cache."""
    kv = vllm(engine).kv
    plain = PlainKV(kv.total, kv.block_size, kv.caching, kv.watermark, names)
    vllm(engine).kv = cast(KVCache, plain)


# -- whole engine runs ------------------------------------------------------------------------------------------------


@settled(300)
@given(st.one_of(worlds(), worlds(aborts=False), worlds(speculation=True)), st.sampled_from([2, 96]))
def test_an_engine_decides_the_same_with_every_block_an_object(world: World, vector: int) -> None:
    plain = serve(world, plain=True, prepare=with_plain_kv)
    with vectorised_from(vector):
        fast = serve(world, plain=False)
    for mine, theirs in zip(fast.steps, plain.steps, strict=False):
        assert mine == theirs
    assert len(fast.steps) == len(plain.steps)
    assert fast.ended == plain.ended
    for i in fast.ended:
        assert fast.row(i) == plain.row(i)


@settled(100)
@given(worlds(most=6, aborts=False))
def test_an_engine_remembers_the_same_afterwards(world: World) -> None:
    """After all requests have ended, each could be repeated and would hit the same blocks."""
    plain = serve(world, plain=True, prepare=with_plain_kv)
    fast = serve(world, plain=False)
    for i in range(len(world.asks)):
        counts = []
        for run in (plain, fast):
            again = world.request(i, 0.0, vllm(run.engine).names)
            counts.append(vllm(run.engine).kv.match(again))
        assert counts[0] == counts[1]


# -- single calls -----------------------------------------------------------------------------------------------------

Call = tuple[str, int, int]
CALLS: st.SearchStrategy[list[Call]] = st.lists(
    st.tuples(
        st.sampled_from(["admit", "admit", "grow", "grow", "complete", "complete", "name", "release"]),
        st.integers(0, 5),
        st.integers(1, 9),
    ),
    min_size=20,
    max_size=60,
)
OPENINGS: list[Chain] = [((0, 40),), ((0, 4), (1, 8)), ((0, 40),), ((0, 4), (1, 8)), ((0, 40),), ()]


class Bench:
    """One cache and its own requests, some with equal prompts, as far as the calls have brought them."""

    def __init__(self, kv: KVCache | RunCache, names: BlockNames) -> None:
        self.kv = kv
        self.names = names
        self.requests = [self._request(i, opening) for i, opening in enumerate(OPENINGS)]
        self.room = [0] * len(OPENINGS)  # tokens that each has blocks for; 0 is not admitted

    def _request(self, i: int, opening: Chain) -> Request:
        chain = extend(opening, 10 + i) if i % 2 else None
        return Request(i, 0.0, 40, 40, keys=self.names.names(chain or opening, 40), chain=chain)

    def call(self, kind: str, i: int, n: int) -> object:
        """Make one call where it is allowed; the answer is whatever a scheduler would see of it."""
        r, kv = self.requests[i], self.kv
        if kind == "admit" and not self.room[i]:
            found = kv.match(r)
            tokens = found * kv.block_size + n
            if kv.admit(r, found, tokens, 2 * n if n > 6 else 0, watermark=n % 2 == 0):
                self.room[i] = tokens
            return found, self.room[i], r.blocks, kv.free
        if not self.room[i]:
            return None
        if kind == "grow" and kv.grow(r, self.room[i] + n):
            self.room[i] += n
        if kind == "complete":
            kv.complete(r, self.room[i] - n % 3)
        if kind == "name" or (kind == "release" and (r.chain is not None or n % 2)):
            self._name_all(r)
        if kind in ("name", "release"):
            kv.release(r)
            self.room[i] = 0
        return self.room[i], r.blocks, r.cached, kv.free

    def _name_all(self, r: Request) -> None:
        """What a scheduler does before a request is preempted, or ends with a stream that others go on with."""
        if r.chain is not None:
            names = self.names.names(r.chain, r.cached * self.kv.block_size)
        else:
            base = -((r.index + 1) << 24)
            own = range(base + len(r.keys), base + r.cached)
            names = Names([*r.keys.ranges, own]) if own else r.keys
        if len(names) > len(r.keys):
            self.kv.keep(r, names)

    def reach(self) -> list[int]:
        """How many leading blocks each request that is not admitted would hit."""
        return [self.kv.match(r) for r, room in zip(self.requests, self.room, strict=True) if not room]

    def drain(self) -> list[tuple[int, list[int]]]:
        """Take the free blocks one by one: the order of eviction, as those see it who lose their blocks."""
        taker = Request(99, 0.0, 1000, 1)
        seen = []
        if self.kv.admit(taker, 0, 1, 0, watermark=False):
            while True:
                seen.append((self.kv.free, self.reach()))
                if not self.kv.grow(taker, (taker.blocks + 1) * self.kv.block_size):
                    break
        return seen


@settled(400)
@given(CALLS, st.integers(1, 30), st.integers(1, 4), st.booleans(), st.sampled_from([0.0, 0.3]))
def test_each_call_answers_the_same(calls: list[Call], blocks: int, size: int, caching: bool, mark: float) -> None:
    names = BlockNames(size)
    plain = PlainKV(blocks, size, caching, int(mark * (blocks + 1)), names)
    caches = KVCache(blocks, size, caching, mark), RunCache(blocks, size, caching, mark), cast(KVCache, plain)
    counted, runs, single = (Bench(kv, names) for kv in caches)
    for call in calls:
        assert counted.call(*call) == single.call(*call) == runs.call(*call), call
        assert counted.reach() == single.reach() == runs.reach(), call
    assert counted.drain() == single.drain() == runs.drain()


# -- by hand ----------------------------------------------------------------------------------------------------------


BOTH = pytest.mark.parametrize("kind", [KVCache, RunCache])
Kind = type[KVCache] | type[RunCache]


def request(i: int, keys: Sequence[int], tokens: int) -> Request:
    return Request(i, 0.0, tokens, 8, keys=Names([range(key, key + 1) for key in keys]))


def run_through(kv: KVCache | RunCache, r: Request) -> None:
    """Compute a whole prompt and let go of it."""
    assert kv.admit(r, kv.match(r), r.prompt, 0, watermark=False)
    kv.complete(r, r.prompt)
    kv.release(r)


@BOTH
def test_tails_are_forgotten_before_heads_and_old_ones_before_new_ones(kind: Kind) -> None:
    kv = kind(6, block_size=4, caching=True)
    run_through(kv, request(0, [1, 2, 3], 13))
    run_through(kv, request(1, [7, 8], 9))
    taker = request(2, [], 8)
    assert kv.admit(taker, 0, 8, 0, watermark=False)  # one block never had content, the other held 3
    assert kv.match(request(3, [1, 2, 3], 13)) == 2
    assert kv.grow(taker, 16)
    assert kv.match(request(3, [1, 2, 3], 13)) == 0
    assert kv.match(request(4, [7, 8], 9)) == 2


@BOTH
def test_a_hit_is_kept_from_eviction(kind: Kind) -> None:
    kv = kind(3, block_size=4, caching=True)
    run_through(kv, request(0, [1, 2], 9))
    sharer = request(1, [1, 2], 9)
    assert kv.admit(sharer, kv.match(sharer), 9, 0, watermark=False)
    assert sharer.cached == 2 and kv.free == 0
    assert not kv.admit(request(2, [], 4), 0, 4, 0, watermark=False)
    kv.release(sharer)
    assert kv.free == 3 and kv.match(request(3, [1, 2], 9)) == 2


@BOTH
def test_equal_content_computed_twice_outlives_one_of_its_blocks(kind: Kind) -> None:
    kv = kind(4, block_size=4, caching=True)
    first, second = request(0, [1], 5), request(1, [1], 5)
    for r in (first, second):  # neither can hit the other: both are admitted before any block is complete
        assert kv.admit(r, 0, 5, 0, watermark=False)
    for r in (first, second):
        kv.complete(r, 5)
        kv.release(r)
    taker = request(2, [], 12)
    assert kv.admit(taker, 0, 12, 0, watermark=False)  # two without content, and the first one's block
    assert kv.match(request(3, [1], 5)) == 1
    assert kv.grow(taker, 16)
    assert kv.match(request(3, [1], 5)) == 0


@BOTH
def test_a_hit_takes_the_block_that_was_complete_first(kind: Kind) -> None:
    kv = kind(4, block_size=4, caching=True)
    equals, other = [request(i, [1], 4) for i in range(3)], request(3, [9], 4)
    for r in (*equals, other):
        assert kv.admit(r, 0, 4, 0, watermark=False)
        kv.complete(r, 4)
    for r in (equals[0], equals[1], other, equals[2]):
        kv.release(r)
    assert kv.admit(request(4, [], 4), 0, 4, 0, watermark=False)  # the oldest goes
    hitter = request(5, [1], 5)
    assert kv.admit(hitter, kv.match(hitter), 5, 0, watermark=False)  # takes the second, and a new block
    assert kv.match(request(6, [9], 5)) == 0
    assert kv.free == 1 and kv.match(request(7, [1], 5)) == 1


@BOTH
def test_the_last_token_is_always_computed(kind: Kind) -> None:
    kv = kind(8, block_size=4, caching=True)
    run_through(kv, request(0, [1, 2], 8))
    assert kv.match(request(1, [1, 2], 8)) == 1
    assert kv.match(request(2, [1, 2], 9)) == 2


def test_a_conversation_finds_its_own_answer() -> None:
    limits = Limits(64, 256, block_size=4)
    asks = (
        Ask(10, 7, stream=0),
        Ask(20, 3, after=0, content=((0, 17),), stream=0),
        Ask(20, 3, after=1, content=((0, 17),), stream=1),
        Ask(30, 3, after=2, content=((0, 23),), stream=0),
    )
    run = serve(World(limits, LinearCost(1.0, 0.0, 0.0), asks), plain=False)
    assert [run.row(i)["hit"] for i in range(4)] == [0, 16, 16, 20]


# -- names ------------------------------------------------------------------------------------------------------------

CHAINS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=4).map(tuple)


@settled(300)
@given(CHAINS, CHAINS, st.integers(1, 5), st.integers(0, 30), st.integers(0, 30))
def test_names_are_equal_where_tokens_up_to_there_are(one: Chain, other: Chain, size: int, n: int, m: int) -> None:
    names = BlockNames(size)
    one, other = apart(one), apart(other)
    mine, theirs = names.names(one, n), names.names(other, m)
    tokens, others = spelled(one)[:n], spelled(other)[:m]
    assert (len(mine), len(theirs)) == (len(tokens) // size, len(others) // size)
    for i, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        end = (i + 1) * size
        assert (a == b) == (tokens[:end] == others[:end])


def apart(chain: Chain) -> Chain:
    """A chain in which no stream follows itself, as nothing would tell where one ends."""
    return tuple(part for i, part in enumerate(chain) if not i or chain[i - 1][0] != part[0])


def spelled(chain: Chain) -> list[tuple[int, int]]:
    """A chain's tokens: each is known by its stream and its place there."""
    return [(stream, k) for stream, length in chain for k in range(length)]
