"""The figures of a run, from its log alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from steelyard.balance.encoding import decode_kind
from steelyard.balance.log import Row, is_event
from steelyard.balance.plan.questions import ChangePlan
from steelyard.live.planner import predicted_gain
from steelyard.live.store import log_rows

_KINDS: dict[str, type] = {"ChangePlan": ChangePlan}


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


_GAIN_STEPS = 3  # steps after a change over which its gain is measured, as in simulations


@dataclass
class LiveChange:
    """A change of plan: what it was to gain a step, and what it has gained. Gains are differences of step times before
    and after, so they include drift of lengths."""

    step: int  # after which it was proposed
    what: str
    predicted: float
    seconds: float = 0.0  # until all GPUs were in use again
    before: float = 0.0  # mean seconds of up to three steps before it
    after: list[float] = field(default_factory=list)
    outcome: str = "proposed"

    @property
    def realised(self) -> float | None:
        """None before a whole step has run."""
        return self.before - sum(self.after) / len(self.after) if self.after else None


@dataclass
class LiveFigures:
    """What happened in a run. Seconds are those of the run, from when engines had the first weights."""

    steps: list[LiveStep] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    recoveries: list[Recovery] = field(default_factory=list)
    changes: list[LiveChange] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.steps[-1].synced if self.steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        return sum(step.tokens for step in self.steps) / self.seconds if self.steps else 0.0

    @property
    def proposed(self) -> bool:
        """Whether a change of plan is proposed, and not carried out yet."""
        return bool(self.changes) and self.changes[-1].outcome == "proposed"

    def step_seconds(self, step: int) -> float:
        """From the end of the step before to the end of this one."""
        return self.steps[step].synced - (self.steps[step - 1].synced if step else 0.0)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "steps": [asdict(step) for step in self.steps],
            "recoveries": [asdict(each) for each in self.recoveries],
            "changes": [asdict(each) | {"realised": each.realised} for each in self.changes],
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
        self._changed_at = -1  # steps before the last change
        self._moving = False  # changes are carried out between the end of training and new weights

    def take(self, row: Row) -> None:
        _, line = row
        if not is_event(line):
            if line["kind"] == "TrainOn":
                self._samples += line["trajectories"]
                self._complete = self._at
            elif line["kind"] == "ChangePlan":
                self._found.changes.append(_proposed(decode_kind(_KINDS, line, "log")))
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
                self._trained, self._moving = self._at, True
            case "WeightsPublished":
                self._moving = False
                self._publish(line["version"])
            case "PlanChanged":
                self._change("done", line["seconds"])
            case "PlanRolledBack":
                self._change(f"rolled back: {line['reason']}", 0.0)
            case "Drained":
                self._draining.discard(line["replica"])
            case "ReplicaDown" if not (self._draining or (self._moving and self._found.proposed)):  # else on purpose
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
        changed = next((each for each in reversed(self._found.changes) if each.outcome == "done"), None)
        if changed is not None and version - 1 > self._changed_at and len(changed.after) < _GAIN_STEPS:
            changed.after.append(self._found.step_seconds(version - 1))

    def _change(self, outcome: str, seconds: float) -> None:
        """A proposal was carried out, or not. The step under way waits for it, so the next ones tell its gain."""
        change = self._found.changes[-1]
        change.outcome, change.seconds = outcome, seconds
        done = len(self._found.steps)
        steps = range(max(self._changed_at + 1, done - _GAIN_STEPS), done) or range(done - 1, done)
        change.before = sum(map(self._found.step_seconds, steps)) / len(steps)
        self._changed_at = done

    def figures(self) -> LiveFigures:
        lost = [Recovery(number, since - self._zero, None) for number, since in sorted(self._down.items())]
        self._found.recoveries += lost
        return self._found


def _proposed(command: ChangePlan) -> LiveChange:
    return LiveChange(command.step, f"{command.now} -> {command.plan}", predicted_gain(command))
