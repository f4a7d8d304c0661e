"""Estimators of what a trajectory has left to generate, asked at each tool return and taught by each that ends."""

from steelyard.balance.estimate.history import History, Signal, signal
from steelyard.balance.estimate.plain import Blind, ByTurn
from steelyard.balance.estimate.protocol import UNKNOWN, Estimator, Left
from steelyard.balance.estimate.suffix import SuffixBackoff
from steelyard.balance.estimate.trie import PaperTrie
from steelyard.balance.estimate.truth import Noisy, Oracle

__all__ = [
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
