"""The API server of an engine: it takes up requests one at a time, and sends tokens to clients."""

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
    """When clients see the tokens of an engine's steps. Steps must be asked for in order.

    Tokens of a large step take longer to send than those of a small one. No token overtakes those of an earlier step.
    """

    def __init__(self, terms: HostTerms, log: EngineLog) -> None:
        self._terms = terms
        self._log = log
        self._row = 0  # of the log: the stretch of the last step asked for
        self._latest = float("-inf")  # when all tokens of earlier steps have been seen

    def at(self, step: int) -> float:
        """When clients see the tokens of a step."""
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
    """When clients see the tokens of these steps, after the run and vectorised."""
    rows = log.stretches()
    takes = terms.output + (rows["n_decode"] + rows["prefill_requests"]) * terms.output_request
    last = rows["step"] + rows["steps"] - 1
    before = np.concatenate([[-np.inf], np.maximum.accumulate(log.end[last] + takes)])
    stretch = np.searchsorted(rows["step"], steps, side="right") - 1
    found: Floats = np.maximum(before[stretch], log.end[steps] + takes[stretch])
    return found
