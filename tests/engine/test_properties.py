"""What must hold of an engine in any world: the fast path equals the plain one, and nothing is lost or invented."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf, nextafter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.cost.shared_reads import SharedReads
from steelyard.cost.step import StepTime
from steelyard.engine import ABORTED, FINISHED, REJECTED, BlockNames, BriefLog, Engine, EngineLog, Limits, Request
from steelyard.validate.parity import LinearCost
from support.engine_worlds import (
    RISING_COSTS,
    Ask,
    NotedCost,
    PiecewiseCost,
    Run,
    Start,
    TwoKinds,
    World,
    assert_same_records,
    crowds,
    serve,
    settled,
    vectorised_from,
    vllm,
    worlds,
)

ANY_WORLD = st.one_of(worlds(), worlds(), worlds(speculation=True))
DIFFERENTIAL = st.one_of(ANY_WORLD, worlds(equals=True), crowds(), worlds(fresh=True))
SHORT_STRETCHES = st.sampled_from([2, 5, 96])


# -- the fast path ----------------------------------------------------------------------------------------------------


@settled(400)
@given(DIFFERENTIAL, SHORT_STRETCHES)
def test_fast_path_takes_the_same_steps(world: World, vector: int) -> None:
    with vectorised_from(vector):
        fast = serve(world, plain=False)
    plain = serve(world, plain=True)
    for mine, theirs in zip(fast.steps, plain.steps, strict=False):
        assert mine == theirs
    assert len(fast.steps) == len(plain.steps)
    assert (fast.ended, fast.end, fast.arrival) == (plain.ended, plain.end, plain.arrival)
    assert_same_records(fast.engine.log, plain.engine.log)


@settled(400)
@given(DIFFERENTIAL, SHORT_STRETCHES)
def test_fast_path_takes_the_same_steps_when_nobody_looks(world: World, vector: int) -> None:
    with vectorised_from(vector):
        fast = serve(world, plain=False, watch=False)
    plain = serve(world, plain=True, watch=False)
    assert (fast.ended, fast.end, fast.arrival) == (plain.ended, plain.end, plain.arrival)
    assert_same_records(fast.engine.log, plain.engine.log)
    mine, theirs = fast.engine.log.steps(), plain.engine.log.steps()
    for name in set(mine) - {"free_blocks"}:
        assert mine[name].tolist() == theirs[name].tolist(), name
    stretches = fast.engine.log.stretches()
    first = stretches["step"]
    assert stretches["free_blocks"].tolist() == theirs["free_blocks"][first].tolist()


@settled(100)
@given(DIFFERENTIAL)
def test_a_brief_log_changes_nothing(world: World) -> None:
    mine = BriefLog()

    def keep_little(engine: Engine, _: BlockNames) -> None:
        engine.log = mine

    whole = serve(world, plain=False, watch=False)
    brief = serve(world, plain=False, watch=False, prepare=keep_little)
    assert (brief.ended, brief.end, brief.arrival) == (whole.ended, whole.end, whole.arrival)
    theirs = whole.engine.log
    assert (mine.ends, mine.given_up) == (theirs.ends, theirs.given_up)
    last = [step - 1 for step, _ in theirs.restarts[1:]] + [len(theirs.ends) - 1] * bool(theirs.restarts)
    busy = [start for _, start in theirs.restarts], [theirs.ends[step] for step in last]
    assert tuple(each.tolist() for each in mine.busy()) == busy


def test_a_burst_with_long_tails_is_the_same_bit_for_bit() -> None:
    rng = np.random.default_rng(7)
    outputs = np.minimum(rng.lognormal(5.5, 1.5, size=64).astype(int) + 1, 4096)
    outputs[5] = 4096
    asks = tuple(Ask(int(p), int(o)) for p, o in zip(rng.integers(16, 512, size=64), outputs, strict=True))
    for asynchronous in (False, True):
        for cost in (
            LinearCost(0.011, 3e-5, 7e-8),
            PiecewiseCost(5000),
            PiecewiseCost(5000, host=0.4),  # longer than the GPU's part where few are left, and only there
            PiecewiseCost(5000, host=0.4, streamed=True),
        ):
            limits = Limits(blocks=3000, max_model_len=8192, max_num_seqs=48, async_scheduling=asynchronous)
            world = World(limits, cost, asks)
            fast, plain = (serve(world, plain=plain, watch=False) for plain in (False, True))
            assert_same_records(fast.engine.log, plain.engine.log)
            assert len(fast.engine.log.stretches()["step"]) < len(fast.engine.log.ends) / 10


@settled(150)
@given(worlds(fresh=True), st.booleans())
def test_every_kernel_is_compiled_once_by_whoever_needs_it_first(world: World, plain: bool) -> None:
    run = serve(world, plain=plain)
    assert world.start is not None and run.engine.first_uses is not None
    most = world.limits.max_num_batched_tokens
    kernel = world.start.experts(most)
    sizes = {sum(step[2].values()) for step in run.steps}
    needed = {kernel.at(tokens) for tokens in sizes if tokens > world.start.captured}
    assert run.engine.first_uses.count == len(needed - {kernel.at(most)})


# -- nothing is lost --------------------------------------------------------------------------------------------------


@settled(150)
@given(st.one_of(ANY_WORLD, worlds(everyone_fits=False)), st.booleans())
def test_every_request_ends_once_and_every_block_is_free_again(world: World, plain: bool) -> None:
    run = serve(world, plain=plain)
    everyone = list(range(len(world.asks)))
    assert sorted([*run.ended, *run.refused]) == everyone
    engine, scheduler = run.engine, vllm(run.engine)
    assert sorted(engine.log.ended["index"].tolist()) == sorted(run.ended)
    assert engine.outstanding == 0 and engine.idle
    assert scheduler.kv.free == world.limits.blocks
    assert not scheduler.running and not scheduler.singles and not scheduler.waiting and not scheduler.group.size
    for i in run.ended:
        status = run.row(i)["status"]
        assert status == FINISHED or (status == ABORTED and world.asks[i].abort < inf)
        if status == ABORTED:
            assert run.end[i] >= run.arrival[i] + world.asks[i].abort


def tokens_are_conserved(world: World, _run: Run, plain: Run) -> None:
    for i in plain.ended:
        row = plain.row(i)
        mine = [each for each in plain.brought if each.index == i]
        delivered = sum(each.delivered for each in mine)
        assert all(each.delivered + each.clipped <= each.tokens for each in mine)
        if row["status"] != FINISHED:
            assert delivered < world.output(i)
            continue
        assert delivered == world.output(i)
        if not row["preemptions"]:
            scheduled = sum(tokens.get(i, 0) for _, _, tokens, _, _ in plain.steps)
            lost = sum(each.tokens if each.wasted else each.rejected + each.clipped for each in mine)
            assert scheduled - lost == world.asks[i].prompt - row["hit"] + world.output(i) - 1


def test_no_verify_step_brings_more_tokens_than_it_was_given() -> None:
    """Every prompt but the first is cached up to its last token, which is then padded with drafts to verify."""
    limits = Limits(64, 64, block_size=1, long_prefill_token_threshold=2, speculative_tokens=3, async_scheduling=False)
    asks = tuple(Ask(5, 8, at=10.0 * (i > 0), content=((0, 5),)) for i in range(3))
    run = serve(World(limits, LinearCost(1.0, 0.0, 0.0), asks), plain=True)
    assert [run.row(i)["hit"] for i in range(3)] == [0, 4, 4]
    for each in run.brought:
        assert each.delivered <= each.tokens


def first_and_last_token_are_where_tokens_were_handed_out(_world: World, run: Run, plain: Run) -> None:
    steps = emitting_steps(plain)
    for i in run.ended:
        row = run.row(i)
        expected = steps.get(i, [-1])
        assert (row["first"], row["last"]) == (expected[0], expected[-1])
        if row["status"] == FINISHED:
            assert run.end[i] == run.engine.log.ends[expected[-1]]


def gaps_are_those_between_tokens_of_finished_requests(_world: World, run: Run, plain: Run) -> None:
    steps = emitting_steps(plain)
    ends = run.engine.log.end
    finished = [steps[i] for i in run.ended if run.row(i)["status"] == FINISHED]
    enumerated = [float(ends[b] - ends[a]) for own in finished for a, b in pairwise(own)]
    seconds, count = run.engine.log.gaps()
    assert (count > 0).all()
    assert np.sort(np.repeat(seconds, count)).tolist() == sorted(enumerated)


def emitting_steps(plain: Run) -> dict[int, list[int]]:
    """The steps that brought each request at least one token, from watching the plain engine hand them out."""
    steps: dict[int, list[int]] = {}
    for each in plain.brought:
        if each.delivered:
            steps.setdefault(each.index, []).append(each.step)
    return steps


# -- every single step ------------------------------------------------------------------------------------------------


def time_only_moves_forward(world: World, run: Run, _plain: Run) -> None:
    log = run.engine.log
    start, end = log.start(), log.end
    scheduled = np.array([step[0] for step in run.steps])
    assert (np.diff(scheduled) >= 0).all()
    assert (start < end).all() and (start[1:] >= end[:-1]).all() and (scheduled <= start).all()
    assert (start[:1] == scheduled[:1]).all()
    behind = 2 if world.limits.async_scheduling else 1  # a step is scheduled knowing the results of all but one
    assert (scheduled[behind:] >= end[:-behind]).all()
    for i in run.ended:
        row = run.row(i)
        if row["scheduled"] >= 0:
            assert run.arrival[i] <= row["scheduled"] <= run.end[i]
            first = next(step for step in run.steps if i in step[2])
            assert first[0] == row["scheduled"]


@settled(120)
@given(ANY_WORLD)
def test_host_and_gpu_do_one_thing_at_a_time(world: World) -> None:
    """No result comes before its step was launched and run; neither host nor GPU works on two steps at once."""
    noted = NotedCost(world.cost)
    run = serve(replace(world, cost=noted), plain=True)
    scheduled, end = np.array([step[0] for step in run.steps]), run.engine.log.end
    gpu, prepare, launch, tail = np.array([step[:4] for step in noted.times]).reshape(-1, 4).T
    assert len(gpu) == len(end)
    slack = 1e-9
    launched = scheduled + prepare + launch
    assert (scheduled[1:] >= launched[:-1] - slack).all()
    assert (end >= launched + tail - slack).all()
    # Whichever step one begins with, the GPU has all the work from its first kernel on still to do.
    done = np.cumsum(gpu)
    assert (end >= done + np.maximum.accumulate(scheduled + prepare - (done - gpu)) - slack).all()
    if not world.limits.async_scheduling:
        alone = np.maximum(prepare + gpu, prepare + launch + tail)
        assert np.allclose(end, scheduled + alone, rtol=0, atol=slack), "nothing overlaps"


def no_step_exceeds_the_limits(world: World, run: Run, _plain: Run) -> None:
    limits = world.limits
    running: set[int] = set()
    for _, _, tokens, preempted, free in run.steps:
        assert tokens and all(n > 0 for n in tokens.values())
        assert sum(tokens.values()) <= limits.max_num_batched_tokens
        assert len(tokens) <= limits.max_num_seqs
        assert 0 <= free <= limits.blocks
        running -= set(preempted)
        if preempted:
            assert set(tokens) <= running, "a step that preempted has admitted someone"
        running |= set(tokens)


@settled(150)
@given(worlds())
def test_cached_tokens_are_whole_blocks_short_of_the_prompt(world: World) -> None:
    run = serve(world, plain=False)
    for i in run.ended:
        row = run.row(i)
        assert row["hit"] % world.limits.block_size == 0
        assert 0 <= row["hit"] < world.asks[i].prompt
        if not world.limits.enable_prefix_caching or not (world.asks[i].content or world.asks[i].stream >= 0):
            assert row["hit"] == 0


def the_step_table_tells_what_was_seen(world: World, run: Run, _plain: Run) -> None:
    table, stretches = run.engine.log.steps(), run.engine.log.stretches()
    computed: dict[int, float] = {}
    calm = not run.engine.log.ended["preemptions"].any() and not world.limits.speculative_tokens
    for k, (_, end, tokens, preempted, free) in enumerate(run.steps):
        row = {name: column[k].item() for name, column in table.items()}
        chunks = [n for n in tokens.values() if n > 1]
        assert (row["step"], row["end"], row["n_decode"]) == (k, end, len(tokens) - len(chunks))
        assert (row["prefill_tokens"], row["prefill_requests"]) == (sum(chunks), len(chunks))
        assert row["preempted"] == len(preempted)
        assert len(tokens) <= row["running"] <= world.limits.max_num_seqs
        if k in stretches["step"] or k + 1 in stretches["step"] or k + 1 == len(run.steps):
            assert row["free_blocks"] == free
        for i, n in tokens.items():
            computed[i] = computed.get(i, run.row(i)["hit"]) + n
        if calm:
            assert row["kv_decode"] == sum(computed[i] for i, n in tokens.items() if n == 1)


HOLD = (
    tokens_are_conserved,
    first_and_last_token_are_where_tokens_were_handed_out,
    gaps_are_those_between_tokens_of_finished_requests,
    time_only_moves_forward,
    no_step_exceeds_the_limits,
    the_step_table_tells_what_was_seen,
)


@settled(200)
@given(ANY_WORLD, st.booleans())
def test_what_holds_in_any_run(world: World, fast: bool) -> None:
    """One run of a world for all properties, since making it takes longer than looking at it."""
    plain = serve(world, plain=True)
    run = serve(world, plain=False) if fast else plain
    for holds in HOLD:
        holds(world, run, plain)


def test_the_first_step_starts_when_the_engine_does() -> None:
    for at in (0.0, 3.0):
        log = serve(World(Limits(8, 64), LinearCost(1.0, 0.0, 0.0), (Ask(4, 4, at=at),)), plain=False).engine.log
        for _ in range(20):
            np.full(len(log.ends), 77.0)  # dirty the memory that the next array may get
            assert log.start()[0] == at


# -- what does not fit ------------------------------------------------------------------------------------------------


@settled(200)
@given(
    prompt=st.integers(1, 40),
    output=st.integers(1, 40),
    blocks=st.integers(1, 12),
    size=st.integers(1, 8),
    budget=st.integers(1, 60),
    switches=st.tuples(*[st.booleans()] * 4),
)
def test_refused_exactly_if_it_cannot_run_alone(
    prompt: int, output: int, blocks: int, size: int, budget: int, switches: tuple[bool, bool, bool, bool]
) -> None:
    chunked, asynchronous, reserve, plain = switches
    if not chunked:
        budget = max(budget, prompt + output)
    limits = Limits(
        blocks,
        max_model_len=100,
        block_size=size,
        max_num_batched_tokens=budget,
        enable_chunked_prefill=chunked,
        async_scheduling=asynchronous,
        reserve_full_prompt=reserve,
    )
    engine = Engine(limits, LinearCost(1.0, 0.0, 0.0), BlockNames(size), plain=plain)
    engine.submit(Request(0, 0.0, prompt, output), 0.0)
    engine.advance(500.0)  # requests that fit are done by then; one that does not is never admitted
    statuses = engine.log.ended["status"].tolist()
    if limits.refusal(prompt, output) is None:
        assert engine.idle and statuses == [FINISHED]
        assert engine.scheduler.kv.free == blocks
    else:
        assert statuses in ([], [REJECTED])


def test_refusal_says_what_is_too_small() -> None:
    limits = Limits(4, max_model_len=100, block_size=16, max_num_batched_tokens=32, enable_chunked_prefill=False)
    assert limits.refusal(32, 33) is None
    assert "needs 5 KV blocks" in (limits.refusal(32, 34) or "")
    assert "max_num_batched_tokens 32" in (limits.refusal(33, 1) or "")
    assert "max_model_len 100" in (limits.refusal(100, 1) or "")


# -- what a driver relies on ------------------------------------------------------------------------------------------


@settled(200)
@given(worlds(followers=False, costs=RISING_COSTS), st.booleans())
def test_no_request_ends_before_the_bound(world: World, plain: bool) -> None:
    engine = Engine(world.limits, world.cost, plain=plain)
    for i, ask in enumerate(world.asks):
        engine.submit(world.request(i, 0.0, vllm(engine).names), 0.0, ask.abort)
    bound = 0.0
    while not engine.idle:
        bound = max(bound, engine.next_end_bound())
        engine.advance(nextafter(engine.clock, inf))
        for r in engine.finished:
            assert engine.end_of(r) >= bound
        if engine.finished:
            engine.finished.clear()
            bound = 0.0
    assert engine.next_end_bound() == inf


def test_an_abort_lets_the_follower_in_at_once() -> None:
    """A follow-up submitted at the second of an abort is seen by that second's step."""
    limits = Limits(64, 256, async_scheduling=False)
    asks = (Ask(4, 40), Ask(4, 40, abort=5.5), Ask(4, 4, after=1))
    run = serve(World(limits, LinearCost(1.0, 0.0, 0.0), asks), plain=False)
    assert (run.end[1], run.arrival[2]) == (6.0, 6.0)
    assert run.row(2)["scheduled"] == 6.0


