"""One step's gradients: which are in, which are awaited, and their weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def contributions(tokens: Mapping[int, int]) -> dict[int, float]:
    """The weight of each replica's gradient, which is a mean over its own tokens: its share of all tokens.

    In a plain mean of these means, a token of a lightly loaded replica would count for more than others.
    """
    total = sum(tokens.values())
    if not total:  # all gradients are zero: any weights that sum to one are right
        return {replica: 1 / len(tokens) for replica in tokens}
    return {replica: count / total for replica, count in tokens.items()}


class Exchange:
    """Open from the barrier before a step until its gradients are summed."""

    def __init__(self, step: int, version: int, core: Iterable[int], lent: Iterable[int]) -> None:
        self.step, self.version = step, version
        self.redo: list[int] = []
        self._tokens: dict[int, int] = {}
        self._core = dict.fromkeys(core)
        self._lent = dict.fromkeys(lent)

    @property
    def complete(self) -> bool:
        """No gradient is awaited any more."""
        return not self._core and not self._lent

    @property
    def late(self) -> list[int]:
        """Lent replicas that the whole core waits for."""
        return [] if self._core else list(self._lent)

    def give(self, replica: int, tokens: int) -> bool:
        """Accept a gradient. False if none of this replica is awaited."""
        for awaited in (self._core, self._lent):
            if replica in awaited:
                del awaited[replica]
                self._tokens[replica] = tokens
                return True
        return False

    def withdraw(self, replica: int) -> None:
        """Remove a lent replica from this step, with its gradient if that is in."""
        if replica in self._lent or replica in self._tokens:
            self._lent.pop(replica, None)
            self._tokens.pop(replica, None)
            self.redo.append(replica)

    def weights(self, silent: Iterable[int]) -> tuple[tuple[int, float], ...]:
        """The weight of each gradient; 0 for replicas that are only syncing."""
        return tuple(sorted({**dict.fromkeys(silent, 0.0), **contributions(self._tokens)}.items()))
