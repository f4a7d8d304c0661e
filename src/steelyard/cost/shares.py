"""Where the times of each family of operators come from, as shares of its time: what the errors of a step depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from steelyard.cost.source import PROVENANCES, DecodeAttention, Estimate, Floats, PrefillAttention, Provenance

_REQUESTS = (1, 64)  # sizes of batches of decodes that are looked at


@dataclass
class FamilyShares:
    """Adds up seconds by family and provenance, at a few numbers of rows that count alike."""

    most_rows: int
    _seconds: dict[str, Floats] = field(default_factory=dict)  # by provenance and number of rows
    _kernels: dict[str, list[int]] = field(default_factory=dict)  # provenances of attention and recurrence

    def take(self, other: FamilyShares, count: int) -> None:
        """Add ``count`` times what others have."""
        for family, table in other._seconds.items():
            self._seconds[family] = self._seconds.get(family, 0.0) + count * table
        for family, kinds in other._kernels.items():
            self._kernels.setdefault(family, []).extend(count * kinds)

    def add(self, family: str, layers: int, found: Estimate) -> None:
        """Add an operator of some layers, with its seconds for 0, 1, 2, … rows."""
        at = np.minimum(2 ** np.arange(self.most_rows.bit_length()), len(found.seconds) - 1)
        table = self._seconds.setdefault(family, np.zeros((len(PROVENANCES), len(at))))
        table[found.provenance[at], np.arange(len(at))] += layers * found.seconds[at]

    def add_kernels(self, family: str, prefill: PrefillAttention, decode: DecodeAttention, most: int) -> None:
        """Add the attention, or the recurrence, of one kind of layer."""
        kinds = self._kernels.setdefault(family, [])
        kinds.append(prefill.provenance)
        kinds += [decode.curve(min(requests, most)).provenance for requests in _REQUESTS]

    def by_family(self) -> Mapping[str, Mapping[Provenance, float]]:
        """Of each family the share of every provenance that it has."""
        found = {
            name: (table / np.maximum(table.sum(axis=0), 1e-30)).mean(axis=1) for name, table in self._seconds.items()
        }
        for family, kinds in self._kernels.items():
            found[family] = np.bincount(kinds, minlength=len(PROVENANCES)) / len(kinds)
        return {
            name: {kind: float(share) for kind, share in zip(PROVENANCES, shares, strict=True) if share > 0}
            for name, shares in found.items()
        }
