"""The record of a post-training run, for summaries and figures."""

from __future__ import annotations

from dataclasses import dataclass, field

from steelyard.posttrain.attempt import Attempt
from steelyard.posttrain.training import TrainingTime

_ENDING = 2  # steps: as many batches are under way at most
_ROUND = 6  # steps: of two batches and of three that began together, as many whole rounds


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
    staleness: tuple[int, ...]  # of each sample, in versions
    spans: tuple[tuple[float, float], ...]  # when the job worked on it: one, unless samples came in parts
    handing_over: float  # seconds that co-located engines took to give their GPUs up
    sync: float  # seconds from trained to synced
    training_gpus: int
    rollout_gpus: int  # when it was trained


@dataclass
class RoleChange:
    """GPUs that changed roles: the predicted and the realised gain, and how long it took. Gains are seconds of a step,
    the difference of before and after, so a drift of lengths is in them, too."""

    step: int  # after which
    what: str
    predicted: float
    seconds: float  # until all were at work again
    before: float  # seconds of the step before
    predicted_step: float  # and of a step since, as predicted
    after: list[float] = field(default_factory=list)  # and of those since
    outcome: str = "done"  # or under way, or rolled back

    @property
    def realised(self) -> float | None:
        """None while no whole step has been run since."""
        return self.before - sum(self.after) / len(self.after) if self.after else None


@dataclass
class LoopRecord:
    """All that happened."""

    steps: list[StepRecord] = field(default_factory=list)
    samples: list[Attempt] = field(default_factory=list)  # in the order in which they ended
    batches: list[list[Attempt]] = field(default_factory=list)  # what each step was trained on
    thrown: list[Attempt] = field(default_factory=list)  # stopped for good, or ended and not trained on
    reallocations: list[RoleChange] = field(default_factory=list)

    def seconds(self, step: int) -> float:
        """From the end of the step before to the end of this one."""
        return self.steps[step].synced - (self.steps[step - 1].synced if step else 0.0)

    @property
    def settled(self) -> float:
        """Tokens trained on per second from half of the steps on, when plans have settled, up to those at the end that
        have engines to themselves, as nothing new begins. In whole rounds, if there are any: batches that began
        together come one after the other again and again, and the first of them has its step wait for all."""
        last = max(len(self.steps) // 2 + 1, len(self.steps) - _ENDING)
        count = last - len(self.steps) // 2
        steps = range(last - (count - count % _ROUND or count), last)
        return sum(self.steps[step].tokens for step in steps) / sum(map(self.seconds, steps))
