"""The table of trajectories that are over: all that a run keeps of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pickle import dumps, loads
from typing import Any
from zlib import compress, decompress

import numpy as np
from numpy.typing import NDArray

from steelyard.posttrain.attempt import Attempt

Column = NDArray[Any]

_TEXTS: dict[str, type] = {"id": object, "prompt": object}
_NUMBERS: dict[str, type] = {
    "version": np.int64,
    "oldest": np.int64,
    "versions": np.int64,
    "turns": np.int64,
    "generated": np.int64,
    "context": np.int64,
    "replica": np.int64,
    "rerouted": np.int64,
    "begun": np.float64,
    "ended": np.float64,
}
_CHUNK = 1024  # rows
_WAITS, _DROPPED = -1, -2  # fates of trajectories that were not trained on


class TrajectoryTable:
    """One row per trajectory that has ended or was aborted. A long run has millions, so rows are packed."""

    def __init__(self) -> None:
        self._ended = _Rows()
        self._fates = array("i")  # of each of these: the step that was trained on it, or one of those above
        self._aborted = _Rows()

    def end(self, attempt: Attempt) -> None:
        """Add a trajectory that has ended."""
        attempt.row = len(self._fates)
        self._ended.add(attempt)
        self._fates.append(_WAITS)

    def drop(self, attempt: Attempt) -> None:
        """A trajectory was aborted, or has ended and is not trained on."""
        if attempt.row is None:
            self._aborted.add(attempt)
        else:
            self._fates[attempt.row] = _DROPPED

    def train(self, step: int, attempt: Attempt) -> None:
        """A step was trained on a trajectory that had ended."""
        assert attempt.row is not None, "it has ended"
        self._fates[attempt.row] = step

    def ended(self) -> dict[str, Column]:
        """The numbers of those that have ended, in the order in which they did."""
        return self._ended.numbers.columns()

    def columns(self) -> dict[str, Column]:
        """All, in the order in which they ended; aborted ones come last. ``step`` and ``staleness`` are -1 for those
        not trained on."""
        parts = list(self.parts())
        return _joined(parts[0], parts)

    def parts(self) -> Iterator[dict[str, Column]]:
        """The same, some rows at a time."""
        first = 0
        for texts, numbers in self._ended.parts():
            rows = len(numbers["begun"])
            yield _rows(texts, numbers, np.array(self._fates[first : first + rows], dtype=np.int64))
            first += rows
        for texts, numbers in self._aborted.parts():
            yield _rows(texts, numbers, np.full(len(numbers["begun"]), _DROPPED, dtype=np.int64))


def _rows(texts: Mapping[str, Column], numbers: Mapping[str, Column], fates: Column) -> dict[str, Column]:
    trained = fates >= 0
    return {
        **texts,
        "step": np.maximum(fates, _WAITS),
        "staleness": np.where(trained, fates - numbers["version"], -1),
        "given_up": fates == _DROPPED,
        **numbers,
    }


class _Rows:
    """Texts and numbers apart, as summaries need numbers only."""

    def __init__(self) -> None:
        self.texts = _Packed(_TEXTS)
        self.numbers = _Packed(_NUMBERS)

    def add(self, attempt: Attempt) -> None:
        each = attempt.trajectory
        self.texts.add((each.id, each.prompt))
        self.numbers.add(
            (
                attempt.version,
                attempt.oldest,
                len(attempt.versions),
                attempt.turns,
                attempt.generated,
                attempt.context,
                attempt.replica,
                attempt.rerouted,
                attempt.begun,
                attempt.ended,
            )
        )

    def parts(self) -> Iterator[tuple[dict[str, Column], dict[str, Column]]]:
        """Texts and numbers of some rows at a time; the last part may have none."""
        return zip(self.texts.parts(), self.numbers.parts(), strict=True)


class _Packed:
    """Rows of plain values. All but the latest are compressed, to some ten bytes each."""

    def __init__(self, kinds: Mapping[str, type]) -> None:
        self._kinds = kinds
        self._chunks: list[bytes] = []
        self._latest: list[Sequence[Any]] = []

    def __len__(self) -> int:
        return _CHUNK * len(self._chunks) + len(self._latest)

    def add(self, row: Sequence[Any]) -> None:
        self._latest.append(row)
        if len(self._latest) == _CHUNK:
            self._chunks.append(compress(dumps(self._unpacked()), level=1))
            self._latest.clear()

    def columns(self) -> dict[str, Column]:
        return _joined(self._kinds, list(self.parts()))

    def parts(self) -> Iterator[dict[str, Column]]:
        yield from (loads(decompress(chunk)) for chunk in self._chunks)
        yield self._unpacked()

    def _unpacked(self) -> dict[str, Column]:
        columns = zip(*self._latest, strict=True) if self._latest else [()] * len(self._kinds)
        named = zip(self._kinds.items(), columns, strict=True)
        return {name: np.array(column, dtype=kind) for (name, kind), column in named}


def _joined(names: Iterable[str], parts: Sequence[Mapping[str, Column]]) -> dict[str, Column]:
    return {name: np.concatenate([part[name] for part in parts]) for name in names}