@settled(60)
@given(worlds(), st.lists(st.floats(0.01, 30), max_size=12))
def test_pausing_changes_nothing(world: World, pauses: list[float]) -> None:
    """A driver may stop an engine at any second in between and go on."""
    world = replace(world, asks=tuple(replace(ask, after=-1, at=0.0, think=0.0) for ask in world.asks))

    def run(stops: list[float]) -> EngineLog:
        engine = Engine(world.limits, world.cost)
        for i, ask in enumerate(world.asks):
            engine.submit(world.request(i, 0.0, vllm(engine).names), 0.0, ask.abort)
        for second in stops:
            engine.advance(second)
        return engine.log

    assert_same_records(run([*sorted(pauses), inf]), run([inf]))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_steps_run_when_vllm_would_run_them(asynchronous: bool) -> None:
    """Two requests by hand: the second comes during the first's prefill and joins at the next scheduling point."""
    limits = Limits(64, 64, block_size=4, async_scheduling=asynchronous)
    run = serve(World(limits, LinearCost(1.0, 0.0, 0.0), (Ask(8, 3), Ask(3, 2, at=0.5))), plain=False)
    joined = 2 if asynchronous else 1  # a step in flight was scheduled at 0 already
    tokens = [step[2] for step in run.steps]
    assert tokens[0] == {0: 8}
    assert tokens[joined] == {0: 1, 1: 3}
    assert [step[1] for step in run.steps] == [float(k + 1) for k in range(len(run.steps))]
    assert run.end == {0: 3.0, 1: joined + 2.0}


