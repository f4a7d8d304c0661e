"""Whether an engine has a trainer's weights, by log-probs of a few token sequences. Pure.

**Tolerance.** The same weights give different log-probs on an engine and a trainer, since their kernels add in another
order. It is bounded by the mean over a sequence: single tokens vary much more. Measured with a Qwen2 of 12 layers and
random weights, whose logits reach 16, between two kinds of attention: the mean difference is 2e-6 in float32 and 0.03
in bfloat16, which has 8 significant bits, so that a logit of 16 is known to 1/16. The tolerances are chosen from
that: 50 times as much for float32, since real models are deeper, and 3 times as much for bfloat16, which leaves room
below what other weights give.

**Change.** One small step of training moves log-probs by less than bfloat16 blurs them. So a probe can have the
trainer's log-probs under the weights before, too. The engine must then have moved along with the trainer: the share of
the trainer's change that it shows is 1 for new weights and 0 for old ones, and is judged at one half where the change
as a whole is large enough to tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_TELLING = 6.0  # tolerances that the trainer's change must have, so that 1/2 is 3 of them from both 0 and 1; chosen


class Tolerance(NamedTuple):
    """The largest mean difference of log-probs that the same weights may have."""

    mean: float


FLOAT32 = Tolerance(1e-4)
BFLOAT16 = Tolerance(0.1)


@dataclass(frozen=True)
class WeightProbe:
    """A token sequence and the trainer's log-probs of all its tokens but the first."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    before: tuple[float, ...] = ()  # the same under the weights before

    def __post_init__(self) -> None:
        wanted = len(self.tokens) - 1
        if wanted < 1 or len(self.logprobs) != wanted or len(self.before) not in (0, wanted):
            raise ValueError(f"a probe of {len(self.tokens)} tokens needs a log-prob for each but the first")
        if not all(map(math.isfinite, (*self.logprobs, *self.before))):
            raise ValueError("the log-probs of a probe must be finite numbers")


class ProbeVerdict(NamedTuple):
    """What a probe found. ``why`` is empty if the engine has the trainer's weights."""

    why: str
    difference: float  # the largest mean difference of a sequence
    share: float | None = None  # of the trainer's change that the engine shows, if that can be told


def compare(probes: Sequence[WeightProbe], found: Sequence[Sequence[float]], tolerance: Tolerance) -> ProbeVerdict:
    """Compare an engine's log-probs with the trainer's."""
    worst = max(_mean_difference(probe.logprobs, own) for probe, own in zip(probes, found, strict=True))
    share = _share(probes, found, tolerance)
    why = ""
    if not worst <= tolerance.mean:
        why = f"its log-probs differ from the trainer's by {worst:.3g} on the mean, of at most {tolerance.mean:g}"
    elif share is not None and share < 0.5:
        why = f"its log-probs are those of the weights before: they show {share:.0%} of the trainer's change"
    return ProbeVerdict(why, worst, share)


def _mean_difference(wanted: Sequence[float], found: Sequence[float]) -> float:
    return sum(abs(one - other) for one, other in zip(wanted, found, strict=True)) / len(wanted)


def _share(probes: Sequence[WeightProbe], found: Sequence[Sequence[float]], tolerance: Tolerance) -> float | None:
    """How far the engine has gone from the weights before to the new ones, by least squares."""
    product = square = 0.0
    for probe, own in zip(probes, found, strict=True):
        for before, wanted, shown in zip(probe.before, probe.logprobs, own, strict=False):  # it may have none
            product += (shown - before) * (wanted - before)
            square += (wanted - before) ** 2
    return product / square if math.sqrt(square) >= _TELLING * tolerance.mean else None
