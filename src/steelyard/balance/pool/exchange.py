"""One step's gradients: whose are in, whose are awaited, and what each counts for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def contributions(tokens: Mapping[int, int]) -> dict[int, float]:
    """Each replica's gradient, a mean over its own tokens, counts for its share of all tokens.

    A plain sum, or mean, of such means would have a token of a lightly loaded replica count for more than others.
    """
    total = sum(tokens.values())
    if not total:  # all gradients are nothing: any weights that add up to one will do
        return {replica: 1 / len(tokens) for replica in tokens}
    return {replica: count / total for replica, count in tokens.items()}


class Exchange:
    """Open from the barrier that a step begins with until its gradients are added up."""

    def __init__(self, step: int, version: int, core: Iterable[int], lent: Iterable[int]) -> None:
        self.step, self.version = step, version
        self.redo: list[int] = []
        self._tokens: dict[int, int] = {}
        self._core = dict.fromkeys(core)
        self._lent = dict.fromkeys(lent)

    @property
    def complete(self) -> bool:
        """Nobody is awaited any more."""
        return not self._core and not self._lent

    @property
    def late(self) -> list[int]:
        """Lent replicas that all of the core is waiting for."""
        return [] if self._core else list(self._lent)

    def give(self, replica: int, tokens: int) -> bool:
        """Take a gradient in; not where none is awaited."""
        for awaited in (self._core, self._lent):
            if replica in awaited:
                del awaited[replica]
                self._tokens[replica] = tokens
                return True
        return False

    def withdraw(self, replica: int) -> None:
        """A lent replica is out of this step, whether or not it had given its gradient."""
        if replica in self._lent or replica in self._tokens:
            self._lent.pop(replica, None)
            self._tokens.pop(replica, None)
            self.redo.append(replica)

    def weights(self, silent: Iterable[int]) -> tuple[tuple[int, float], ...]:
        """What each gradient counts for; nothing for those who only go along."""
        return tuple(sorted({**dict.fromkeys(silent, 0.0), **contributions(self._tokens)}.items()))
