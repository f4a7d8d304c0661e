"""The figures of a run, from its log alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from steelyard.balance.log import Row, is_event
from steelyard.live.store import log_rows


@dataclass(frozen=True)
class LiveStep:
    """A training step: when its samples were complete, when it was trained, when engines had its weights."""

    step: int
    complete: float
    trained: float
    synced: float
    samples: int
    tokens: int  # generated tokens of its samples


@dataclass(frozen=True)
class Recovery:
    """An engine was lost, and was up again after some time."""

    replica: int
    at: float
    seconds: float | None  # None: it did not come back


@dataclass
class LiveFigures:
    """What happened in a run. Seconds are those of the run, from when engines had the first weights."""

    steps: list[LiveStep] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    recoveries: list[Recovery] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.steps[-1].synced if self.steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        return sum(step.tokens for step in self.steps) / self.seconds if self.steps else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "steps": [asdict(step) for step in self.steps],
            "recoveries": [asdict(each) for each in self.recoveries],
            "events": dict(sorted(self.events.items())),
        }


def live_figures(store: Path) -> LiveFigures:
    """The figures of a controller's store."""
    rows = log_rows(store)
    next(rows)  # the header
    reading = _Reading()
    for row in rows:
        reading.take(row)
    return reading.figures()


class _Reading:
    """Reads a log from its beginning."""

    def __init__(self) -> None:
        self._found = LiveFigures()
        self._begun: float | None = None  # when engines had the first weights
        self._tokens: Counter[str] = Counter()  # by trajectory
        self._down: dict[int, float] = {}
        self._draining: set[int] = set()  # replicas that the pool takes engines from, which are not lost then
        self._at = 0.0
        self._samples: list[str] = []
        self._complete = self._trained = 0.0

    def take(self, row: Row) -> None:
        _, line = row
        if not is_event(line):
            if line["kind"] == "TrainOn":
                self._samples += line["trajectories"]
                self._complete = self._at
            elif line["kind"] == "Drain":
                self._draining.add(line["replica"])
            elif line["kind"] == "RollBack":
                self._draining.discard(line["replica"])
            return
        self._at = line["at"]
        self._found.events[line["kind"]] += 1
        match line["kind"]:
            case "Returned" | "Ended":
                self._tokens[line["trajectory"]] += line["turn"]["generated"]
            case "StepTrained":
                self._trained = self._at
            case "WeightsPublished":
                self._publish(line["version"])
            case "Drained":
                self._draining.discard(line["replica"])
            case "ReplicaDown" if not self._draining:
                self._down.setdefault(line["replica"], self._at)
            case "ReplicaUp" if line["replica"] in self._down:
                since = self._down.pop(line["replica"])
                self._found.recoveries.append(Recovery(line["replica"], since - self._zero, self._at - since))

    @property
    def _zero(self) -> float:
        return self._at if self._begun is None else self._begun

    def _publish(self, version: int) -> None:
        if self._begun is None:
            self._begun = self._at
        if version == 0:
            return
        samples, self._samples = self._samples, []
        tokens = sum(self._tokens.pop(name, 0) for name in samples)
        complete, trained, synced = (each - self._begun for each in (self._complete, self._trained, self._at))
        self._found.steps.append(LiveStep(version - 1, complete, trained, synced, len(samples), tokens))

    def figures(self) -> LiveFigures:
        lost = [Recovery(number, since - self._zero, None) for number, since in sorted(self._down.items())]
        self._found.recoveries += lost
        return self._found
