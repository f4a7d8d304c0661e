"""A sizing question, fleets that may answer it, and what each carries by simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log

import numpy as np

from steelyard import simulate
from steelyard.errors import UserError
from steelyard.scenario import Scenario, scenario_from_dict

_ROUNDS = 12  # requests of each user at steady concurrency, of which those that come while users start are left out
_REQUESTS, _FILLING = 2000, 200  # of a run with Poisson arrivals, and how many of them come while the fleet fills
_SEEDS = (1, 2, 3)  # runs with Poisson arrivals, taken together
_SLOWEST, _STEP = 0.1, 1.02  # requests per second that are tried first, and from there on by what factor
_STEPS = 32  # that are taken at once until a rate is too high
_MOST_USERS = 512  # of a replica
_STEP_TOKENS = (2048, 8192, 16_384)
_SEATS = 512


@dataclass(frozen=True)
class Question:
    """Which fleet of these GPUs carries most requests of these lengths within limits in seconds?"""

    model: str
    gpu: str
    gpus: int
    prompt: int
    output: int
    ttft: float
    tpot: float


@dataclass(frozen=True)
class Fleet:
    """Equal engines, and the limits of their steps."""

    tp: int
    replicas: int
    step_tokens: int
    seats: int = _SEATS

    def __str__(self) -> str:
        return f"{self.replicas} x TP{self.tp}, {self.step_tokens:,} tokens a step"


@dataclass(frozen=True)
class Carried:
    """Requests per second of a fleet, and the latencies they are limited by (means or p95), in seconds."""

    rate: float
    ttft: float
    tpot: float

    def meets(self, question: Question) -> bool:
        return self.ttft <= question.ttft and self.tpot <= question.tpot


# The most that a fleet carries within the limits, if it is more than a rate.
Capacity = Callable[[Question, Fleet, float], Carried | None]


def candidates(question: Question) -> Iterator[Fleet]:
    """All GPUs in engines of each size, with small, default and large steps."""
    for tp in (1, 2, 4, 8):
        for tokens in _STEP_TOKENS:
            yield Fleet(tp, question.gpus // tp, tokens)


def best_of(question: Question, capacity: Capacity) -> tuple[Fleet, Carried]:
    """The candidate that carries most. The one place that chooses for us: `steelyard search` answers the same."""
    best: tuple[Fleet, Carried] | None = None
    for fleet in candidates(question):
        carried = capacity(question, fleet, best[1].rate if best else 0.0)
        if carried is not None and (best is None or carried.rate > best[1].rate):
            best = fleet, carried
    if best is None:
        raise UserError("no fleet of the question's GPUs meets its limits")
    return best


def at_concurrency(question: Question, fleet: Fleet, users: int) -> Carried:
    """Means with a steady number of users for each replica. Their starts are spread over the longest answer that the
    limits allow: equal requests that start at once would stay in step for ever."""
    ramp = question.ttft + question.output * question.tpot
    arrivals: dict[str, object] = {"kind": "closed", "users": users, "ramp": ramp}
    result = simulate(_scenario(question, fleet, arrivals, users * _ROUNDS, replicas=1), keep=["requests"])
    later = result.requests["arrival"] > ramp
    ttft, tpot = (float(np.nanmean(result.requests[metric][later])) for metric in ("ttft", "tpot"))
    return Carried(fleet.replicas * users / (ttft + (question.output - 1) * tpot), ttft, tpot)


def at_rate(question: Question, fleet: Fleet, rate: float) -> Carried:
    """The 95th percentiles with Poisson arrivals."""
    arrivals: dict[str, object] = {"kind": "poisson", "rate": rate}
    scenarios = [_scenario(question, fleet, arrivals, _REQUESTS, fleet.replicas, seed) for seed in _SEEDS]
    runs = [simulate(scenario, keep=["requests"]).requests for scenario in scenarios]
    ttft, tpot = (
        float(np.nanpercentile(np.concatenate([run[metric][_FILLING:] for run in runs]), 95))
        for metric in ("ttft", "tpot")
    )
    return Carried(rate, ttft, tpot)


def most_on_means(question: Question, fleet: Fleet, least: float = 0.0) -> Carried | None:
    """The largest steady concurrency whose means are within the limits."""
    low, high, found = 0, _MOST_USERS + 1, None
    while high - low > 1:
        users = (low + high) // 2
        tried = at_concurrency(question, fleet, users)
        if tried.meets(question):
            low, found = users, tried
        else:
            high = users
    return found if found is not None and found.rate > least else None


def most_on_p95(question: Question, fleet: Fleet, least: float = 0.0) -> Carried | None:
    """The largest Poisson rate, of steps of 2 %, whose 95th percentiles are within the limits."""
    low = round(log(least / _SLOWEST, _STEP)) if least else -1
    high, found = low + 1, None
    while (tried := at_rate(question, fleet, _SLOWEST * _STEP**high)).meets(question):
        low, high, found = high, high + _STEPS, tried
    while high - low > 1 and (found or not least):
        middle = (low + high) // 2
        tried = at_rate(question, fleet, _SLOWEST * _STEP**middle)
        if tried.meets(question):
            low, found = middle, tried
        else:
            high = middle
    return found


def _scenario(
    question: Question, fleet: Fleet, arrivals: dict[str, object], requests: int, replicas: int, seed: int = 1
) -> Scenario:
    return scenario_from_dict(
        {
            "seed": seed,
            "model": question.model,
            "fleet": {"gpu": question.gpu, "tp": fleet.tp, "replicas": replicas, "router": "least-outstanding"},
            "engine": {"max_num_seqs": fleet.seats, "max_num_batched_tokens": fleet.step_tokens},
            "workload": {
                "arrivals": arrivals,
                "requests": requests,
                "prompt": {"kind": "fixed", "tokens": question.prompt},
                "output": {"kind": "fixed", "tokens": question.output},
            },
        },
        source="bench.sizing",
    )