# -- host and GPU, by hand --------------------------------------------------------------------------------------------

DECODE = StepTime(gpu=2.0, prepare=0.5, launch=0.0, tail=0.0)
PROMPT = StepTime(gpu=4.0, prepare=1.0, launch=0.0, tail=0.0)
EAGER = StepTime(gpu=3.0, prepare=1.0, launch=6.0, tail=0.25)


def timeline(
    cost: TwoKinds, asks: tuple[Ask, ...], *, asynchronous: bool = True, vector: int = 96
) -> tuple[list[float], list[float]]:
    """When each step was scheduled and when its result was seen; the same on the fast path and the plain one."""
    world = World(Limits(64, 64, block_size=4, async_scheduling=asynchronous), cost, asks)
    with vectorised_from(vector):
        fast, plain = (serve(world, plain=plain) for plain in (False, True))
    assert fast.steps == plain.steps
    return [step[0] for step in fast.steps], [step[1] for step in fast.steps]


@pytest.mark.parametrize("vector", [2, 96])
def test_a_host_that_is_faster_than_the_gpu_hides_behind_it(vector: int) -> None:
    """The prompt runs from 1 to 5, each decode 2 s from where the step before ended; the host is done long before.

    A step is scheduled as soon as the result of the last step but one is there; the first of all, when asked for, and
    the second when that one has been launched.
    """
    scheduled, ends = timeline(TwoKinds(DECODE, PROMPT), (Ask(4, 5),), vector=vector)
    assert ends == [5.0, 7.0, 9.0, 11.0, 13.0]
    assert scheduled == [0.0, 1.0, 5.0, 7.0, 9.0]


