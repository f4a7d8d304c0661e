"""Results of contenders over one or more seeds: which is best by each measure, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import exp, log, sqrt
from statistics import fmean, stdev
from typing import Any

from steelyard.posttrain.compare_choices import Contender
from steelyard.posttrain.record import settles
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.sim.student import quantile

JUDGED_BY = "settled_tokens_per_second"
"""The figure by which `steelyard compare` ranks first. It counts tokens, so that dropping long samples is no gain, and
excludes the first and last steps, since real runs have hundreds."""
CONFIDENCE = 0.9
_CLOSE = 0.1  # of the best: with another seed, contenders this close may be in another order
_EVEN = 0.001  # relative difference that counts as none


@dataclass(frozen=True)
class Metric:
    """A measure of a run."""

    name: str
    key: tuple[str, ...]  # in a run's figures
    unit: str
    less: bool = False  # whether less is better
    of_ours: str = "ours"  # the row that we are judged by

    def value(self, figures: Mapping[str, Any]) -> float | None:
        """The figure of a run; None if it has none."""
        found: Any = figures
        for key in self.key:
            if found is None:
                return None
            found = found.get(key)
        return None if found is None else float(found)

    def speed(self, figures: Mapping[str, Any]) -> float | None:
        """The same so that more is better."""
        value = self.value(figures)
        return None if not value else 1 / value if self.less else value


THROUGHPUT = Metric("tokens per second", (JUDGED_BY,), "tokens/s")
SAMPLES = Metric("samples per second", ("settled_samples_per_second",), "samples/s")
REWARD = Metric("time to reward", ("time_to_reward", "seconds"), "s", less=True, of_ours="ours, for reward")
COST = Metric("cost of a point of reward", ("time_to_reward", "usd_per_point"), "$", less=True, of_ours=REWARD.of_ours)
METRICS = (THROUGHPUT, SAMPLES, REWARD, COST)
ASSUMPTIONS = (
    Metric("half the penalty", ("time_to_reward", "penalty", "half"), "s", less=True, of_ours=REWARD.of_ours),
    Metric("double the penalty", ("time_to_reward", "penalty", "double"), "s", less=True, of_ours=REWARD.of_ours),
    Metric("reward by tokens", ("effective_tokens_per_second",), "tokens/s", of_ours=REWARD.of_ours),
)
"""Time to reward under other assumptions: stale samples count for more, or for less, or tokens teach, not samples."""


@dataclass(frozen=True)
class SpeedRatio:
    """How much better one way is than another: the mean over common seeds, and where it lies with `CONFIDENCE`."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def even(self) -> bool:
        """Whether it cannot be told which is better."""
        return self.low <= 1 <= self.high or abs(self.mean - 1) < _EVEN


@dataclass(frozen=True)
class Outcome:
    """The result of a contender on a scenario: figures by seed, or why it could not be run."""

    contender: Contender
    runs: Sequence[Mapping[str, Any]]
    refused: str = ""
    scenario: Mapping[str, Any] | None = None  # with the first seed, as it was run: chosen, tuned and planned

    @property
    def figures(self) -> dict[str, Any]:
        """The mean over all seeds; empty if it could not be run."""
        found = {name: _mean([run.get(name) for run in self.runs]) for name in self.runs[0]} if self.runs else {}
        return found | ({"seeds": len(self.runs), "spread": self.spread} if found else {})

    @property
    def throughput(self) -> float:
        """Settled tokens per second; 0 if it could not be run."""
        return sum(self._judged) / len(self.runs) if self.runs else 0.0

    @property
    def spread(self) -> float:
        """Half the difference between the best and the worst seed, relative to the mean."""
        return (max(self._judged) - min(self._judged)) / 2 / self.throughput if self.throughput else 0.0

    def logs(self, other: Outcome, metric: Metric = THROUGHPUT) -> list[float]:
        """Logarithms of how much better it is, by common seeds: these have the same trajectories, so the effect of the
        seed cancels."""
        pairs = [(metric.speed(mine), metric.speed(its)) for mine, its in zip(self.runs, other.runs, strict=False)]
        return [log(mine / its) for mine, its in pairs if mine and its]

    @property
    def _judged(self) -> list[float]:
        return [float(run[JUDGED_BY]) for run in self.runs]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **asdict(self.contender),
            "figures": self.figures,
            "by_seed": self._judged,
            "refused": self.refused,
            "scenario": self.scenario,
        }


