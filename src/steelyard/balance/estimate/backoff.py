"""Back-off over suffixes: what trajectories had left at about this turn, after the same last two tool returns.

A context's mean is shrunk towards that of the next wider context, the more the fewer samples it has (hierarchical
shrinkage). So a rare or new suffix is predicted by the shorter one.
"""

from __future__ import annotations

from typing import Any

from steelyard.balance.estimate.history import History, signal

# Chosen by hand, as docs/estimators.md says.
_PRIOR = 10.0  # samples that the wider context counts for
_MEMORY = 200.0  # samples of its own that a context remembers

Context = tuple[Any, ...]


def contexts(history: History) -> tuple[Context, ...]:
    """From wide to narrow: all, the half octave of the turn, with it the last signal, with it the last two."""
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
        """The mean of the narrowest known context, shrunk towards the wider ones."""
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
        """Add a sample to every context of its chain."""
        for context in chain:
            count, mean = self._means.get(context, (0.0, 0.0))
            count = min(count + 1.0, _MEMORY)
            self._means[context] = (count, mean + (value - mean) / count)