@pytest.mark.parametrize("vector", [2, 96])
def test_a_host_that_is_slower_than_the_gpu_sets_the_pace(vector: int) -> None:
    """The first decode is prepared from 1 to 3, while the prompt runs until 5; from there on one every 2 s.

    Its tokens are there at 5.5, but the host prepares the second decode from 5 to 7 and looks then; and so on. Nothing
    is launched after the last one, prepared until 11, so its tokens are seen when it is done.
    """
    slow = StepTime(gpu=0.5, prepare=2.0, launch=0.0, tail=0.0)
    scheduled, ends = timeline(TwoKinds(slow, PROMPT), (Ask(4, 5),), vector=vector)
    assert ends == [5.0, 7.0, 9.0, 11.0, 11.5]
    assert scheduled == [0.0, 1.0, 5.0, 7.0, 9.0]


def test_an_eager_step_holds_up_the_result_before_it_and_the_step_after_it() -> None:
    """Decodes end at 2.5, 4.5, 6.5 and 8.5. The prompt that came at 5.25 is scheduled at 6.5.

    Its first kernel is on its way at 7.5 and its last at 13.5; only then does the host see the result that had been
    there since 8.5. The GPU would have been done at 8.5 + 3, but ends 0.25 s after the last launch, at 13.75. The host
    has prepared the next decode at 14, sees the eager step's result then, and the GPU has been idle for 0.25 s.
    That decode and the rest go on from there, every 2 s.
    """
    asks = (Ask(1, 8), Ask(4, 2, at=5.25))
    scheduled, ends = timeline(TwoKinds(DECODE, EAGER), asks)
    assert ends == [2.5, 4.5, 6.5, 13.5, 14.0, 16.0, 18.0, 20.0]
    assert scheduled == [0.0, 0.5, 2.5, 4.5, 6.5, 13.5, 14.0, 16.0]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_whoever_first_needs_a_kernel_waits_until_it_is_compiled(asynchronous: bool) -> None:
    """The prompt of five tokens is prepared for 1 s, then 10 s are lost to the compiler, then it runs for 4.

    The decode behind it compiles nothing, since a graph of up to four tokens is captured. At 50 the second such prompt
    finds its kernel; that of six at 100 needs another (here every three tokens have their own).
    """
    world = World(
        Limits(64, 64, block_size=4, max_num_batched_tokens=32, async_scheduling=asynchronous),
        TwoKinds(DECODE, PROMPT),
        (Ask(5, 2), Ask(5, 1, at=50.0), Ask(6, 1, at=100.0)),
        Start("abcdefghijkl", top_k=1, captured=4, seconds=10.0),
    )
    for plain in (False, True):
        run = serve(world, plain=plain)
        decode = 2.0 if asynchronous else 2.5
        assert run.engine.log.end.tolist() == [15.0, 15.0 + decode, 55.0, 115.0]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_decodes_without_a_graph_compile_theirs(asynchronous: bool) -> None:
    """All steps go kernel by kernel: the prompt's kernel takes 10 s, and that of the first lone decode as long."""
    world = World(
        Limits(64, 64, block_size=4, max_num_batched_tokens=32, async_scheduling=asynchronous),
        TwoKinds(DECODE, PROMPT),
        (Ask(5, 4),),
        Start("abcdefghijkl", top_k=1, captured=0, seconds=10.0),
    )
    first = 21.5 if asynchronous else 15.0  # the host sees the prompt's result when it has launched the decode
    rest = [23.5, 25.5, 27.5] if asynchronous else [27.5, 30.0, 32.5]
    for plain in (False, True):
        assert serve(world, plain=plain).engine.log.end.tolist() == [first, *rest]


