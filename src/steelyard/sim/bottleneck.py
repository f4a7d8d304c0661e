"""The bottleneck of a fleet: the engine limit that requests wait for, or else the hardware.

An engine admits a waiting request unless its seats (`max_num_seqs`), the tokens of a step (`max_num_batched_tokens`) or
its KV blocks are used up. So every step after which requests still wait shows which limit was reached. Raising a limit
helps only if a larger batch is more efficient, that is if twice the batch takes less than twice the time. If it is not,
the GPU or the host is the bottleneck. A limit that helps is named before the hardware, since raising it costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.cost import StepTime
from steelyard.engine import EngineLog
from steelyard.records import Floats, Ints
from steelyard.sim.setup import FleetSetup, Setup
from steelyard.sim.summary import Bottleneck, LinkUse, PoolFigures

_WAITED = 0.02  # least share of engines' time with waiting requests that is reported
_BUSY_LINK = 0.90  # share of time that a link is busy, above which it is the bottleneck
_PAYS = 1.2  # least gain of twice the batch for a limit, and not the hardware, to be the bottleneck
_SAMPLED = 64  # steps that are evaluated
_HOST_BOUND = 0.5  # share of step time on the host, above which the host is the bottleneck


@dataclass(frozen=True)
class _Queue:
    """Time in which requests waited at a pool's engines, in engine-seconds by what they waited for."""

    share: float  # of the engines' time
    length: float  # request-seconds
    seats: float
    tokens: float
    blocks: float

    @property
    def longest(self) -> tuple[str, float]:
        """The most frequent reason, and its share of all waiting."""
        by = {"seats": self.seats, "tokens": self.tokens, "blocks": self.blocks}
        cause = max(by, key=lambda each: by[each])
        return cause, by[cause] / sum(by.values())


def bottleneck(
    setup: FleetSetup,
    logs: Sequence[EngineLog],
    pools: Sequence[PoolFigures],
    links: dict[str, LinkUse],
    seconds: float,
) -> Bottleneck | None:
    """The bottleneck; None if requests hardly ever wait."""
    crowded = max(links.items(), key=lambda each: each[1].busy, default=None)
    if crowded is not None and crowded[1].busy >= _BUSY_LINK:
        name, use = crowded
        return Bottleneck(
            cause="link",
            pool="",
            waited=use.busy,
            figure=f"{name.replace('_', ' ')}: sending {_percent(use.busy)} of the time",
            help="faster NICs (fleet.topology.nic), fewer GPUs behind an uplink, or a smaller kv_cache_dtype",
        )
    queues = {}
    for each, pool in zip(setup.pools, pools, strict=True):
        own = logs[pool.first_replica : pool.first_replica + pool.replicas]
        if own:
            queues[pool.name] = (each, pool, _queue(each, own, seconds), own)
    each, pool, queue, own = max(queues.values(), key=lambda found: found[2].length)
    if queue.share < _WAITED:
        return None
    found = _at_the_limit(each, pool, queue, own)
    if found is None:
        sides = [side for side in pools if side.stalled is not None] if each.unit is not None else []
        slowest = min(
            sides, key=lambda side: side.stalled or 0.0, default=pool
        )  # of an AFD unit, the side that stalls less
        found = _on_the_hardware(each, slowest, queue, own)
    return found


def _queue(setup: Setup, logs: Sequence[EngineLog], seconds: float) -> _Queue:
    """Sum up all stretches of steps after which requests still waited."""
    limits = setup.limits
    found = np.zeros(5)  # waited, request-seconds, seats, tokens, blocks
    for log in logs:
        if not len(log.ends):
            continue
        rows, took = log.stretches(), _durations(log)
        waits = rows["waiting"] > 0
        seats = waits & (rows["running"] >= limits.max_num_seqs)
        used = rows["n_decode"] * (1 + limits.speculative_tokens) + rows["prefill_tokens"]
        tokens = waits & ~seats & (used >= limits.max_num_batched_tokens)
        blocks = waits & ~seats & ~tokens
        found += [
            took[waits].sum(),
            (took * rows["waiting"]).sum(),
            *(took[each].sum() for each in (seats, tokens, blocks)),
        ]
    room = seconds * len(logs)
    return _Queue(float(found[0] / room) if room > 0 else 0.0, *map(float, found[1:]))


def _at_the_limit(setup: Setup, pool: PoolFigures, queue: _Queue, logs: Sequence[EngineLog]) -> Bottleneck | None:
    """The limit that requests waited for, if raising it would help."""
    cause, share = queue.longest
    limits = setup.limits
    steps = _steps_that_wait(setup, logs, cause)
    if not _pays(setup, steps, cause):
        return None
    told = {
        "seats": (f"{limits.max_num_seqs} seats (max_num_seqs) taken", "raise engine.max_num_seqs, or add replicas"),
        "tokens": (
            f"{limits.max_num_batched_tokens} tokens a step (max_num_batched_tokens) used up",
            "raise engine.max_num_batched_tokens (and cudagraph_capture_sizes with it), or add replicas",
        ),
        "blocks": (
            f"{limits.blocks} KV blocks short, {_percent(pool.kv.peak_use)} held at the peak",
            "more memory for KV (gpu_memory_utilization, kv_cache_dtype: fp8, tp), or add replicas",
        ),
    }
    figure, remedy = told[cause]
    return Bottleneck(
        cause=cause,
        pool=pool.name,
        waited=queue.share,
        figure=f"{figure} in {_percent(share)} of that time",
        help=remedy,
    )


