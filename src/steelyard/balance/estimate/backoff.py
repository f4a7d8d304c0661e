"""Back-off over the last signals: what trajectories had left at about this turn after the same last two tool returns.

A context's mean counts as much as it has samples beside a few of the next wider one's (hierarchical shrinkage), so a
suffix that is rare, or new, leaves the answer to the shorter one.
"""

from __future__ import annotations

from typing import Any

from steelyard.balance.estimate.history import History, signal

_PRIOR = 10.0  # samples that the wider context counts as
_MEMORY = 200.0  # a context forgets what is older than about so many of its own samples

Context = tuple[Any, ...]


def contexts(history: History) -> tuple[Context, ...]:
    """From wide to narrow: everything, half octave of the turn, and with it the last signal, the last two."""
    turns = history.turns
    at = (len(turns) * len(turns)).bit_length()
    last = signal(turns[-1])
    before = signal(turns[-2]) if len(turns) > 1 else None
    return (), (at,), (at, last), (at, last, before)


class SuffixTable:
    """Means by context, updated one sample at a time."""

    def __init__(self) -> None:
        self._means: dict[Context, tuple[float, float]] = {}  # samples, their mean

    def expect(self, chain: tuple[Context, ...]) -> float:
        """The narrowest context's mean, shrunk towards the wider ones."""
        expected = 0.0
        weight = 0.0
        for context in chain:
            known = self._means.get(context)
            if known is None:
                break
            count, mean = known
            expected = (count * mean + weight * expected) / (count + weight)
            weight = _PRIOR
        return expected

    def add(self, chain: tuple[Context, ...], value: float) -> None:
        """Take in a sample for every context of its chain."""
        for context in chain:
            count, mean = self._means.get(context, (0.0, 0.0))
            count = min(count + 1.0, _MEMORY)
            self._means[context] = (count, mean + (value - mean) / count)