def test_a_long_eager_step_on_the_gpu_hides_its_launch() -> None:
    """As above, but with 9 s of GPU work: from 8.5 to 17.5, beyond 13.75; the decode after it does not wait."""
    long = EAGER._replace(gpu=9.0)
    scheduled, ends = timeline(TwoKinds(DECODE, long), (Ask(1, 8), Ask(4, 2, at=5.25)))
    assert ends == [2.5, 4.5, 6.5, 13.5, 17.5, 19.5, 21.5, 23.5]
    assert scheduled == [0.0, 0.5, 2.5, 4.5, 6.5, 13.5, 17.5, 19.5]


def test_decodes_launched_bit_by_bit_end_with_what_is_left_of_them() -> None:
    """1 s to prepare, 3 to launch, 1 s of GPU work, 0.5 of it after the last launch: a step every 4 s.

    The first is launched at 4 and done at 4.5. The next is launched from 4 to 8, and the result of the first seen then.
    """
    bits = StepTime(gpu=1.0, prepare=1.0, launch=3.0, tail=0.5)
    scheduled, ends = timeline(TwoKinds(bits, PROMPT), (Ask(1, 4),))
    assert scheduled == [0.0, 4.0, 8.0, 12.0]
    assert ends == [8.0, 12.0, 16.0, 16.5]


