"""The record of a post-training run, for summaries and figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from steelyard.posttrain.attempt import Attempt
from steelyard.posttrain.training import TrainingTime
from steelyard.posttrain.trajectory_table import TrajectoryTable

_ENDING = 2  # steps: at most as many batches are in flight
_ROUND = 6  # steps: a multiple of two and three, the numbers of batches that may begin together


@dataclass(frozen=True)
class StepRecord:
    """One training step: when its samples were complete, when it was trained, when engines had its weights."""

    step: int
    waited_from: float  # when the trainer had nothing to do
    begun: float
    trained: float
    synced: float
    time: TrainingTime
    samples: int
    tokens: int  # generated tokens of its samples
    staleness: Sequence[int]  # of each sample, in versions
    spans: tuple[tuple[float, float], ...]  # when the job trained on it: one span per part
    handing_over: float  # seconds that co-located engines took to free their GPUs
    sync: float  # seconds from trained to synced
    training_gpus: int
    rollout_gpus: int  # when it was trained


@dataclass
class RoleChange:
    """A change of GPU roles: its predicted and realised gain, and its duration. Gains are differences of step times
    before and after, so they include drift of lengths."""

    step: int  # the step before the change
    what: str
    predicted: float
    seconds: float  # until all GPUs were in use again
    before: float  # seconds of the step before
    predicted_step: float  # predicted seconds of a step after the change
    after: list[float] = field(default_factory=list)  # seconds of the steps after the change
    outcome: str = "done"  # or under way, or rolled back

    @property
    def realised(self) -> float | None:
        """The realised gain; None before a whole step has run."""
        return self.before - sum(self.after) / len(self.after) if self.after else None


@dataclass(frozen=True)
class LayoutChange:
    """Engines of a round were merged into wide ones."""

    at: float
    until: float  # the wide ones ran
    left: int  # trajectories
    tp: int


@dataclass
class TokenCounts:
    """What happened to generated tokens, and which weights made those that were trained on."""

    ended: int = 0  # tokens of all trajectories that have ended
    trained: int = 0
    dropped: int = 0
    dropped_samples: int = 0
    ages: Counter[int] = field(default_factory=Counter)  # trained samples by the age of their oldest token, in versions
    versions: Counter[int] = field(default_factory=Counter)  # and by the number of versions that made them


@dataclass
class LoopRecord:
    """What happened in a run. Trajectories are rows of a table; ``watchers`` see each one when it ends."""

    steps: list[StepRecord] = field(default_factory=list)
    reallocations: list[RoleChange] = field(default_factory=list)
    layouts: list[LayoutChange] = field(default_factory=list)
    trajectories: TrajectoryTable = field(default_factory=TrajectoryTable)
    tokens: TokenCounts = field(default_factory=TokenCounts)
    last_end: float = 0.0  # of a trajectory
    watchers: list[Callable[[Attempt], object]] = field(default_factory=list)

    def end(self, attempt: Attempt) -> None:
        """A trajectory has ended."""
        self.trajectories.end(attempt)
        self.tokens.ended += attempt.generated
        self.last_end = max(self.last_end, attempt.ended)
        for watch in self.watchers:
            watch(attempt)

    def drop(self, attempt: Attempt) -> None:
        """A trajectory was aborted, or has ended and is not trained on."""
        self.trajectories.drop(attempt)
        self.tokens.dropped += attempt.generated
        self.tokens.dropped_samples += 1

    def train(self, step: int, batch: Sequence[Attempt]) -> None:
        """A step was trained on trajectories that had ended."""
        tokens = self.tokens
        for attempt in batch:
            self.trajectories.train(step, attempt)
            tokens.trained += attempt.generated
            tokens.ages[step - attempt.oldest] += 1
            tokens.versions[len(attempt.versions)] += 1

    def seconds(self, step: int) -> float:
        """From the end of the step before to the end of this one."""
        return self.steps[step].synced - (self.steps[step - 1].synced if step else 0.0)

    @property
    def settled(self) -> float:
        """Tokens trained on per second in steady state: the second half of the steps, when plans have settled, without
        the last ones, when no new batches load the engines. Counted in whole rounds if possible: of batches that begin
        together, the step of the first waits for all."""
        steps = self._settled_steps()
        return sum(self.steps[step].tokens for step in steps) / sum(map(self.seconds, steps))

    @property
    def settled_samples(self) -> float:
        """Samples trained on per second in steady state."""
        steps = self._settled_steps()
        return sum(self.steps[step].samples for step in steps) / sum(map(self.seconds, steps))

    @property
    def settled_step(self) -> float:
        """Mean seconds of a step in steady state."""
        steps = self._settled_steps()
        return sum(map(self.seconds, steps)) / len(steps)

    def _settled_steps(self) -> range:
        return settled_steps(len(self.steps))


def settled_steps(steps: int) -> range:
    """The steps of a run that count as settled."""
    last = max(steps // 2 + 1, steps - _ENDING)
    count = last - steps // 2
    return range(last - (count - count % _ROUND or count), last)


def settles(steps: int) -> bool:
    """Whether a run of so many steps has a whole round of settled ones. Fewer tell nothing for sure."""
    return len(settled_steps(steps)) >= _ROUND
