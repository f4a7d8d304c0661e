"""Libra's estimator as published (arXiv 2606.03077): tries of signals, one per prompt and one of all prompts."""

from __future__ import annotations

from collections import deque

from steelyard.balance.estimate.history import History, Signal, signal, tool_returns
from steelyard.balance.estimate.protocol import Left
from steelyard.balance.estimate.recent import RecentSamples
from steelyard.records import Trajectory


class _Node:
    __slots__ = ("after", "recent")

    def __init__(self) -> None:
        self.recent = RecentSamples(200)
        self.after: dict[Signal, _Node] = {}

    def deepest(self, signals: list[Signal]) -> _Node:
        """The node of the longest known prefix of some signals."""
        node = self
        for each in signals:
            following = node.after.get(each)
            if following is None:
                break
            node = following
        return node

    def insert(self, signals: list[Signal], left: list[int]) -> None:
        """Add what was left after each prefix; the root gets every sample."""
        node = self
        for each, sample in zip(signals, left, strict=True):
            self.recent.add(sample)
            node = node.after.setdefault(each, _Node())
            node.recent.add(sample)


class PaperTrie:
    """Predicts by the longest known prefix, in the prompt's own trie if it has the first signal, else in that of all
    prompts.

    If neither has the first signal, it predicts the mean over recent tool returns. ``rebuild`` forgets all but the last
    ``keep`` trajectories. It is done whenever ``most`` have been learnt since: in a run, those of 50 steps, as in the
    paper.
    """

    def __init__(self, keep: int = 5_000, most: int = 50_000) -> None:
        self._kept: deque[tuple[str, list[Signal], list[int]]] = deque(maxlen=keep)
        self._most = most
        self._learnt = 0  # since the tries were last built
        self._all = _Node()
        self._prompts: dict[str, _Node] = {}

    def observe(self, history: History) -> Left:
        signals = [signal(turn) for turn in history.turns]
        own = self._prompts.get(history.prompt)
        if own is not None and signals[0] in own.after:
            return own.deepest(signals).recent.left()
        return self._all.deepest(signals).recent.left()

    def learn(self, done: Trajectory) -> None:
        signals = [signal(turn) for turn in done.turns[:-1]]
        left = [sample for _, sample in tool_returns(done)]
        self._kept.append((done.prompt, signals, left))
        self._insert(done.prompt, signals, left)
        self._learnt += 1
        if self._learnt >= self._most:
            self.rebuild()

    def rebuild(self) -> None:
        """Forget all but the last trajectories."""
        self._all = _Node()
        self._prompts = {}
        self._learnt = 0
        for prompt, signals, left in self._kept:
            self._insert(prompt, signals, left)

    def _insert(self, prompt: str, signals: list[Signal], left: list[int]) -> None:
        self._all.insert(signals, left)
        self._prompts.setdefault(prompt, _Node()).insert(signals, left)