def test_without_asynchronous_scheduling_host_and_gpu_add_up() -> None:
    """1 + 4 s for the prompt and 0.5 + 2 s for each decode; an eager step's GPU work hides behind its launch only."""
    scheduled, ends = timeline(TwoKinds(DECODE, PROMPT), (Ask(4, 5),), asynchronous=False)
    assert ends == [5.0, 7.5, 10.0, 12.5, 15.0]
    assert scheduled == [0.0, *ends[:-1]]
    asks = (Ask(1, 5), Ask(4, 2, at=5.25))
    scheduled, ends = timeline(TwoKinds(DECODE, EAGER), asks, asynchronous=False)
    assert ends == [2.5, 5.0, 7.5, 7.5 + 1 + 6 + 0.25, 17.25]
    assert scheduled == [0.0, *ends[:-1]]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_first_step_after_idling_waits_for_nobody(asynchronous: bool) -> None:
    """The second request comes at 20, when all is done: the GPU starts at 21, when the host has prepared its prompt."""
    world = World(
        Limits(64, 64, block_size=4, async_scheduling=asynchronous),
        TwoKinds(DECODE, PROMPT),
        (Ask(4, 2), Ask(4, 2, at=20)),
    )
    for plain in (False, True):
        run = serve(world, plain=plain)
        log = run.engine.log
        decode = 2.0 if asynchronous else 2.5
        assert log.end.tolist() == [5.0, 5.0 + decode, 25.0, 25.0 + decode]
        assert log.restarts == [(0, 0.0), (2, 20.0)]
        assert log.start().tolist() == [0.0, 5.0, 20.0, 25.0]
        assert [step[0] for step in run.steps] == ([0.0, 1.0, 20.0, 21.0] if asynchronous else [0.0, 5.0, 20.0, 25.0])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_only_an_idle_engine_has_to_wake(asynchronous: bool) -> None:
    """0.25 s for the requests at 1 and at 20; requests that arrive meanwhile, or while it runs, are seen."""
    limits = Limits(64, 64, block_size=4, async_scheduling=asynchronous)
    for plain in (False, True):
        engine = Engine(limits, TwoKinds(DECODE, PROMPT), wake=0.25, plain=plain)
        for i, at in enumerate((1.0, 1.125, 3.0, 20.0)):
            engine.advance(at)
            engine.submit(Request(i, at, prompt=4, output=1), at)
        engine.advance(inf)
        rows = engine.log.ended
        assert dict(zip(rows["index"], rows["scheduled"], strict=True)) == {0: 1.25, 1: 1.25, 2: 6.25, 3: 20.25}
        assert engine.log.restarts == [(0, 1.25), (2, 20.25)]


