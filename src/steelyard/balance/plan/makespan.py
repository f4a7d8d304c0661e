"""The makespan of a batch of trajectories on rollout replicas: a fluid model of continuous batching.

Trajectories of about the same latency form a class. Until a class ends, all longer classes run beside it: they decode
or wait for tools. The time of a step follows from the number of decodes, their context and the prompts in between.
Steps get shorter as classes end. Step times and latencies depend on each other, so they are iterated to a fixed point,
for many loads at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.balance.plan.measured import Measured
from steelyard.balance.portable import MICROSECOND, power, to_grid
from steelyard.balance.route.speed import BucketSpeed
from steelyard.records import Floats, Ints

_ROUNDS = 12  # of the iteration
_GROWTH = 1.2  # factor by which classes grow, from the longest trajectory, a class of its own, to the shortest
_TINY = 1e-9  # keeps divisors above 0
_AT_ONCE = 512  # cases computed at once, so that their columns stay in a core's cache


@dataclass(frozen=True, slots=True)
class ReplicaModel:
    """A rollout replica of one degree: how fast it is, and what it holds."""

    speed: BucketSpeed
    seats: int
    capacity: int  # tokens of its cache
    launch: float = 0.0  # least seconds of a step with a prompt: the host's launch time


@dataclass(frozen=True, eq=False)
class Classes:
    """Classes of trajectories by latency, shortest first. Trajectories of a class count as equal. One row per class."""

    count: Floats
    generated: Floats
    tools: Floats
    turns: Floats
    prompt: Floats
    context: Floats
    read: Floats
    most: Floats  # the most tokens that one of a class generates
    largest: Floats  # the longest context that one of a class ends with
    group: int

    def __len__(self) -> int:
        return len(self.count)

    @staticmethod
    def of(measured: Measured, step: float) -> Classes:
        """Classes of trajectories. ``step`` is the time of a decode step, which converts tokens to latency."""
        order = np.argsort(measured.generated * step + measured.tools, kind="stable")
        return Classes.from_order(measured, order, _boundaries(len(order)))

    @staticmethod
    def from_order(measured: Measured, order: Ints, first: Ints) -> Classes:
        """Classes of trajectories in an order; ``first`` has the places where classes begin."""
        count = np.diff(np.append(first, len(order))).astype(np.float64)

        def mean(column: Ints | Floats) -> Floats:
            sums: Floats = np.add.reduceat(column[order].astype(np.float64), first) / count
            return sums

        return Classes(
            count,
            mean(measured.generated),
            mean(measured.tools),
            mean(measured.turns),
            mean(measured.prompt),
            mean(measured.context),
            mean(measured.read),
            np.maximum.reduceat(measured.generated[order], first).astype(np.float64),
            np.maximum.reduceat(measured.context[order], first).astype(np.float64),
            measured.group,
        )


def _boundaries(total: int) -> Ints:
    """Where classes begin: the longest trajectory is a class of its own, and classes grow towards the shortest."""
    firsts, size = [total], 1.0
    while firsts[-1] > 0:
        firsts.append(max(0, firsts[-1] - int(size)))
        size *= _GROWTH
    return np.array(firsts[:0:-1], dtype=np.int64)


def stratified(measured: Measured, number: int) -> Classes:
    """At most so many classes of about the same size, by tokens generated."""
    order = np.argsort(measured.generated, kind="stable")
    number = min(number, len(order))
    return Classes.from_order(measured, order, np.arange(number) * len(order) // number)


def makespans(
    model: ReplicaModel, classes: Classes, load: Floats, first: Ints, last: Ints, sticky: bool = True
) -> Floats:
    """Seconds until all trajectories of classes ``first`` to ``last`` (exclusive) have ended, for each case.

    ``load`` is how many of them a replica gets. ``sticky``: turns run on the replica that has their cache; if not, on
    any replica.
    """
    parts = [slice(start, start + _AT_ONCE) for start in range(0, len(load), _AT_ONCE)]
    found = np.concatenate([_some(model, classes, load[p], first[p], last[p], sticky) for p in parts])
    return to_grid(found, MICROSECOND)  # so that rounding errors never decide between plans


def _some(model: ReplicaModel, classes: Classes, load: Floats, first: Ints, last: Ints, sticky: bool) -> Floats:
    which = np.arange(len(classes))
    inside = (which >= first[:, None]) & (which < last[:, None])
    weight = inside * classes.count
    total = weight.sum(1)
    share = (load / total)[:, None]  # of the trajectories that are on one replica
    weight *= share
    work = _work(classes, (total / load)[:, None], sticky)
    latest = _settle(model, work, weight, np.minimum(share, 1.0), inside)
    found: Floats = latest[np.arange(len(load)), last - 1]
    return found


@dataclass(frozen=True, eq=False)
class _Work:
    """The work of one trajectory of each class: a column per class, a row per case where cases differ."""

    generated: Floats
    tools: Floats
    turns: Floats
    fresh: Floats  # prompt tokens computed for the first time, by token generated
    stale: Floats  # prompt tokens computed again if they are no longer cached, by token generated
    prompt: Floats
    grown: Floats  # context at the end, less the prompt


def _work(classes: Classes, replicas: Floats, sticky: bool) -> _Work:
    generated = classes.generated
    context = classes.context
    asked = classes.read
    # Members of a group are spread over replicas, each of which computes their prompt once.
    alone = replicas * (1 - power(1 - 1 / np.maximum(replicas, 1), classes.group)) / classes.group
    prompts = classes.prompt * np.minimum(alone, 1.0)
    fresh = context - generated - classes.prompt + prompts
    stale = np.maximum(asked - (context - generated), 0.0)
    if not sticky:  # the prompt itself is cached on all replicas, by others of its group
        stale = np.maximum(stale - (classes.turns - 1) * classes.prompt, 0.0)
        elsewhere = 1 - 1 / np.maximum(replicas, 1)
        fresh, stale = fresh + elsewhere * stale, (1 - elsewhere) * stale
    return _Work(
        generated,
        classes.tools,
        classes.turns,
        fresh / generated,
        stale / generated,
        classes.prompt,
        context - classes.prompt,
    )


def _settle(model: ReplicaModel, work: _Work, weight: Floats, share: Floats, inside: NDArray[np.bool_]) -> Floats:
    """Seconds until each class ends."""
    latest = work.tools + work.generated * model.speed.decode[0][1] + np.zeros_like(weight)
    seated = np.ones_like(weight)
    for _ in range(_ROUNDS):
        latest = np.maximum.accumulate(np.where(inside, latest, 0.0), axis=1)
        lasts = np.maximum(latest, _TINY)
        step, wait = _pace(model, work, weight, share, latest, seated)
        spans = np.diff(latest, axis=1, prepend=0.0)
        decode = work.generated * lasts / np.maximum(np.cumsum(spans / step, axis=1), _TINY)
        queue = (work.turns - 0.5) * np.cumsum(spans * wait, axis=1) / lasts
        found = work.tools + decode + queue
        seated = decode / np.maximum(decode + queue, _TINY)
        latest = np.where(inside, np.sqrt(found * latest), 0.0)  # damped, or the iteration would oscillate
    settled: Floats = np.maximum.accumulate(latest, axis=1)
    return settled


def _pace(
    model: ReplicaModel, work: _Work, weight: Floats, share: Floats, latest: Floats, seated: Floats
) -> tuple[Floats, Floats]:
    """While each class is the next to end: (seconds of a step, seconds that a turn waits for a seat).

    ``seated`` is the share of its time outside tools for which a class has a seat.
    """
    lasts = np.maximum(latest, _TINY)
    awake = np.clip(1.0 - work.tools / lasts, 0.0, 1.0)
    busy = awake * seated

    def under_way(each: Floats) -> Floats:
        """The sum over classes still running on a replica, with at least one trajectory of the class itself."""
        sums: Floats = (1.0 - share) * each + np.cumsum((weight * each)[:, ::-1], axis=1)[:, ::-1]
        return sums

    middle = (latest + np.concatenate([np.zeros_like(latest[:, :1]), latest[:, :-1]], axis=1)) / 2
    wanting, demand = under_way(awake), np.maximum(under_way(busy), _TINY)
    held = (under_way(busy * work.prompt) + middle * under_way(busy * work.grown / lasts)) / demand
    running = np.minimum(wanting, np.minimum(model.seats, model.capacity / np.maximum(held, 1.0)))
    part = running / demand
    read = held * running
    known = under_way(work.prompt + 0.0 * awake) + middle * under_way(work.grown / lasts)
    lost = 1.0 - np.clip((model.capacity - read) / np.maximum(known - read, _TINY), 0.0, 1.0)
    turns = np.maximum(part * under_way(busy * work.turns / work.generated), _TINY)
    prompts = part * (under_way(busy * work.fresh) + lost * under_way(busy * work.stale))
    bare = _steps(model.speed, running)
    with_prompts = np.maximum(_steps(model.speed, running + prompts / np.minimum(turns, 1.0)), model.launch)
    step = bare + np.minimum(turns, 1.0) * (with_prompts - bare) + model.speed.read * read
    return step, np.maximum(wanting - running, 0.0) * step / turns


def _steps(speed: BucketSpeed, tokens: Floats) -> Floats:
    """Seconds of steps with these numbers of tokens, without attention to context.

    Linear between the points of the table; beyond the last, with the slope of a prompt token. Points are at integers,
    so a line is looked up by the integer part.
    """
    counts = np.array([0, *(count for count, _ in speed.decode)])
    seconds = np.array([speed.decode[0][1], *(seconds for _, seconds in speed.decode)])
    slopes = np.append(np.diff(seconds) / np.diff(counts), speed.prefill)
    starts = seconds - slopes * counts
    widths = np.append(np.diff(counts), 1)
    line = np.minimum(tokens, counts[-1]).astype(np.intp)
    found: Floats = np.repeat(starts, widths).take(line) + np.repeat(slopes, widths).take(line) * tokens
    return found
