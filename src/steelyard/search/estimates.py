"""Estimates of an engine's capacity from its compiled costs, without simulation. They order candidates.

With n requests decoding on an engine, steps of D(n) seconds, and p seconds that each prompt adds, a step takes
T = D(n) + n p / (tokens of an output) on average, and the engine generates n / T tokens per second.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from steelyard.sim.setup import Setup
from steelyard.workload import Workload

_MOST_PROMPTS = 64  # in a step; more do not make steps better


@dataclass(frozen=True)
class MeanRequest:
    """Requests of one kind, in tokens."""

    prompt: int
    output: int

    @classmethod
    def of(cls, workload: Workload) -> MeanRequest:
        """The mean request of a workload."""
        return cls(max(1, round(float(workload.prompt.mean()))), max(1, round(float(workload.output.mean()))))

    @property
    def cached(self) -> int:
        """Cached tokens of a request halfway through its output."""
        return self.prompt + self.output // 2


def prompts_per_second(pool: Setup, asked: MeanRequest) -> float:
    """Prompts per second of one engine of a prefill pool, with full steps."""
    return pool.pool.dp * max(count / _prompts(pool, asked, count) for count in _counts(pool, asked))


def answers_per_second(pool: Setup, asked: MeanRequest, tpot: float, prompts_too: bool) -> float:
    """Requests per second that one engine (or unit) decodes within a TPOT, with their prompts if ``prompts_too``."""
    cost, limits = pool.step_cost, pool.limits
    most = min(limits.max_num_seqs, limits.room // asked.cached)
    stages = max(1, len(pool.stages))

    def takes(n: int) -> float:
        a, b, _ = cost.decode_line(n, n * asked.cached, asked.cached)
        prepare, launch, _ = cost.decode_host(n)
        decode = max(a + b * n * asked.cached, prepare + launch)
        return decode + n * (_prompt_beside(pool, asked, n, decode) if prompts_too else 0.0) / asked.output

    low, high = 0, most
    while low < high:
        n = (low + high + 1) // 2
        low, high = (n, high) if takes(n) <= tpot else (low, n - 1)
    return pool.pool.dp * stages * low / (takes(low) * asked.output) if low else 0.0


def _counts(pool: Setup, asked: MeanRequest) -> range:
    most = min(_MOST_PROMPTS, pool.limits.max_num_seqs, pool.limits.max_num_batched_tokens // asked.prompt)
    return range(1, max(1, most) + 1)


def _prompts(pool: Setup, asked: MeanRequest, count: int) -> float:
    """Seconds of ``count`` prompts on every rank."""
    budget, seconds, before = pool.limits.max_num_batched_tokens, 0.0, 0
    while before < asked.prompt:
        chunk = min(asked.prompt - before, max(1, budget // count))
        step = pool.step_cost.mixed(0, 0, 0, [(chunk, before)] * count)
        seconds += max(step.gpu, step.prepare + step.launch)
        before += chunk
    return seconds


def _prompt_beside(pool: Setup, asked: MeanRequest, n: int, decode: float) -> float:
    """The least that a prompt adds to steps of an engine with n decodes: with full steps, on all instances."""
    on_each = pool.limits.long_prefill_token_threshold or pool.limits.max_num_batched_tokens
    room = on_each - -(-n // pool.spread)
    if room < 1:
        return inf
    seats = (pool.limits.max_num_seqs - n) // pool.spread
    if seats < 1:
        return inf
    least = inf
    for count in {1, min(seats, max(1, room // asked.prompt))}:  # prompts in a step: one, or as many as have room
        chunk = min(asked.prompt, room)
        step = pool.step_cost.mixed(n, n * asked.cached, asked.cached, [(chunk, 0)] * (count * pool.spread))
        added = max(0.0, max(step.gpu, step.prepare + step.launch) - decode)
        least = min(least, added * asked.prompt / (chunk * count * pool.spread))
    return least