def test_whoever_comes_while_the_first_step_is_launched_is_in_the_second() -> None:
    """The host schedules again at 7, when it has launched the first prompt; the GPU ends that at 7.25."""
    scheduled, ends = timeline(TwoKinds(DECODE, EAGER), (Ask(4, 1), Ask(4, 1, at=6.9)))
    assert scheduled == [0.0, 7.0]
    assert ends == [14.0, 14.25]


def test_the_bound_on_the_next_end_knows_that_the_host_has_begun() -> None:
    """One step of the three that are left is prepared while the prompt still runs: it does not add to them."""
    slow = StepTime(gpu=0.5, prepare=1.0, launch=0.0, tail=0.0)
    engine = Engine(Limits(64, 64), TwoKinds(slow, PROMPT._replace(gpu=10.0)))
    engine.submit(Request(0, 0.0, prompt=4, output=4), 0.0)
    engine.advance(1.0)
    assert (engine.clock, engine.step) == (1.0, 1)
    bound = engine.next_end_bound()
    engine.advance(inf)
    assert engine.log.end.tolist() == [11.0, 12.0, 13.0, 13.5]
    assert 13.0 * (1 - 1e-8) <= bound <= 13.5


# -- who comes first --------------------------------------------------------------------------------------------------


def test_equals_are_served_by_their_ids_as_text() -> None:
    """As vLLM does: of two requests with the same priority and second of arrival, 10 comes before 9."""
    limits = Limits(64, 64, max_num_seqs=1, priority=True)
    run = serve(World(limits, LinearCost(1.0, 0.0, 0.0), (Ask(1, 1),) * 11), plain=False)
    assert run.ended == [0, 1, 10, 2, 3, 4, 5, 6, 7, 8, 9]


def test_the_least_important_gives_way_and_others_get_its_tokens() -> None:
    """By hand: when the pool of 14 is full the first to run is driven out, though it had its token already."""
    limits = Limits(
        blocks=14,
        max_model_len=64,
        block_size=1,
        max_num_batched_tokens=4,
        priority=True,
        async_scheduling=False,
        reserve_full_prompt=False,
    )
    asks = (Ask(2, 6, priority=9), Ask(2, 6, at=0.5), Ask(10, 1, at=1.5, priority=1))
    run = serve(World(limits, LinearCost(1.0, 0.0, 0.0), asks), plain=False)
    assert [(tokens, preempted) for _, _, tokens, preempted, _ in run.steps[:5]] == [
        ({0: 2}, []),
        ({0: 1, 1: 2}, []),
        ({0: 1, 1: 1, 2: 2}, []),
        ({0: 1, 1: 1, 2: 2}, []),
        ({1: 1, 2: 3}, [0]),
    ]
    assert len(run.ended) == 3


@pytest.mark.parametrize("asynchronous", [False, True])
def test_equals_do_not_preempt_each_other_for_ever(asynchronous: bool) -> None:
    """Either request fits alone; of two equal ones the first to run is the first victim, and so on in turn."""
    limits = Limits(
        blocks=6,
        max_model_len=64,
        block_size=1,
        max_num_batched_tokens=2,
        long_prefill_token_threshold=1,
        enable_prefix_caching=False,
        priority=True,
        async_scheduling=asynchronous,
        reserve_full_prompt=False,
    )
    engine = Engine(limits, LinearCost(1.0, 0.0, 0.0))
    for i in range(2):
        engine.submit(Request(i, 0.0, prompt=4, output=3), 0.0)
    engine.advance(2000.0)
    assert engine.idle


def test_many_victims_of_one_step_are_no_reason_to_give_up() -> None:
    """A long prompt drives out many short requests and then itself, since a more important one holds the rest."""
    limits = Limits(
        blocks=278, max_model_len=8192, long_prefill_token_threshold=1120, priority=True, async_scheduling=False
    )
    long, important = Ask(4160, 10, priority=1), Ask(1600, 50, at=0.5, priority=0)
    short = [Ask(1, 15, at=0.5, priority=2)] * 66
    asks = (long, Ask(1, 15, priority=2), important, *short)
    run = serve(World(limits, LinearCost(1.0, 0.0, 0.0), asks), plain=False)
    assert [i for i in run.ended if run.row(i)["status"] != FINISHED] == []


