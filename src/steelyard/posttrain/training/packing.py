"""Packing: a batch is split into updates, data-parallel ranks and micro-batches.

Updates are slices of the batch in its own order. Inside an update:

- ``balanced``, as in verl: every rank gets equally many sequences and about the same work, and its micro-batches about
  the same tokens, both by Karmarkar and Karp's differencing.
- ``best-fit`` fills micro-batches up to the token budget, longest sequence first, and assigns them to ranks.
- ``even`` treats sequences as divisible, so all micro-batches are equal. No packing is better, and none is faster to
  compute, so planners filter layouts with it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from operator import itemgetter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import UserError

Packing = Literal["balanced", "best-fit", "even"]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_WEIGHT = itemgetter(0)
_FILLED = 32  # results that are cached, one for each batch and budget
_Parts = list[tuple[float, list[int]]]  # the sum and the members of each part, heaviest first


@dataclass(frozen=True)
class Batches:
    """Sequences with the micro-batch of each: cells are numbered through updates, ranks and micro-batches.

    Without cells, every micro-batch has an even part of all sequences.
    """

    lengths: Ints
    cell: Ints | None
    shape: tuple[int, int, int]

    def add_up(self, values: Floats) -> Floats:
        """Sums of one value per sequence, by micro-batch."""
        updates, ranks, most = self.shape
        if self.cell is None:
            return np.full(self.shape, values.sum() / (updates * ranks * most))
        found: Floats = np.bincount(self.cell, values, updates * ranks * most).astype(np.float64, copy=False)
        return found.reshape(self.shape)

    @property
    def tokens(self) -> Floats:
        """Tokens of each micro-batch."""
        return self.add_up(self.lengths.astype(np.float64))


def pack(
    lengths: Ints, ranks: int, budget: int, *, updates: int = 1, packing: Packing = "balanced", quadratic: float = 0.0
) -> Batches:
    """Pack a batch. The work of a sequence of ``s`` tokens is ``s + quadratic * s * s``.

    Refuses a sequence that is longer than the budget: no micro-batch could hold it.
    """
    if len(lengths) == 0 or lengths.min() < 1:
        raise UserError("training: a step needs sequences of at least one token each")
    if lengths.max() > budget:
        raise UserError(
            f"training: a sequence of {lengths.max()} tokens does not fit a micro-batch of {budget}; raise "
            "micro_batch_tokens or cp"
        )
    if packing == "even":
        full = updates * ranks * budget
        return Batches(lengths, None, (updates, ranks, max(1, -(-int(lengths.sum()) // full))))
    ends = [round(len(lengths) * i / updates) for i in range(updates + 1)]
    place = _balanced if packing == "balanced" else _best_fit
    placed = [place(lengths[begin:end], ranks, budget, quadratic) for begin, end in pairwise(ends)]
    most = max(int(micro.max(initial=0)) for _, micro in placed) + 1
    cells = [(update * ranks + rank) * most + micro for update, (rank, micro) in enumerate(placed)]
    return Batches(lengths, np.concatenate(cells), (updates, ranks, most))


def _balanced(lengths: Ints, ranks: int, budget: int, quadratic: float) -> tuple[Ints, Ints]:
    """The rank and the micro-batch of each sequence. Ranks have equally many micro-batches, none above the budget."""
    tokens = lengths.tolist()
    rank, micro = np.zeros((2, len(tokens)), dtype=np.int64)
    work = (lengths + quadratic * np.square(lengths, dtype=np.float64)).tolist()
    members = differencing(work, list(range(len(tokens))), ranks, equal=True)
    count = max(1, *(-(-sum(tokens[i] for i in own) // budget) for own in members))
    while True:
        dealt = [differencing(tokens, own, count, equal=False) for own in members]
        if all(sum(tokens[i] for i in cell) <= budget for own in dealt for cell in own):
            break
        count += 1
    for i, own in enumerate(dealt):
        for j, cell in enumerate(own):
            rank[cell], micro[cell] = i, j
    return rank, micro


def differencing(weights: list[float], members: list[int], parts: int, *, equal: bool) -> list[list[int]]:
    """Karmarkar and Karp's largest differencing: splits members into parts of nearly equal weight, heaviest first.

    Starts with one partition for each member, or, to keep numbers ``equal``, for each row of as many members as parts.
    The two least even partitions are merged, the heaviest part of one with the lightest of the other, until one is
    left.
    """
    if parts == 1:
        return [list(members)]
    order = sorted(members, key=weights.__getitem__, reverse=True)
    each = parts if equal else 1
    heap: list[tuple[float, int, _Parts]] = []
    for number, begin in enumerate(range(0, len(order), each)):
        row: _Parts = [(weights[i], [i]) for i in order[begin : begin + each]]
        lightest = row[-1][0] if len(row) == parts else 0.0
        heap.append((lightest - row[0][0], number, row))  # parts without members are left out
    if not heap:
        return [[] for _ in range(parts)]
    heapify(heap)
    for number in range(len(heap), 2 * len(heap) - 1):
        _, _, one = heappop(heap)
        both = _joined(one, heap[0][2], parts)
        lightest = both[-1][0] if len(both) == parts else 0.0
        heapreplace(heap, (lightest - both[0][0], number, both))
    found = [own for _, own in heap[0][2]]
    return found + [[] for _ in range(parts - len(found))]


def _joined(one: _Parts, other: _Parts, parts: int) -> _Parts:
    """Merge two partitions, heaviest part with lightest. Reuses the lists of members."""
    apart = parts - len(other)  # parts of the first that are merged with an empty one
    both = one[:apart]
    for (a, own), (b, more) in zip(one[apart:], reversed(other), strict=False):
        own.extend(more)
        both.append((a + b, own))
    both += other[: max(0, parts - len(one))]
    both.sort(key=_WEIGHT, reverse=True)
    return both


def _best_fit(lengths: Ints, ranks: int, budget: int, quadratic: float) -> tuple[Ints, Ints]:
    """Sequences, longest first, go into the fullest micro-batch with room; the heaviest goes to the idlest rank."""
    filled = _filled(lengths.tobytes(), budget, quadratic)
    idlest = [(0.0, 0, rank) for rank in range(ranks)]
    chosen, counts = list[int](), list[int]()
    for work in filled.work:
        busy, count, rank = idlest[0]
        chosen.append(rank)
        counts.append(count)
        heapreplace(idlest, (busy + work, count + 1, rank))
    dealt: Ints = np.empty((2, len(lengths)), dtype=np.int64)
    dealt[:, filled.members] = np.repeat(np.array((chosen, counts), dtype=np.int64), filled.sizes, axis=1)
    return dealt[0], dealt[1]


@dataclass(frozen=True)
class _Filled:
    """Micro-batches that are not assigned yet, heaviest first."""

    members: Ints  # of all micro-batches, concatenated
    sizes: Ints
    work: list[float]


@lru_cache(_FILLED)
def _filled(sequences: bytes, budget: int, quadratic: float) -> _Filled:
    """Micro-batches filled up to the budget. Cached, since planners try the same ones with many numbers of ranks."""
    lengths = np.frombuffer(sequences, dtype=np.int64)
    room: list[tuple[int, int]] = []
    bins: list[list[int]] = []
    values = lengths.tolist()
    for i in np.argsort(-lengths, kind="stable").tolist():
        value = values[i]
        at = bisect_left(room, (value, -1))
        if at < len(room):
            left, number = room.pop(at)
            bins[number].append(i)
        else:
            left, number = budget, len(bins)
            bins.append([i])
        insort(room, (left - value, number))
    work = [sum([values[i] + quadratic * values[i] ** 2 for i in own]) for own in bins]
    order = sorted(range(len(bins)), key=lambda each: -work[each])
    members = np.array([i for number in order for i in bins[number]], dtype=np.int64)
    sizes = np.array([len(bins[number]) for number in order], dtype=np.int64)
    return _Filled(members, sizes, [work[number] for number in order])
