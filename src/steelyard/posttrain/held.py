"""The GPUs that had one role for some time, and how long they were busy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from steelyard.posttrain.roles import Role, Tenure
from steelyard.records.columns import Floats


@dataclass(frozen=True)
class Held:
    """GPUs that had one role for some time, and, for rollout, when they were busy."""

    role: Role
    gpus: int
    since: float
    until: float
    busy_from: Floats
    busy_until: Floats

    @classmethod
    def of(cls, tenure: Tenure) -> Held:
        """The plain data of an entry in the book of roles."""
        busy = (np.empty(0), np.empty(0)) if tenure.log is None else tenure.log.busy()
        return cls(tenure.role, len(tenure.gpus), tenure.since, tenure.until, *busy)


def held_between(held: Iterable[Held], role: Role, edges: Floats) -> Floats:
    """GPU-seconds in a role between each two edges."""
    found = np.zeros(len(edges) - 1)
    for each in held:
        if each.role == role:
            found += each.gpus * covered(np.array([each.since]), np.array([each.until]), edges)
    return found


def busy_between(held: Iterable[Held], edges: Floats) -> Floats:
    """GPU-seconds between each two edges in which rollout engines were busy."""
    found = np.zeros(len(edges) - 1)
    for each in held:
        found += each.gpus * covered(each.busy_from, each.busy_until, edges)
    return found


def covered(start: Floats, end: Floats, edges: Floats) -> Floats:
    """Seconds between each two edges that spans cover, which come one after the other."""
    if not len(start):
        return np.zeros(len(edges) - 1)
    last = edges[-1]
    at = np.minimum(np.column_stack([start, end]).ravel(), last)
    lasted = at[1::2] - at[::2]
    after = np.cumsum(lasted)
    so_far = np.column_stack([after - lasted, after]).ravel()
    return np.diff(np.interp(edges, at, so_far))
