"""Small random engine worlds, and a plain way to run one, for the engine, KV and fleet tests."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import inf
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from steelyard.cost import GraphPlan
from steelyard.cost.kernels import ExpertKernel, FirstUses, Kernel
from steelyard.cost.step import StepTime
from steelyard.engine import FINISHED, BlockNames, Chain, Engine, EngineLog, Limits, Pipeline, Request, StepCost, extend
from steelyard.engine.batch import Batch
from steelyard.engine.content import Names
from steelyard.engine.scheduler import Scheduler
from steelyard.engine.tiers import Tiers
from steelyard.validate.parity import LinearCost
from steelyard.workload import Workload

Watched = tuple[float, dict[int, int], list[int], int]
Seen = tuple[float, float, dict[int, int], list[int], int]
MOST_STEPS = 60_000  # far more than any of these worlds needs; a run that gets there never ends


# -- what a step costs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PiecewiseCost:
    """Decode time in many linear pieces over the cached tokens; rising unless ``fall`` is set.

    Seconds are not dyadic and chunks are added up one by one, so that another order of adding shows in the last bit.
    ``host`` seconds a decode step, most of them between the first and the last kernel where ``streamed``; then other
    steps take more than twice as long to launch, and else less, so that they hide the host or do not.
    """

    width: int
    fall: bool = False
    host: float = 0.0
    streamed: bool = False

    def decode_line(self, n: int, kv: int, longest: int) -> tuple[float, float, int]:
        piece = kv // self.width
        rank = piece % 3 if self.fall else min(piece, 5)
        uneven = 0.0003 * (n * longest - kv)
        return 0.1 + 0.013 * n + 0.07 * rank + uneven, 0.0007 * (1 + rank), (piece + 1) * self.width - 1

    def decode_host(self, n: int) -> tuple[float, float, float]:
        if self.streamed:
            return 0.3 * self.host, (0.7 + 0.01 * n) * self.host, 0.03
        return (1 + 0.01 * n) * self.host, 0.0, 0.0

    def mixed(self, n: int, kv: int, longest: int, chunks: list[tuple[int, int]]) -> StepTime:
        seconds = 0.3 + 0.013 * n + 0.0011 * kv + 0.0003 * (n * longest - kv)
        for tokens, before in chunks:
            seconds += 0.01 * tokens + 0.0003 * tokens * before
        return StepTime(seconds, 0.3 * self.host, (2.2 if self.streamed else 0.4) * self.host, 0.04)


@dataclass(frozen=True)
class TwoKinds:
    """One time for every decode-only step and one for every other, for timelines computed by hand."""

    decode: StepTime
    other: StepTime

    def decode_line(self, n: int, kv: int, longest: int) -> tuple[float, float, int]:
        return self.decode.gpu, 0.0, 1 << 60

    def decode_host(self, n: int) -> tuple[float, float, float]:
        return self.decode.prepare, self.decode.launch, self.decode.tail

    def mixed(self, n: int, kv: int, longest: int, chunks: list[tuple[int, int]]) -> StepTime:
        return self.other


@dataclass
class NotedCost:
    """A cost that records the time of each step, in order; a plain engine asks once per step."""

    cost: StepCost
    times: list[StepTime] = field(default_factory=list)

    def decode_line(self, n: int, kv: int, longest: int) -> tuple[float, float, int]:
        a, b, kv_max = self.cost.decode_line(n, kv, longest)
        self.times.append(StepTime(a + b * kv, *self.cost.decode_host(n)))
        return a, b, kv_max

    def decode_host(self, n: int) -> tuple[float, float, float]:
        return self.cost.decode_host(n)

    def mixed(self, n: int, kv: int, longest: int, chunks: list[tuple[int, int]]) -> StepTime:
        self.times.append(self.cost.mixed(n, kv, longest, chunks))
        return self.times[-1]


@dataclass(frozen=True)
class Start:
    """A fresh engine: kernels that alternate every three tokens, and a graph up to some size."""

    kernels: str
    top_k: int
    captured: int
    seconds: float

    def experts(self, most: int) -> ExpertKernel:
        """The kernel by a step's tokens."""
        kernels = [Kernel(name) for name in self.kernels]
        return ExpertKernel([kernels[tokens // 3 % len(kernels)] for tokens in range(most + 1)], self.top_k, 16)

    def first_uses(self, most: int) -> FirstUses:
        """What an engine keeps that runs ``most`` tokens at once and did so when it started."""
        graphs = GraphPlan((self.captured,) if self.captured else (), "whole", "pieces")
        return FirstUses([self.experts(most)], graphs, [most], self.seconds)


# -- who asks for what -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ask:
    """One request as a user would put it; ``after`` is the ask whose end it waits for (then ``at`` is unused)."""

    prompt: int
    output: int
    at: float = 0.0
    after: int = -1
    think: float = 0.0
    priority: int = 0
    abort: float = inf
    content: Chain = ()
    stream: int = -1
    accept: tuple[int, ...] = ()


@dataclass(frozen=True)
class World:
    """An engine's settings, what its steps cost, and everything that is asked of it (roots in order of time)."""

    limits: Limits
    cost: StepCost
    asks: tuple[Ask, ...]
    start: Start | None = None  # None: has served for long

    @property
    def reactive(self) -> bool:
        """Whether a completion can cause an arrival."""
        return any(ask.after >= 0 for ask in self.asks)

    def output(self, i: int) -> int:
        """Tokens that ask ``i`` gets: vLLM stops at the model's length."""
        ask = self.asks[i]
        return min(ask.output, max(self.limits.max_model_len - ask.prompt, 1))

    def request(self, i: int, at: float, names: BlockNames) -> Request:
        """Ask ``i`` as the engine's own kind of request."""
        ask = self.asks[i]
        chain = extend(ask.content, ask.stream) if ask.stream >= 0 else None
        caching = self.limits.enable_prefix_caching
        r = Request(
            i,
            at,
            ask.prompt,
            self.output(i),
            ask.priority,
            keys=names.names(chain or ask.content, ask.prompt) if caching else Names(),
            chain=chain if caching else None,
            accept=ask.accept or None,
        )
        r.phase = int(ask.priority > 0)  # who comes later counts as planning
        return r

    def refusal(self, i: int) -> str | None:
        """Why ask ``i`` can never be served."""
        return self.limits.refusal(self.asks[i].prompt, self.asks[i].output)

    def workload(self) -> Workload:
        """The same asks as the columns that the fleet reads."""
        asks = self.asks
        streams = 1 + max([ask.stream for ask in asks] + [s for ask in asks for s, _ in ask.content], default=-1)
        work = Workload(
            at=np.array([ask.at if ask.after < 0 else np.nan for ask in asks]),
            prompt=np.array([ask.prompt for ask in asks], dtype=np.int64),
            output=np.array([ask.output for ask in asks], dtype=np.int64),
            after=np.array([ask.after for ask in asks], dtype=np.int64),
            think=np.array([ask.think for ask in asks]),
            priority=np.array([ask.priority for ask in asks], dtype=np.int64),
            abort=np.array([ask.abort for ask in asks]),
            stream=np.array([ask.stream for ask in asks], dtype=np.int64),
            content=[ask.content for ask in asks] if streams else None,
            accept=[ask.accept for ask in asks] if any(ask.accept for ask in asks) else None,
            label=np.zeros(len(asks), dtype=np.int64),
            labels=["world"],
            streams=streams,
        )
        work.validate()
        return work


# -- running one engine through a world ------------------------------------------------------------------------------


@dataclass
class Seer:
    """An observer that keeps every step, and stops an engine that never ends."""

    steps: list[Watched] = field(default_factory=list)

    def step(self, scheduled_at: float, tokens: dict[int, int], preempted: list[int], free: int) -> None:
        assert len(self.steps) < MOST_STEPS, "the engine never gets done"
        self.steps.append((scheduled_at, dict(tokens), list(preempted), free))


@dataclass(frozen=True)
class Brought:
    """What one step's result delivered to one request."""

    index: int
    step: int
    tokens: int
    rejected: int  # drafts that were turned down
    delivered: int
    clipped: int  # accepted beyond the end of the output
    wasted: bool  # the request had ended before


@dataclass
class Run:
    """One engine after a whole world, with what was noted on the way."""

    engine: Engine
    world: World
    seer: Seer | None
    brought: list[Brought] = field(default_factory=list)
    arrival: dict[int, float] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)  # indices, in order of their ends
    end: dict[int, float] = field(default_factory=dict)
    refused: list[int] = field(default_factory=list)

    @property
    def steps(self) -> list[Seen]:
        """Every step that was observed, with its end."""
        assert self.seer is not None
        ends = self.engine.log.steps()["end"].tolist()
        return [(step[0], end, *step[1:]) for step, end in zip(self.seer.steps, ends, strict=True)]

    def row(self, i: int) -> dict[str, float]:
        """What the engine wrote down about request ``i`` when it ended: status, steps of its tokens, and so on."""
        ended = self.engine.log.ended
        place = ended["index"].tolist().index(i)
        return {name: column[place].item() for name, column in ended.items()}


def serve(
    world: World,
    *,
    plain: bool,
    watch: bool = True,
    tiers: Tiers | None = None,
    prepare: Callable[[Engine, BlockNames], None] | None = None,
    costs: Sequence[StepCost] = (),
) -> Run:
    """Run one engine through a world; ``prepare`` may exchange its parts before the first request.

    With ``costs`` of its own for each stage, the engine is a pipeline.
    """
    names = BlockNames(world.limits.block_size)
    seer = Seer() if watch else None
    start = world.start
    uses = None if start is None else start.first_uses(world.limits.max_num_batched_tokens)
    engine = (
        Pipeline(world.limits, costs, names, reactive=world.reactive, plain=plain, observer=seer)
        if costs
        else Engine(
            world.limits,
            world.cost,
            names,
            first_uses=uses,
            tiers=tiers,
            reactive=world.reactive,
            plain=plain,
            observer=seer,
        )
    )
    run = Run(engine, world, seer)
    if prepare is not None:
        prepare(engine, names)
    if plain:
        _note_tokens(engine, run.brought)
    followers: dict[int, list[int]] = defaultdict(list)
    for i, ask in enumerate(world.asks):
        followers[ask.after].append(i)
    pending = [(world.asks[i].at, i) for i in followers[-1]]
    heapify(pending)
    while pending or not engine.idle:
        engine.advance(pending[0][0] if pending else inf)
        if engine.finished:
            for r in engine.finished:
                run.ended.append(r.index)
                end = run.end[r.index] = engine.end_of(r)
                for child in followers[r.index]:
                    heappush(pending, (end + world.asks[child].think, child))
            engine.finished.clear()
        elif pending:
            now, i = heappop(pending)
            run.arrival[i] = now
            if world.refusal(i) is None:
                engine.submit(world.request(i, now, names), now, now + world.asks[i].abort)
                continue
            run.refused.append(i)
            for child in followers[i]:
                heappush(pending, (now + world.asks[child].think, child))
    return run


def vllm(engine: Engine) -> Scheduler:
    """An engine's scheduler, which is vLLM's."""
    assert isinstance(engine.scheduler, Scheduler)
    return engine.scheduler


def _note_tokens(engine: Engine, brought: list[Brought]) -> None:
    """Record what a plain scheduler delivers with each result."""
    update, ends = engine.scheduler.update, engine.log.ends

    def noting(batch: Batch) -> list[Request]:
        step = bisect_left(ends, batch.end)
        before = [(entry, entry.request.outputs, entry.request.status) for entry in batch.entries]
        ended = update(batch)
        for entry, outputs, status in before:
            r = entry.request
            delivered = r.outputs - outputs
            wasted = status >= FINISHED
            took_part = bool(entry.sampled) and not wasted
            brought.append(
                Brought(
                    r.index,
                    step,
                    entry.tokens,
                    entry.drafts + 1 - entry.sampled if took_part else 0,
                    delivered,
                    entry.sampled - delivered if took_part else 0,
                    wasted,
                )
            )
        return ended

    engine.scheduler.update = noting  # type: ignore[method-assign]


def assert_same_records(one: EngineLog, other: EngineLog) -> None:
    """All that a log keeps per request and the time of every step, to the last bit."""
    assert one.ends == other.ends
    assert one.restarts == other.restarts
    for name, column in one.ended.items():
        assert column.tolist() == other.ended[name].tolist(), name
    assert one.given_up == other.given_up
    assert sorted(one.breaks) == sorted(other.breaks)


@contextmanager
def vectorised_from(steps: int) -> Iterator[None]:
    """Take the vectorised path for stretches of so few steps already, in pieces that are no longer than seven."""
    name = "steelyard.engine.stretch."
    with patch(name + "_VECTOR_STEPS", steps), patch(name + "_MOST_STEPS", 7):
        yield


def settled(examples: int) -> settings:
    """Hypothesis settings: the same examples on every run."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    return settings(max_examples=examples, derandomize=True, database=None, suppress_health_check=slow)


# -- strategies ------------------------------------------------------------------------------------------------------

_GRID = st.integers(0, 24).map(float)
_ANYWHEN = st.floats(0, 12, allow_nan=False).map(lambda t: round(t, 3))
_ENDLESS = st.just(inf)
_LIMITED = st.sampled_from([inf, inf, inf, 0.25, 1.0, 2.0, 5.5, 9.0])
_LINEAR = st.sampled_from(
    [
        LinearCost(1.0, 0.0, 0.0),
        LinearCost(0.5, 0.25, 0.0),
        LinearCost(0.1, 0.013, 0.0007),
        LinearCost(0.01, 0.001, 1e-5),
    ]
)
_HOSTS = st.sampled_from([0.0, 0.07, 0.19, 0.31, 0.9])  # hidden behind the GPU, sometimes, never
_QUARTERS = st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0])  # of which many moments fall together
_TIMES = st.builds(  # every field is named: what is left out, hypothesis draws as any float
    StepTime,
    gpu=st.sampled_from([0.25, 0.5, 1.0, 4.0]),
    prepare=_QUARTERS,
    launch=_QUARTERS,
    tail=st.just(0.25),
    hindered=st.just(0.0),
    slowed=st.sampled_from([0.0, 0.125]),
)
RISING_COSTS: st.SearchStrategy[StepCost] = st.one_of(
    _LINEAR,
    st.builds(TwoKinds, _TIMES, _TIMES),
    st.builds(PiecewiseCost, st.integers(1, 40), host=_HOSTS, streamed=st.booleans()),
)
ANY_COSTS: st.SearchStrategy[StepCost] = st.one_of(
    RISING_COSTS, st.builds(PiecewiseCost, st.integers(1, 40), st.just(True), host=_HOSTS, streamed=st.booleans())
)

STARTS = st.builds(
    Start,
    st.sampled_from(["a", "ab", "abcdefgh"]),
    st.sampled_from([1, 2, 8, 16]),
    st.sampled_from([0, 0, 2, 6]),
    st.sampled_from([0.13, 1.0, 7.7]),
)


@st.composite
def ask_lists(
    draw: st.DrawFn, *, most: int = 10, followers: bool = True, aborts: bool = True, drafts: int = 0
) -> tuple[Ask, ...]:
    """Requests that come alone and in bursts, share openings, go on with conversations, branch, and give up."""
    times = draw(st.sampled_from([st.just(0.0), st.sampled_from([0.0, 1.0, 2.5]), _GRID, _ANYWHEN]))
    lengths = draw(st.sampled_from([st.integers(1, 12), st.integers(1, 40)]))
    outputs = draw(st.sampled_from([st.integers(1, 6), st.integers(5, 40), st.sampled_from([1, 2, 3, 60, 150])]))
    joins = draw(st.sampled_from([0, 1, 3])) if followers else 0  # of four asks this many wait for another's end
    patience = draw(st.sampled_from([_ENDLESS, _ENDLESS, _LIMITED])) if aborts else _ENDLESS
    sharing = draw(st.sampled_from(["nothing", "openings", "conversations"]))
    asks: list[Ask] = []
    continued: set[int] = set()  # asks whose stream somebody goes on with already
    streams = 4  # 0..3 are the openings
    for i in range(draw(st.sampled_from([1, *range(3, most + 1)]))):
        after = draw(st.integers(0, i - 1)) if i and draw(st.integers(1, 4)) <= joins else -1
        ask = Ask(
            prompt=draw(lengths),
            output=draw(outputs),
            at=draw(times) if after < 0 else 0.0,
            after=after,
            think=draw(st.sampled_from([0.0, 0.0, 0.5, 3.0])) if after >= 0 else 0.0,
            priority=draw(st.integers(0, 2)),
            abort=draw(patience),
            accept=tuple(draw(st.lists(st.integers(0, drafts), max_size=3))) if drafts else (),
        )
        content: Chain = ()
        stream = -1
        if sharing != "nothing":
            content, ask = _with_opening(draw, ask)
        if sharing == "conversations":
            parent = asks[after] if after >= 0 else None
            if parent is not None and parent.stream >= 0:
                content, ask = _continued(parent, ask)
                if after not in continued and draw(st.booleans()):
                    continued.add(after)
                    stream = parent.stream
            if stream < 0 and draw(st.booleans()):
                stream, streams = streams, streams + 1
        asks.append(replace(ask, content=content, stream=stream))
    return _in_order(asks)


def _with_opening(draw: st.DrawFn, ask: Ask) -> tuple[Chain, Ask]:
    """One or two shared segments in front of the prompt, sometimes all of it."""
    kind = draw(st.integers(0, 3))
    system = (0, draw(st.sampled_from([4, 16, 17, 32])))
    content: Chain = ((), (system,), (system, (draw(st.integers(1, 3)), draw(st.integers(1, 24)))), ((1, 20),))[kind]
    shared = sum(tokens for _, tokens in content)
    own = draw(st.sampled_from([0, ask.prompt])) if shared else ask.prompt
    return content, replace(ask, prompt=shared + own)


def _continued(parent: Ask, ask: Ask) -> tuple[Chain, Ask]:
    """A prompt that opens with everything its parent asked and was answered."""
    lead = tuple(part for part in parent.content if part[0] != parent.stream)
    whole = parent.prompt + parent.output
    rest = whole - sum(tokens for _, tokens in lead)
    return (*lead, (parent.stream, rest)), replace(ask, prompt=whole + ask.prompt)


def _in_order(asks: list[Ask]) -> tuple[Ask, ...]:
    """Sort roots' times among the roots, so that rows stay where followers expect them."""
    times = iter(sorted(ask.at for ask in asks if ask.after < 0))
    return tuple(replace(ask, at=next(times)) if ask.after < 0 else ask for ask in asks)


@st.composite
def limits_for(draw: st.DrawFn, asks: tuple[Ask, ...], *, drafts: int = 0, everyone_fits: bool = True) -> Limits:
    """Settings under which blocks and budget are scarce; nobody is refused unless that is allowed."""
    size = draw(st.sampled_from([1, 2, 2, 3, 4, 4, 8, 16]) | st.integers(1, 16))
    longest = max(ask.prompt + ask.output for ask in asks)
    prompts = max(ask.prompt for ask in asks)
    length = longest + drafts + 1
    if draw(st.integers(0, 4)) == 0:
        length = draw(st.integers(prompts + 1, longest + 1))
    need = -(-min(longest - 1 + drafts, length) // size)
    fewest = need if everyone_fits else max(1, need // 2)
    chunked = draw(st.booleans()) or not everyone_fits
    least = max(1 + drafts, 1 if chunked else longest + drafts)
    return Limits(
        blocks=fewest + draw(st.sampled_from([0, 0, 0, 1, 2, need // 2, 4 * need])),
        max_model_len=length,
        block_size=size,
        max_num_seqs=draw(st.sampled_from([1, 2, 3, 4, 5, 8, 8])),
        max_num_batched_tokens=least + draw(st.sampled_from([0, 1, 3, 8, 20, 64, 200])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 1, 3, 5, 16])) if chunked else 0,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=draw(st.sampled_from([True, True, False])),
        priority=draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
        reserve_full_prompt=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1, 0.5])),
        speculative_tokens=drafts,
    )


@st.composite
def worlds(
    draw: st.DrawFn,
    *,
    most: int = 10,
    followers: bool = True,
    aborts: bool = True,
    speculation: bool = False,
    everyone_fits: bool = True,
    equals: bool = False,
    fresh: bool = False,
    costs: st.SearchStrategy[StepCost] = ANY_COSTS,
) -> World:
    """A whole world: asks, an engine that is a little too small for them, and what steps cost."""
    drafts = draw(st.integers(1, 3)) if speculation else 0
    asks = draw(ask_lists(most=most, followers=followers, aborts=aborts, drafts=drafts))
    limits = draw(limits_for(asks, drafts=drafts, everyone_fits=everyone_fits))
    scarce = limits.blocks * limits.block_size < sum(ask.prompt + ask.output + 32 for ask in asks)
    if limits.priority and scarce and not equals:
        # Equals can preempt each other until the engine gives one of them up; with ranks somebody always gets on.
        ranks = draw(st.permutations(range(len(asks))))
        asks = tuple(replace(ask, priority=rank) for ask, rank in zip(asks, ranks, strict=True))
    return World(limits, draw(costs), asks, draw(STARTS) if fresh else None)


@st.composite
def crowds(draw: st.DrawFn) -> World:
    """Many short requests around a long prompt, more than a step has tokens for or the pool has blocks for."""
    start = st.sampled_from([0.0, 0.0, 1.0, 3.0])
    shorts = st.builds(Ask, prompt=st.integers(1, 4), output=st.integers(2, 30), at=start)
    longs = st.builds(Ask, prompt=st.integers(15, 40), output=st.integers(2, 30), at=start)
    asks = draw(st.lists(shorts, min_size=2, max_size=9)) + draw(st.lists(longs, min_size=1, max_size=3))
    ranks = draw(st.permutations(range(len(asks))))
    ordered = _in_order([replace(asks[rank], priority=rank) for rank in draw(st.permutations(ranks))])
    size = draw(st.integers(1, 4))
    longest = max(ask.prompt + ask.output for ask in asks)
    limits = Limits(
        blocks=-(-longest // size) + draw(st.integers(0, 12)),
        max_model_len=longest + 1,
        block_size=size,
        max_num_seqs=draw(st.integers(3, 9)),
        max_num_batched_tokens=draw(st.integers(1, 9)),
        long_prefill_token_threshold=draw(st.integers(0, 5)),
        enable_prefix_caching=draw(st.booleans()),
        priority=draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
        reserve_full_prompt=draw(st.booleans()),
    )
    return World(limits, draw(ANY_COSTS), ordered)
