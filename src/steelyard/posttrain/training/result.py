"""The time of a training step, by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class TimeSplit:
    """Seconds of a step by part; their sum is its duration.

    Arithmetic and exchanges are means over GPUs; only the part of an exchange that nothing hides counts. ``bubble`` is
    the time that pipeline stages wait for each other (sends included), ``imbalance`` that ranks wait for the slowest.
    """

    log_probs: float  # passes without gradients, all of it
    forward: float
    backward: float
    recompute: float
    bubble: float
    tp: float
    ep: float
    cp: float
    dp: float
    optimiser: float
    imbalance: float

    @property
    def total(self) -> float:
        return sum(self.by_part().values())

    @property
    def update(self) -> float:
        """Seconds of all parts but the passes without gradients."""
        return self.total - self.log_probs

    def by_part(self) -> dict[str, float]:
        """Seconds of each part."""
        return dict(vars(self))


@dataclass(frozen=True)
class TrainingTime:
    """One training step of a job."""

    split: TimeSplit
    tokens: int
    sequences: int
    micro_batches: int  # of the rank with most of them, in all updates of one epoch
    update_flops: float
    log_prob_flops: float
    gpus: int
    peak: float  # operations/s of one GPU

    @staticmethod
    def together(parts: Sequence[TrainingTime]) -> TrainingTime:
        """The step that these parts make."""
        first, *others = parts
        if not others:
            return first
        sums = {name: sum(each.split.by_part()[name] for each in parts) for name in first.split.by_part()}
        return replace(
            first,
            split=TimeSplit(**sums),
            tokens=sum(each.tokens for each in parts),
            sequences=sum(each.sequences for each in parts),
            micro_batches=sum(each.micro_batches for each in parts),
            update_flops=sum(each.update_flops for each in parts),
            log_prob_flops=sum(each.log_prob_flops for each in parts),
        )

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return self.split.total

    @property
    def flops(self) -> float:
        """Useful operations of all GPUs together."""
        return self.update_flops + self.log_prob_flops

    @property
    def mfu(self) -> float:
        """Share of the peak that useful operations reach over the whole step."""
        return self.flops / (self.seconds * self.gpus * self.peak)

    @property
    def tokens_per_gpu_second(self) -> float:
        """Tokens trained on per GPU and second, each counted once however many epochs."""
        return self.tokens / (self.seconds * self.gpus)
