"""Results of contenders over one or more seeds: which is best, and which might be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from steelyard.posttrain.compare_choices import Contender
from steelyard.scenario.posttrain import PosttrainScenario

JUDGED_BY = "settled_tokens_per_second"
"""The figure that contenders are judged by. It counts tokens, so that dropping long samples is no gain, and excludes
the first and last steps, since real runs have hundreds."""
_CLOSE = 0.1  # of the best: with another seed, contenders this close may be in another order


@dataclass(frozen=True)
class Outcome:
    """The result of a contender on a scenario: figures by seed, or why it could not be run."""

    contender: Contender
    runs: Sequence[Mapping[str, Any]]
    refused: str = ""

    @property
    def figures(self) -> dict[str, Any]:
        """The mean over all seeds; empty if it could not be run."""
        found = {name: _mean([run[name] for run in self.runs]) for name in self.runs[0]} if self.runs else {}
        return found | ({"seeds": len(self.runs), "spread": self.spread} if found else {})

    @property
    def throughput(self) -> float:
        """The figure that contenders are judged by; 0 if it could not be run."""
        return sum(self._judged) / len(self.runs) if self.runs else 0.0

    @property
    def spread(self) -> float:
        """Half the difference between the best and the worst seed, relative to the mean."""
        return (max(self._judged) - min(self._judged)) / 2 / self.throughput

    def of(self, other: Outcome) -> float:
        """Its throughput relative to another's, over common seeds: these have the same trajectories, so the effect of
        the seed cancels."""
        both = min(len(self.runs), len(other.runs))
        return sum(self._judged[:both]) / sum(other._judged[:both]) if both else 0.0

    def ahead_of(self, other: Outcome) -> tuple[int, int]:
        """The number of common seeds with which it is faster, and the number of common seeds."""
        pairs = list(zip(self._judged, other._judged, strict=False))
        return sum(mine > its for mine, its in pairs), len(pairs)

    @property
    def _judged(self) -> list[float]:
        return [float(run[JUDGED_BY]) for run in self.runs]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self.contender), "figures": self.figures, "by_seed": self._judged, "refused": self.refused}


def _mean(values: Sequence[Any]) -> Any:
    """The mean of figures, or of times to a reward, which is reached if it is with every seed."""
    if values[0] is None or len(values) == 1:
        return values[0]
    if isinstance(values[0], Mapping):
        return {
            **values[0],
            "seconds": _mean([each["seconds"] for each in values]),
            "reached": all(each["reached"] for each in values),
        }
    return sum(values) / len(values)


@dataclass(frozen=True)
class Comparison:
    """All outcomes on one scenario."""

    scenario: PosttrainScenario
    outcomes: Sequence[Outcome]

    def find(self, name: str) -> Outcome:
        """The outcome of the contender of this name."""
        return next(each for each in self.outcomes if each.contender.name == name)

    @property
    def fair(self) -> list[Outcome]:
        """Outcomes of contenders that know only what a real system can. Rivals, unlike ours, get the fixed split that
        is best in hindsight."""
        return [
            each
            for each in self.outcomes
            if not each.contender.choice.knows
            and (each.contender.kind == "rival" or each.contender.choice.planner != "static-best")
        ]

    @property
    def oracle(self) -> Outcome:
        """The bound: the best contender that knows lengths in advance."""
        ours = self.find("ours")
        return max((each for each in self.outcomes if each.contender.choice.knows), key=lambda each: each.of(ours))

    @property
    def close(self) -> list[Contender]:
        """Ours, the bounds, and all contenders that might be best with another seed."""
        least = (1 - _CLOSE) * max(each.throughput for each in self.fair)
        return [
            each.contender
            for each in self.outcomes
            if each.runs and (each.contender.kind in ("ours", "bound") or each.throughput >= least)
        ]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = [outcome.as_dict() for outcome in self.outcomes]
        return {"scenario": self.scenario.name, "steps": self.scenario.steps, "outcomes": found}