def _on_the_hardware(setup: Setup, pool: PoolFigures, queue: _Queue, logs: Sequence[EngineLog]) -> Bottleneck:
    """The hardware that binds: host, links between GPUs, arithmetic or memory bandwidth."""
    times = [_time(setup, *step) for step in _steps_that_wait(setup, logs, queue.longest[0])]
    slower = sum(_total(setup, time) for time in times if time.prepare + time.launch > time.gpu)
    total = sum(_total(setup, time) for time in times)
    if total and slower / total > _HOST_BOUND:
        return Bottleneck(
            cause="host",
            pool=pool.name,
            waited=queue.share,
            figure=f"the host takes longer than the GPU in {_percent(slower / total)} of step time",
            help="a faster CPU, CUDA graphs (no enforce_eager), async_scheduling, or add replicas",
        )
    shares = pool.step_time
    if shares is not None and shares.communication > max(shares.attention, shares.gemm, shares.experts):
        return Bottleneck(
            cause="communication",
            pool=pool.name,
            waited=queue.share,
            figure=f"GPUs of an engine send to each other in {_percent(shares.communication)} of step time",
            help="faster links between GPUs (fleet.topology.nvlink), a smaller tp or ep, or add replicas",
        )
    arithmetic, memory = (use / pool.busy if pool.busy else 0.0 for use in (pool.mfu, pool.mbu))
    kind = "compute" if arithmetic >= memory else "memory"
    return Bottleneck(
        cause=f"gpu {kind}",
        pool=pool.name,
        waited=queue.share,
        figure=f"busy {_percent(pool.busy)} of the time, at {_percent(arithmetic)} of peak FLOPS and "
        f"{_percent(memory)} of bandwidth",
        help="add replicas, use a faster GPU, or quantise the model",
    )


def _steps_that_wait(setup: Setup, logs: Sequence[EngineLog], cause: str) -> list[tuple[int, int, int, int]]:
    """(decodes, their cached tokens, prompt tokens, prompts) of a sample of steps after which requests waited."""
    tables = [(log.stretches(), _durations(log)) for log in logs if len(log.ends)]

    def column(name: str) -> Ints:
        return np.concatenate([rows[name] for rows, _ in tables])

    seconds: Floats = np.concatenate([took for _, took in tables])
    keep = (column("waiting") > 0) & (column("n_decode") + column("prefill_requests") > 0)
    if cause == "seats":
        keep &= column("running") >= setup.limits.max_num_seqs
    if not keep.any():
        return []
    until = np.cumsum(seconds[keep])
    at = np.searchsorted(until, (np.arange(_SAMPLED) + 0.5) / _SAMPLED * until[-1])
    names = ("n_decode", "kv_decode", "prefill_tokens", "prefill_requests")
    decodes, kv, tokens, prompts = (column(name)[keep][at].tolist() for name in names)
    return list(zip(decodes, kv, tokens, prompts, strict=True))


def _pays(setup: Setup, steps: Sequence[tuple[int, int, int, int]], cause: str) -> bool:
    """Whether twice the batch would be more efficient, estimated from what half of the batch gains."""
    half = whole = 0.0
    for decodes, kv, tokens, prompts in steps:
        took = _total(setup, _time(setup, decodes, kv, tokens, prompts))
        whole += took
        if cause == "tokens":  # the same work in two halves
            few = min(max(tokens // 2, 1), prompts)
            half += 2 * _total(setup, _time(setup, decodes // 2, kv // 2, tokens // 2, few))
        elif decodes:  # prompts are computed once, whatever the batch size
            decode = _total(setup, _time(setup, decodes, kv, 0, 0))
            half += took - decode + 2 * _total(setup, _time(setup, max(1, decodes // 2), kv // 2, 0, 0))
        else:
            half += took
    return whole > 0 and _next_gain(half / whole) >= _PAYS


def _next_gain(gain: float) -> float:
    """The gain of the next doubling, given that of the last, if step time is linear in batch size."""
    constant = max(gain - 1, 0.0) / max(2 - gain, 1e-9)  # constant time over time that grows with the batch
    return 2 * (constant + 1) / (constant + 2)


def _time(setup: Setup, decodes: int, kv: int, tokens: int, prompts: int) -> StepTime:
    """Time of a step, with prompt and cached tokens spread evenly over its requests."""
    cost = setup.step_cost
    longest = -(-kv // decodes) if decodes else 0
    if tokens and prompts:
        each = tokens // prompts
        chunks = [(each, 0)] * (prompts - 1) + [(tokens - each * (prompts - 1), 0)]
        return cost.mixed(decodes, kv, longest, chunks)
    a, b, _ = cost.decode_line(max(1, decodes), kv, longest)
    return StepTime(a + b * kv, *cost.decode_host(max(1, decodes)))


def _total(setup: Setup, time: StepTime) -> float:
    """Seconds from one step's result to the next, with or without asynchronous scheduling."""
    host = time.prepare + time.launch
    return max(time.gpu, host) if setup.limits.async_scheduling else time.prepare + max(time.gpu, time.launch)


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _durations(log: EngineLog) -> Floats:
    rows = log.stretches()
    return np.asarray(log.end[rows["step"] + rows["steps"] - 1] - log.start()[rows["step"]])