def _mean(values: Sequence[Any]) -> Any:
    """The mean of figures, also inside others. A reward is reached if it is with every seed; ways that were chosen are
    listed."""
    first = values[0]
    if first is None or len(values) == 1:
        return first
    if isinstance(first, Mapping):
        return {name: _mean([each[name] for each in values]) for name in first}
    if isinstance(first, bool):
        return all(values)
    return ", ".join(dict.fromkeys(values)) if isinstance(first, str) else sum(values) / len(values)


@dataclass(frozen=True)
class Comparison:
    """All outcomes on one scenario."""

    scenario: PosttrainScenario
    outcomes: Sequence[Outcome]
    ceiling: float | None = None  # tokens/s of a whole run that no way can exceed (`ceiling.py`)

    def find(self, name: str) -> Outcome:
        """The outcome of the contender of this name."""
        return next(each for each in self.outcomes if each.contender.name == name)

    def ours(self, metric: Metric = THROUGHPUT) -> Outcome:
        """Our row for a measure."""
        return next((each for each in self.outcomes if each.contender.name == metric.of_ours), self.find("ours"))

    @property
    def settles(self) -> bool:
        """Whether runs are long enough for ratios to say anything."""
        return settles(self.scenario.steps)

    def fair(self, metric: Metric = THROUGHPUT) -> list[Outcome]:
        """Ours for a measure, and contenders that know only what a real system can. Others, unlike ours, get the fixed
        split that is best in hindsight."""
        return [
            each
            for each in self.outcomes
            if each.runs
            and metric.speed(each.runs[0])
            and not each.contender.choice.knows
            and (each.contender.kind != "ours" or each is self.ours(metric))
            and (each.contender.kind in ("ours", "rival") or each.contender.choice.planner != "static-best")
        ]

    def ranked(self, metric: Metric = THROUGHPUT) -> list[Outcome]:
        """The same, best first, by how they stand to ours."""
        ours = self.ours(metric)
        return sorted(self.fair(metric), key=lambda each: -self.ratio(each, ours, metric).mean)

    @property
    def bounds(self) -> list[Outcome]:
        """What knows lengths in advance."""
        return [each for each in self.outcomes if each.contender.choice.knows and each.runs]

    @property
    def oracle(self) -> Outcome:
        """The best in hindsight: who knows lengths in advance could run in any of these ways, ours among them."""
        ours = self.ours()
        return max([ours, *self.bounds], key=lambda each: self.ratio(each, ours).mean)

    @property
    def close(self) -> list[Contender]:
        """Ours, the bounds, and all contenders that might be best by some measure with another seed."""
        near = {
            each.contender
            for metric in METRICS
            if (ranked := self.ranked(metric))
            for each in ranked
            if self.ratio(each, ranked[0], metric).mean >= 1 - _CLOSE
        }
        kinds = ("ours", "bound")
        return [
            each.contender
            for each in self.outcomes
            if each.runs and (each.contender.kind in kinds or each.contender in near)
        ]

    def ratio(self, one: Outcome, other: Outcome, metric: Metric = THROUGHPUT) -> SpeedRatio:
        """How much better ``one`` is. With fewer than three common seeds, the spread is that of all ways together."""
        found = one.logs(other, metric)
        if not found:
            return SpeedRatio(0.0, 0.0, 0.0, 0)
        mean, count = fmean(found), len(found)
        if one is other or not any(found):
            return SpeedRatio(exp(mean), exp(mean), exp(mean), count)
        own = (stdev(found), count - 1) if count >= 3 else self._pooled[metric.name]
        if own is None:
            return SpeedRatio(exp(mean), 0.0, float("inf"), count)
        wide = quantile(CONFIDENCE, own[1]) * own[0] / sqrt(count)
        return SpeedRatio(exp(mean), exp(mean - wide), exp(mean + wide), count)

    @cached_property
    def _pooled(self) -> Mapping[str, tuple[float, int] | None]:
        """By measure: the spread of ratios to ours from seed to seed over all ways, and its degrees of freedom."""
        found: dict[str, tuple[float, int] | None] = {}
        for metric in (*METRICS, *ASSUMPTIONS):
            ours = self.ours(metric)
            several = [logs for each in self.outcomes if len(logs := each.logs(ours, metric)) > 1 and each is not ours]
            freedom = sum(len(logs) - 1 for logs in several)
            squares = sum(stdev(logs) ** 2 * (len(logs) - 1) for logs in several)
            found[metric.name] = (sqrt(squares / freedom), freedom) if freedom else None
        return found

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = [outcome.as_dict() for outcome in self.outcomes]
        known = {} if self.ceiling is None else {"ceiling": self.ceiling}
        return {"scenario": self.scenario.name, "steps": self.scenario.steps, **known, "outcomes": found}
