"""`PosttrainResult.plot`: every chart of a post-training run by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from steelyard.plot import Axis, Bar, BarChart, Chart, Marks, Panels
from steelyard.plot.marks import Hue
from steelyard.posttrain.held import busy_between, covered, held_between
from steelyard.records.columns import Column, Floats
from steelyard.words import count, dollars, percent, seconds

if TYPE_CHECKING:
    from steelyard.posttrain.result import PosttrainResult

_BINS, _MOST_MARKS = 240, 40
_MOST_STEPS, _LENGTH_BARS = 120, 40
_STAGES: dict[str, tuple[str, Hue]] = {
    "waiting": ("waiting for samples", "soft"),
    "handing_over": ("handing over GPUs", "5"),
    "training": ("training", "2"),
    "sync": ("weight sync", "4"),
}
_USES: dict[str, Hue] = {"busy": "1", "bubble": "5", "idle": "soft"}


class PosttrainPlots:
    """Charts of a result. Each shows itself in a notebook and has ``save(path)``, to .svg or .csv."""

    def __init__(self, result: PosttrainResult) -> None:
        self._result = result

    def step(self) -> BarChart:
        """The mean step, stage after stage, as the trainer sees it."""
        got, at, bars = self._result.summary, 0.0, list[Bar]()
        for label, value, hue in _stages(got["step_seconds"], got["training"]):
            bars.append(Bar(label, at + value, seconds(value), hue, start=at))
            at += value
        note = f"In all {seconds(got['step_seconds']['total'])}, as the trainer sees it."
        return BarChart(
            "step", "The mean step, stage after stage", Axis("seconds", "s", low=0.0), tuple(bars), note=note
        )

    def steps(self) -> Chart:
        """Stages of each step, one on the other."""
        steps = self._result.steps
        edges = _edges(steps)
        marks, below = [], np.zeros(len(edges))
        for name, (label, hue) in _STAGES.items():
            top = below + _held(_thinned(np.maximum(steps[name], 0.0)))
            if (top > below).any():
                marks.append(Marks("steps", edges, top, label, hue, low=below, fill=True))
            below = top
        return Chart("steps", "Each step", Axis("step", "whole"), Axis("seconds", "s", low=0.0), tuple(marks))

    def gantt(self) -> Panels:
        """GPUs by role over time: held, busy, and in bubbles of training."""
        return Panels((self.rollout_gpus(), self.training_gpus()))

    def rollout_gpus(self) -> Chart:
        """GPUs that roll out over time, and how many of them are busy; lines are where engines got new weights."""
        edges, result = self._gantt_edges(), self._result
        width = float(edges[1])
        held = held_between(result.held, "rollout", edges) / width
        busy = busy_between(result.held, edges) / width
        records = result.records
        synced = np.array([each.synced for each in records] if len(records) <= _MOST_MARKS else [])
        marks = [_area(edges, held, "held", "soft"), _area(edges, busy, "busy", "1")]
        marks.append(Marks("rules", synced, np.ones(len(synced)), "new weights", "4"))
        return self._gpus("rollout-gpus", "GPUs that roll out", marks)

    def training_gpus(self) -> Chart:
        """GPUs that train over time, and how many of them are busy or in a bubble."""
        edges = self._gantt_edges()
        width = float(edges[1])
        held = held_between(self._result.held, "training", edges) / width
        spent, waits = self._trained(edges)
        marks = [
            _area(edges, held, "held", "soft"),
            _area(edges, spent / width, "in a bubble", "5"),
            _area(edges, (spent - waits) / width, "busy", "2"),
        ]
        return self._gpus("training-gpus", "GPUs that train", marks)

    def gpu_time(self) -> Panels:
        """What GPUs of each role do."""
        return Panels(tuple(_uses(role, shares) for role, shares in self._result.summary["gpu_time"].items()))

    def staleness(self) -> BarChart:
        """Samples by how many versions of the weights they are behind."""
        ages, samples = self._result.summary["staleness"], self._result.summary["samples"]
        bars = tuple(Bar(f"{age} behind", many / samples, count(many)) for age, many in ages.items())
        title = "Samples by staleness, in versions of the weights"
        return BarChart("staleness", title, Axis("share of samples", "share", 0.0, 1.0), bars)

    def durations(self) -> Chart:
        """How long trajectories take."""
        table, spread = self._result.trajectories, self._result.summary["trajectory_seconds"]
        taken = (table["ended"] - table["begun"])[np.isfinite(table["ended"])]
        told = f"p50 {seconds(spread['p50'])}, p99 {seconds(spread['p99'])}, max {seconds(spread['max'])}"
        return _histogram("durations", "Seconds of a trajectory", Axis("seconds", "s", low=0.0), taken, told)

    def lengths(self) -> Chart:
        """How many tokens trajectories generate."""
        table = self._result.trajectories
        tokens = table["generated"][np.isfinite(table["ended"])].astype(np.float64)
        p50, p99 = np.percentile(tokens, [50, 99]) if len(tokens) else (np.nan, np.nan)
        told = f"p50 {count(p50)}, p99 {count(p99)}, max {count(tokens.max(initial=0.0))}"
        return _histogram(
            "lengths", "Generated tokens of a trajectory", Axis("tokens", "number", low=0.0), tokens, told
        )

    def cost(self) -> Chart:
        """Dollars of each step."""
        steps = self._result.steps
        marks = Marks("steps", _edges(steps), _held(_thinned(steps["usd"])), "", "3", fill=True)
        title = f"Cost of each step, {dollars(self._result.summary['cost']['usd'])} in all"
        return Chart("cost", title, Axis("step", "whole"), Axis("US dollars", "usd", low=0.0), (marks,))

    def reward(self) -> Chart:
        """Reward over time, by the learning curve that the scenario states."""
        points = self._result.summary.get("reward", [])
        marks = []
        if points:
            at, rewards = np.array(points, dtype=np.float64).T
            marks = [Marks("line", at, rewards, "", "1", said=f"{rewards[-1]:.3g} in the end")]
        title = "Reward over time, by the stated learning curve"
        return Chart("reward", title, Axis("time", "clock", low=0.0), Axis("reward", "number", low=0.0), tuple(marks))

    def timeline(self) -> Panels:
        """GPUs by role, then the stages of each step."""
        return Panels((*self.gantt().charts, self.steps()))

    def _gantt_edges(self) -> Floats:
        return np.linspace(0.0, self._result.records[-1].synced, _BINS + 1)

    def _gpus(self, name: str, title: str, marks: list[Marks]) -> Chart:
        end = self._result.records[-1].synced
        up = Axis("GPUs", "number", 0.0, 1.08 * self._result.summary["gpus"])
        return Chart(name, title, Axis("time", "clock", 0.0, end), up, tuple(marks), group="gpus")

    def _trained(self, edges: Floats) -> tuple[Floats, Floats]:
        """GPU-seconds of training between each two edges, and how many of them are waits."""
        spent, waits = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
        for each in self._result.records:
            start, stop = np.array(each.spans).T
            inside = each.training_gpus * covered(start, stop, edges)
            split = each.time.split
            spent += inside
            waits += inside * (split.bubble + split.imbalance) / split.total
        return spent, waits


def _stages(stages: Mapping[str, float], training: Mapping[str, float]) -> list[tuple[str, float, Hue]]:
    """The parts of a mean step with their lengths."""
    found = [(*_STAGES[name], stages[name]) for name in ("waiting", "handing_over")]
    found += [
        (f"training: {name.replace('_', ' ')}", _STAGES["training"][1], value) for name, value in training.items()
    ]
    rest = stages["training"] - sum(training.values())
    found += [("training: between parts", "soft", rest)] if rest > 1e-6 * stages["total"] else []
    found.append((*_STAGES["sync"], stages["sync"]))
    return [(label, value, hue) for label, hue, value in found if value > 0]


def _uses(role: str, shares: Mapping[str, float]) -> BarChart:
    bars = tuple(Bar(name, max(0.0, share), percent(share), _USES[name]) for name, share in shares.items())
    return BarChart(f"{role}-time", f"Time of {role} GPUs", Axis("share of time", "share", 0.0, 1.0), bars)


def _area(edges: Floats, values: Floats, name: str, hue: Hue) -> Marks:
    return Marks("steps", edges, _held(values), name, hue, fill=True)


def _held(values: Floats) -> Floats:
    """The last value is held to the last edge."""
    return np.append(values, values[-1:])


def _thinned(values: Floats) -> Floats:
    """Means over equal parts, if there are more values than a chart can show."""
    return np.array([part.mean() for part in np.array_split(values, min(_MOST_STEPS, len(values)))])


def _edges(steps: Mapping[str, Column]) -> Floats:
    """Where the parts of `_thinned` begin, and the end of the last."""
    parts = np.array_split(steps["step"], min(_MOST_STEPS, len(steps["step"])))
    return np.append([float(part[0]) for part in parts], float(steps["step"][-1]) + 1.0)


def _histogram(name: str, title: str, along: Axis, values: Floats, told: str) -> Chart:
    marks = []
    if len(values):
        many, edges = np.histogram(values, bins=_LENGTH_BARS, range=(0.0, float(values.max()) or 1.0))
        marks = [Marks("bars", edges[:-1], many.astype(np.float64), "", "1", ends=edges[1:], said=told)]
    return Chart(name, title, along, Axis("trajectories", "whole", low=0.0), tuple(marks))
