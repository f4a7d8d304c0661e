"""Requests of several rounds: the plan a row belongs to, whether it is visible, and what it waits for besides
``after``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from steelyard.scenario.sessions import Retention

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RETENTIONS: tuple[Retention, ...] = get_args(Retention)
KEPT = RETENTIONS.index("kept")
VISIBLE, HIDDEN = range(2)


@dataclass
class RoundColumns:
    """The columns that only plans need; a workload without plans has none of them.

    Joins are further waits of rows that already have one in ``Workload.after``, in order of the waiting row.
    """

    first: Ints  # the first round of the same plan, which the user submitted
    phase: Ints  # VISIBLE, or HIDDEN for a round before the answer
    kv: Ints  # index into RETENTIONS: what happens to its blocks while its tool runs
    opening: Ints  # leading prompt tokens that other requests share
    join_row: Ints  # the row that waits
    join_after: Ints  # the row whose end it waits for
    join_think: Floats  # seconds that it waits after that

    def promises(self, after: Ints) -> dict[str, bool]:
        """The invariants, by the message if one does not hold."""
        n = len(after)
        columns = (self.first, self.phase, self.kv, self.opening)
        return {
            "columns of rounds differ in length": all(len(column) == n for column in columns),
            "joins differ in length": len(self.join_row) == len(self.join_after) == len(self.join_think),
            "a plan starts after one of its rounds": bool(
                ((self.first >= 0) & (self.first <= np.arange(n))).all()
                and (self.first[self.first] == self.first).all()
            ),
            "a join has no other wait": bool((after[self.join_row] >= 0).all()),
            "joins are not in order": bool((np.diff(self.join_row) >= 0).all()),
            "a join comes before what it waits for": bool(
                (self.join_after >= 0).all() and (self.join_after < self.join_row).all()
            ),
            "a join's pause is negative or endless": bool(
                (self.join_think >= 0).all() and np.isfinite(self.join_think).all()
            ),
        }

    def take(self, rows: Ints, place: Ints) -> RoundColumns:
        """The given rows in the given order; ``place`` is the new position of each row, -1 if it was removed."""
        joins = np.flatnonzero(place[self.join_row] >= 0)
        joins = joins[np.argsort(place[self.join_row[joins]], kind="stable")]
        return RoundColumns(
            first=place[self.first[rows]],
            phase=self.phase[rows],
            kv=self.kv[rows],
            opening=self.opening[rows],
            join_row=place[self.join_row[joins]],
            join_after=place[self.join_after[joins]],
            join_think=self.join_think[joins],
        )


def single_rounds(n: int) -> RoundColumns:
    """Rows of requests with a single round each."""
    none = np.empty(0, dtype=np.int64)
    zeros = np.zeros(n, dtype=np.int64)
    return RoundColumns(np.arange(n), zeros, np.full(n, KEPT), zeros, none, none, np.empty(0))


def merge_rounds(parts: Sequence[RoundColumns], starts: Sequence[int]) -> RoundColumns:
    """Rows of several workloads in sequence, each part from its start on."""

    def moved(columns: Sequence[Ints]) -> Ints:
        return np.concatenate([column + start for column, start in zip(columns, starts, strict=True)])

    return RoundColumns(
        first=moved([part.first for part in parts]),
        phase=np.concatenate([part.phase for part in parts]),
        kv=np.concatenate([part.kv for part in parts]),
        opening=np.concatenate([part.opening for part in parts]),
        join_row=moved([part.join_row for part in parts]),
        join_after=moved([part.join_after for part in parts]),
        join_think=np.concatenate([part.join_think for part in parts]),
    )
