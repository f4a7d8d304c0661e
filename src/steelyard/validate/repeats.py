"""How much two captures of one engine differ when it serves the same requests: the noise floor of its figures.

No prediction can be nearer to both captures than they are to each other. Captures are repeats if model, GPU and
settings agree; runs of them are if the same requests came in the same order, over as long a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import UserError, quoted
from steelyard.model import load_model
from steelyard.sim.spread import spread_of
from steelyard.validate.capture import Capture, CapturedRun, ClientTimes, read_capture_folder
from steelyard.validate.compare import LATENCIES, STATISTICS
from steelyard.validate.settings import arguments_of, effective_settings, gpu_of
from steelyard.validate.steps import RecordedStep, read_steps

Floats = NDArray[np.float64]

# Arguments that say nothing about the work of a step: names, limits that no request reached, and the room for blocks,
# which only matters where requests were preempted.
_NO_MATTER = frozenset({"model", "tokenizer", "disable_log_stats", "max_model_len", "num_gpu_blocks_override", "seed"})
_PACE = 0.25  # by which the times over which requests came may differ; chosen, as clients may wait for answers
_ONE_PACE = 0.02  # the same, for throughput to be compared; chosen
_FEWEST = 8  # steps of a size on either side, whose mean times are compared; chosen
STEPS = {"decode_steps": "decode steps", "prompt_steps": "steps with prompts"}


@dataclass(frozen=True)
class Difference:
    """One figure in both captures."""

    first: float | None
    second: float | None

    @property
    def relative(self) -> float | None:
        """The second over the first, less one; None if undefined."""
        if self.first is None or self.second is None:
            return None
        if self.first == self.second:
            return 0.0
        return self.second / self.first - 1 if self.first else None

    def as_dict(self) -> dict[str, float | None]:
        """JSON-ready."""
        return {"first": self.first, "second": self.second, "difference": self.relative}


@dataclass(frozen=True)
class RepeatedRun:
    """One workload that both engines served."""

    names: tuple[str, str]
    figures: dict[str, Difference]  # ttft.mean and so on, throughput, makespan, decode_steps, prompt_steps
    by_request: dict[str, float]  # by latency: the median distance between the two times of a request, relative
    asked_over: tuple[float, float]  # seconds from the first request to the last

    @property
    def one_pace(self) -> bool:
        """Whether requests came equally fast, so that throughput is the engine's and not the client's."""
        return abs(self.asked_over[0] - self.asked_over[1]) <= _ONE_PACE * max(self.asked_over)

    @property
    def name(self) -> str:
        """Its name in the first capture."""
        return self.names[0]

    def floor(self, figure: str) -> float | None:
        """How far apart the captures are in a figure, relative; None if undefined."""
        found = self.figures[figure].relative
        return None if found is None else abs(found)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "runs": list(self.names),
            "figures": {name: each.as_dict() for name, each in self.figures.items()},
            "by_request": self.by_request,
            "asked_over": list(self.asked_over),
        }


@dataclass(frozen=True)
class Repeats:
    """Two captures of one engine."""

    folders: tuple[Path, Path]
    hosts: str  # what is known of the two hosts
    runs: tuple[RepeatedRun, ...]
    unmatched: tuple[str, ...]  # runs of the first without a repeat

    def run(self, name: str) -> RepeatedRun | None:
        """The repeat of a run of the first capture."""
        return next((run for run in self.runs if run.name == name), None)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "captures": [str(folder) for folder in self.folders],
            "hosts": self.hosts,
            "runs": [run.as_dict() for run in self.runs],
            "unmatched": list(self.unmatched),
        }


def compare_repeats(first: Path, second: Path, gpu: str | None = None) -> Repeats:
    """Compare two captures of one engine; refuses captures of different engines, or without a common workload."""
    one, other = read_capture_folder(first), read_capture_folder(second)
    apart = engines_differ(one, other, gpu)
    if apart is not None:
        raise UserError(f"{second}: not the engine of {first}: {apart}; give two captures of one engine")
    found = repeats_of(one, other)
    if not found.runs:
        asked = ", ".join(run.name for run in one.runs)
        raise UserError(
            f"{second}: no run has the requests of one of {first} ({asked}), in their order and over as long a time; "
            "give a capture with the same workload"
        )
    return found


def repeats_of(one: Capture, other: Capture) -> Repeats:
    """The runs that two captures of one engine have in common."""
    left = {run.name: run for run in other.runs}
    pairs: list[tuple[CapturedRun, CapturedRun]] = []
    for run in one.runs:
        candidates = sorted(left.values(), key=lambda each: each.name != run.name)  # that of its name first
        again = next((each for each in candidates if _repeated(one, run, other, each)), None)
        if again is not None:
            pairs.append((run, left.pop(again.name)))
    matched = {run.name for run, _ in pairs}
    return Repeats(
        folders=(one.folder, other.folder),
        hosts=_hosts(one, other),
        runs=tuple(_compared(run, again) for run, again in pairs),
        unmatched=tuple(run.name for run in one.runs if run.name not in matched),
    )


def engines_differ(one: Capture, other: Capture, gpu: str | None = None) -> str | None:
    """What tells two engines apart, in words; None if they are alike."""
    ours, theirs = (gpu_of(each, gpu) for each in (one, other))
    if ours != theirs:
        return f"it ran on {theirs}, not on {ours}"
    if _model(one) != _model(other):
        return "its config.json is of another model"
    mine, its = _settings(one), _settings(other)
    for name in sorted(mine.keys() & its.keys(), key=lambda each: (isinstance(mine[each], list), each)):
        if mine[name] != its[name]:
            return f"{name} is {quoted(its[name])} there, not {quoted(mine[name])}"
    return None


def _repeated(one: Capture, run: CapturedRun, other: Capture, again: CapturedRun) -> bool:
    """Whether a run is a repeat of another. Where requests were preempted, the engines must have had as many blocks."""
    rooms = {capture.meta.get("num_gpu_blocks") for capture in (one, other)}
    full = run.preemptions or again.preemptions
    return same_requests(run, again) and (len(rooms) == 1 or not full)


def same_requests(one: CapturedRun, other: CapturedRun) -> bool:
    """Whether two runs were asked the same, over as long a time."""
    asked = [(run.prompts[run.order].tolist(), run.answers.output[run.order].tolist()) for run in (one, other)]
    if asked[0] != asked[1]:
        return False
    lasted = [float(np.ptp(run.answers.at)) for run in (one, other)]
    return abs(lasted[0] - lasted[1]) <= _PACE * max(lasted)


def _model(capture: Capture) -> Any:
    """The model without its name."""
    spec = load_model("config.json", base_dir=capture.folder)
    return spec.layers, spec.hidden, spec.vocab, spec.dtype_bytes


def _settings(capture: Capture) -> dict[str, Any]:
    """What both captures must agree on, as far as both say it."""
    meta = {"vllm": capture.meta.get("vllm"), **effective_settings(capture)}
    arguments = {f"kw.{key}": value for key, value in arguments_of(capture).items() if key not in _NO_MATTER}
    return {key: value for key, value in (meta | arguments).items() if value is not None}


def _hosts(one: Capture, other: Capture) -> str:
    """What is known of the two hosts."""
    ours, theirs = (capture.meta.get("host") for capture in (one, other))
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return "whether on one host is not recorded"
    if ours == theirs:
        return "on one host"
    return f"on two hosts ({quoted(ours.get('cpu'))} and {quoted(theirs.get('cpu'))})"


def _compared(run: CapturedRun, again: CapturedRun) -> RepeatedRun:
    first, second = run.answers, again.answers
    figures: dict[str, Difference] = {}
    for metric in LATENCIES:
        ours, theirs = (spread_of(latency_of(each, metric)).levels for each in (first, second))
        figures |= {f"{metric}.{statistic}": Difference(ours[statistic], theirs[statistic]) for statistic in STATISTICS}
    spans = [each.makespan for each in (first, second)]
    rates = [
        float(each.output.sum()) / span if span > 0 else None for each, span in zip((first, second), spans, strict=True)
    ]
    figures |= {"throughput": Difference(*rates), "makespan": Difference(*spans)}
    figures |= _steps(read_steps(run.stepped), read_steps(again.stepped))
    lasted = (float(np.ptp(first.at)), float(np.ptp(second.at)))
    return RepeatedRun((run.name, again.name), figures, _by_request(run, again), lasted)


def latency_of(answers: ClientTimes, metric: str) -> Floats:
    """The column of a latency."""
    return {"ttft": answers.ttft, "tpot": answers.tpot, "e2e": answers.e2e}[metric]


def _by_request(run: CapturedRun, again: CapturedRun) -> dict[str, float]:
    """The median over requests of how far their two times are apart, relative to the mean of both."""
    found = {}
    for metric in LATENCIES:
        ours, theirs = (latency_of(each.answers, metric)[each.order] for each in (run, again))
        known = np.isfinite(ours) & np.isfinite(theirs) & (ours + theirs > 0)
        if known.any():
            apart = np.abs(ours[known] - theirs[known]) / ((ours[known] + theirs[known]) / 2)
            found[metric] = float(np.median(apart))
    return found


def _steps(first: Sequence[RecordedStep], second: Sequence[RecordedStep]) -> dict[str, Difference]:
    """Mean times of steps of like size, as far as both engines ran enough of them, weighted by how many."""
    found = {}
    ours, theirs = _by_size(first), _by_size(second)
    for kind in STEPS:
        shared = [
            (size, min(len(ours[size]), len(theirs[size])))
            for size in ours.keys() & theirs.keys()
            if size[0] == kind and min(len(ours[size]), len(theirs[size])) >= _FEWEST
        ]
        weight = sum(count for _, count in shared)
        means = [
            sum(count * float(np.mean(each[size])) for size, count in sorted(shared)) / weight if weight else None
            for each in (ours, theirs)
        ]
        found[kind] = Difference(*means)
    return found


def _by_size(steps: Sequence[RecordedStep]) -> dict[tuple[str, int], list[float]]:
    """Seconds from the result before to a step's own, or from its scheduling, by kind and tokens in powers of two."""
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    ended = float("-inf")
    for step in steps:
        kind = "prompt_steps" if step.chunks else "decode_steps"
        times[kind, step.tokens.bit_length()].append(step.updated - max(step.scheduled, ended))
        ended = step.updated
    return times