# -- what else holds a step up ---------------------------------------------------------------------------------------


def steps_of(engine: Engine, requests: Sequence[tuple[float, int, int]]) -> list[float]:
    """The ends of all steps that an engine takes to serve (arrival, prompt, output)."""
    for i, (at, prompt, output) in enumerate(requests):
        engine.advance(at)
        engine.submit(Request(i, at, prompt, output), at)
    engine.advance(inf)
    return list(engine.log.ends)


@pytest.mark.parametrize("plain", [False, True])
def test_new_requests_hold_up_the_next_step(plain: bool) -> None:
    """Three at once are taken in before the first step; one that comes later delays the step that it comes before."""
    limits = Limits(blocks=100, max_model_len=100, async_scheduling=False)
    cost = LinearCost(1.0, 0.0, 0.0)
    together = steps_of(Engine(limits, cost, taking_in=(0.25, 0.0), plain=plain), [(0.0, 4, 3)] * 3)
    assert together == [1.75, 2.75, 3.75]
    later = steps_of(Engine(limits, cost, taking_in=(0.25, 0.0), plain=plain), [(0.0, 4, 4), (1.5, 4, 2)])
    assert later == [1.25, 2.25, 3.5, 4.5]
    long = steps_of(Engine(limits, cost, taking_in=(0.25, 0.0625), plain=plain), [(0.0, 8, 4), (1.5, 4, 2)])
    assert long == [1.25, 2.25, 3.75, 4.75]  # the first one's tokens were read while nobody was waiting


@pytest.mark.parametrize("plain", [False, True])
def test_the_first_step_after_a_pause_is_faster(plain: bool) -> None:
    limits = Limits(blocks=100, max_model_len=100, async_scheduling=False)
    engine = Engine(limits, LinearCost(1.0, 0.0, 0.0), rested=0.5, plain=plain)
    assert steps_of(engine, [(0.0, 4, 2), (10.0, 4, 2)]) == [1.0, 2.0, 10.5, 11.5]


@settled(200)
@given(st.one_of(ANY_WORLD, crowds()), SHORT_STRETCHES)
def test_fast_path_takes_the_same_steps_beside_a_busy_host(world: World, vector: int) -> None:
    def busy(engine: Engine, names: BlockNames) -> None:
        engine.taking_in, engine.rested, engine.wake = (0.03, 0.001), 0.7, 0.05

    with vectorised_from(vector):
        fast = serve(world, plain=False, prepare=busy)
    plain = serve(world, plain=True, prepare=busy)
    assert fast.steps == plain.steps and fast.ended == plain.ended
    assert_same_records(fast.engine.log, plain.engine.log)


@settled(250)
@given(st.one_of(worlds(), worlds(equals=True)), SHORT_STRETCHES, st.sampled_from([3.0, 40.0, 1e9]))
def test_fast_path_takes_the_same_steps_where_requests_share_what_they_read(
    world: World, vector: int, held: float
) -> None:
    def share(engine: Engine, names: BlockNames) -> None:
        engine.shared_reads = SharedReads(held)

    with vectorised_from(vector):
        fast = serve(world, plain=False, prepare=share)
    plain = serve(world, plain=True, prepare=share)
    assert fast.steps == plain.steps and fast.ended == plain.ended
    assert_same_records(fast.engine.log, plain.engine.log)


def test_requests_of_one_prefix_decode_faster_than_others() -> None:
    """Eight requests of 160 tokens, 128 of them shared: 7 * 128 are found in the cache, which gains 0.48 of them."""

    def last(content: tuple[tuple[int, int], ...]) -> float:
        asks = (Ask(160, 12, content=content), *(Ask(160, 10, at=1.0, content=content) for _ in range(7)))
        limits = Limits(256, 512, block_size=16, async_scheduling=False)
        cost = LinearCost(1.0, 0.0, 0.001)

        def share(engine: Engine, names: BlockNames) -> None:
            engine.shared_reads = SharedReads(1e9)

        steps = serve(World(limits, cost, asks), plain=False, prepare=share).steps
        whole = [(start, end) for start, end, tokens, *_ in steps if len(tokens) == 8 and set(tokens.values()) == {1}]
        return whole[0][1] - whole[0][0]

    apart, together = last(()), last(((1, 128),))
    kv = (apart - 1.0) / 0.001
    assert 8 * 160 < kv < 8 * 170
    assert together == pytest.approx(apart - 0.001 * int(0.48 * 7 * 128))
