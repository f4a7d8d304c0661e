"""The process between clients and an engine: it takes up requests one at a time, and hands out tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.host import HostTerms
from steelyard.engine.log import DECODES, FIELDS, PREFILLS, EngineLog

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Frontend:
    """One engine's front end in virtual time. Requests are taken up, and reach the engine, in order of arrival."""

    def __init__(self, terms: HostTerms) -> None:
        self._terms = terms
        self._free = 0.0  # when the last request has been taken up
        self._seen = 0.0  # when the last one reached the engine

    def take(self, at: float, prompt: int) -> tuple[float, float]:
        """(taken up, visible to the scheduler) of a request that a client sends at ``at``."""
        terms = self._terms
        taken = max(at, self._free)
        self._free = taken + terms.submit
        self._seen = max(self._seen, self._free + terms.ingest + prompt * terms.ingest_token)
        return taken, self._seen


class Shown:
    """When clients see the tokens of an engine's steps, asked for in order.

    A large step takes longer to hand out than a small one, and no token overtakes those of an earlier step.
    """

    def __init__(self, terms: HostTerms, log: EngineLog) -> None:
        self._terms = terms
        self._log = log
        self._row = 0  # of the log: the stretch that was last asked about
        self._latest = float("-inf")  # when everything before it has been shown

    def at(self, step: int) -> float:
        """When the tokens of a step are shown."""
        rows, ends = self._log.rows, self._log.ends
        after = self._row + FIELDS
        while after < len(rows) and rows[after] <= step:
            self._latest = max(self._latest, ends[rows[after] - 1] + self._takes(self._row))
            self._row, after = after, after + FIELDS
        return max(self._latest, ends[step] + self._takes(self._row))

    def _takes(self, row: int) -> float:
        rows, terms = self._log.rows, self._terms
        return terms.output + (rows[row + DECODES] + rows[row + PREFILLS]) * terms.output_request


def shown(terms: HostTerms, log: EngineLog, steps: Ints) -> Floats:
    """The same afterwards, for any steps at once."""
    rows = log.stretches()
    takes = terms.output + (rows["n_decode"] + rows["prefill_requests"]) * terms.output_request
    last = rows["step"] + rows["steps"] - 1
    before = np.concatenate([[-np.inf], np.maximum.accumulate(log.end[last] + takes)])
    stretch = np.searchsorted(rows["step"], steps, side="right") - 1
    found: Floats = np.maximum(before[stretch], log.end[steps] + takes[stretch])
    return found
