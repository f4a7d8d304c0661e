"""The answer: a row for each fleet, and a sentence."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from steelyard.search.advise.judge import Judgement, Steps

RowKind = Literal["fixed", "policy", "bound"]


@dataclass(frozen=True)
class AdviceRow:
    """One fleet: fixed, or scaled by a policy with the settings that were best on the part for tuning."""

    name: str
    kind: RowKind
    setting: str
    tried: int  # settings tried in tuning
    tuned: Judgement  # on the part for tuning
    judged: Judgement  # on the rest
    held: Steps  # replicas that hold GPUs over the whole trace
    misses: tuple[float, ...]  # share missed, by bucket of the trace

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        found = asdict(self)
        for part, judgement in (("tuned", self.tuned), ("judged", self.judged)):
            found[part] = {**asdict(judgement), "meets": judgement.meets}
        return found


@dataclass(frozen=True)
class FleetAdvice:
    """All that was found."""

    trace: str
    scenario: str
    requests: int
    seconds: float  # from the first request to the last
    whole_seconds: float  # of the whole trace, at its own speed
    speed: float
    gpu: str
    gpus_per_replica: int
    usd_per_gpu_hour: float
    startup: float
    least: int
    most: int
    split: float  # second at which tuning ends and judging starts
    bucket: float  # seconds of the figures' buckets
    arrivals: tuple[float, ...]  # requests per second, by bucket
    chosen_fixed: str  # name of the fixed fleet that tuning chose
    rows: tuple[AdviceRow, ...]  # those that meet the limits first, the cheapest first

    def row(self, name: str) -> AdviceRow | None:
        """A row by its name."""
        return next((each for each in self.rows if each.name == name), None)

    @property
    def sentence(self) -> str:
        """What each way costs and misses, and what to do."""
        base = self.row(self.chosen_fixed)
        assert base is not None
        told = [_told(base, None)]
        told += [_told(row, base) for row in self.rows if row.kind == "policy"]
        return f"{'; '.join(told)}. {self._recommended()}"

    def _recommended(self) -> str:
        good = [
            row for row in self.rows if row.judged.meets and (row.kind == "policy" or row.name == self.chosen_fixed)
        ]
        if good:
            return f"Take {good[0].name}: the cheapest of these that keeps the limits."
        larger = [row for row in self.rows if row.kind == "fixed" and row.judged.meets]
        if larger:
            return f"None of these keeps the limits; {larger[0].name} would have, for ${larger[0].judged.usd:,.2f}."
        return "None of these keeps the limits: allow more replicas, or raise the limits."

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        found = {name: value for name, value in asdict(self).items() if name != "rows"}
        return {**found, "rows": [row.to_dict() for row in self.rows], "sentence": self.sentence}


def in_order(rows: list[AdviceRow]) -> tuple[AdviceRow, ...]:
    """Those that meet the limits first, the cheapest first, then by misses. Bounds are last."""

    def place(row: AdviceRow) -> tuple[bool, bool, float, float]:
        judged = row.judged
        return row.kind == "bound", not judged.meets, judged.usd if judged.meets else judged.missed, judged.usd

    return tuple(sorted(rows, key=place))


def _told(row: AdviceRow, base: AdviceRow | None) -> str:
    judged = row.judged
    change = "" if base is None or not base.judged.usd else f" ({judged.usd / base.judged.usd - 1:+.0%})"
    verdict = "" if judged.meets else ", over the limits"
    return f"{row.name} costs ${judged.usd:,.2f}{change} and misses {judged.missed:.1%}{verdict}"
