"""Estimators predict how many tokens a trajectory still generates. They learn from trajectories that have ended."""

from collections.abc import Callable

from steelyard.balance.estimate.history import History, Signal, signal
from steelyard.balance.estimate.plain import Blind, ByTurn
from steelyard.balance.estimate.protocol import UNKNOWN, Estimator, Left
from steelyard.balance.estimate.suffix import SuffixBackoff
from steelyard.balance.estimate.trie import PaperTrie
from steelyard.balance.estimate.truth import Noisy, Oracle

NOISE = 0.5  # sigma of `Noisy`: its prediction is within a factor of e ** 0.5 of the truth two times in three

ESTIMATORS: dict[str, Callable[[Oracle], Estimator]] = {
    "blind": lambda _: Blind(),
    "turn": lambda _: ByTurn(),
    "trie": lambda _: PaperTrie(),
    "suffix": lambda _: SuffixBackoff(),
    "noisy": lambda truth: Noisy(truth, NOISE),
    "oracle": lambda truth: truth,
}
"""By name. Each is made from an oracle, which `noisy` and `oracle` use."""

__all__ = [
    "ESTIMATORS",
    "NOISE",
    "UNKNOWN",
    "Blind",
    "ByTurn",
    "Estimator",
    "History",
    "Left",
    "Noisy",
    "Oracle",
    "PaperTrie",
    "Signal",
    "SuffixBackoff",
    "signal",
]
