"""Replays of captured workloads, and how far they are from what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.sim import Result, simulate
from steelyard.sim.summary import PERCENTILES, describe
from steelyard.validate.capture import Capture, CapturedRun, Load, read_capture_folder
from steelyard.validate.settings import gpu_of, scenario_of, unheeded

LATENCIES = ("ttft", "tpot", "e2e")
STATISTICS = ("mean", *(f"p{p}" for p in PERCENTILES))

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """A figure as measured and as simulated; None where one side has no such figure."""

    measured: float | None
    simulated: float | None

    @property
    def error(self) -> float | None:
        """Simulated over measured, less one; None where that has no meaning."""
        if self.measured is None or self.simulated is None:
            return None
        if self.measured == 0:
            return 0.0 if self.simulated == 0 else None
        return self.simulated / self.measured - 1

    def as_dict(self) -> dict[str, float | None]:
        """JSON-ready."""
        return {"measured": self.measured, "simulated": self.simulated, "error": self.error}


@dataclass(frozen=True)
class Comparison:
    """One workload, measured and simulated: figures, and the columns to draw them from."""

    name: str
    latency: dict[str, dict[str, Pair]]  # by metric and statistic
    figures: dict[str, Pair]
    samples: dict[str, tuple[Floats, Floats]] = field(repr=False)  # by metric: measured, simulated
    load: tuple[Load, Load] = field(repr=False)
    provenance: dict[str, float]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        metrics: dict[str, Any] = {
            metric: {statistic: pair.as_dict() for statistic, pair in pairs.items()}
            for metric, pairs in self.latency.items()
        }
        metrics |= {name: pair.as_dict() for name, pair in self.figures.items()}
        return {"name": self.name, "metrics": metrics, "provenance": self.provenance, "notes": list(self.notes)}


@dataclass(frozen=True)
class Validation:
    """All workloads of a capture folder against our own prediction of them."""

    folder: Path
    gpu: str
    workloads: tuple[Comparison, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "capture": str(self.folder),
            "gpu": self.gpu,
            "workloads": [each.as_dict() for each in self.workloads],
        }


def validate(folder: Path, *, gpu: str | None = None, progress: Callable[[int, int], None] | None = None) -> Validation:
    """Replay every workload of a capture folder from what was known before it ran, and compare.

    ``progress`` is called with (workloads replayed, workloads in all).
    """
    capture = read_capture_folder(folder)
    name = gpu_of(capture, gpu)
    compared: list[Comparison] = []
    for run in capture.runs:
        compared.append(compare_run(capture, run, simulate(scenario_of(capture, run, name))))
        if progress is not None:
            progress(len(compared), len(capture.runs))
    return Validation(folder, name, tuple(compared))


def compare_run(capture: Capture, run: CapturedRun, result: Result) -> Comparison:
    """A captured workload beside its simulation."""
    finished = result.requests["status"] == "finished"
    measured = {"ttft": run.answers.ttft, "tpot": run.answers.tpot, "e2e": run.answers.e2e}
    samples = {name: (_known(measured[name]), _known(result.requests[name][finished])) for name in LATENCIES}
    steps = result.steps
    return Comparison(
        name=run.name,
        latency={name: _statistics(*pair) for name, pair in samples.items()},
        figures=_figures(capture, run, result),
        samples=samples,
        load=(run.load, Load(steps["start"], steps["end"], steps["running"], steps["waiting"])),
        provenance=result.summary["provenance"],
        notes=(*unheeded(capture), *result.notes),
    )


def _known(values: Floats) -> Floats:
    return values[np.isfinite(values)]


def _statistics(measured: Floats, simulated: Floats) -> dict[str, Pair]:
    theirs, ours = describe(measured), describe(simulated)
    return {name: Pair(theirs[name], ours[name]) for name in STATISTICS}


def _figures(capture: Capture, run: CapturedRun, result: Result) -> dict[str, Pair]:
    """What a workload has one of."""
    summary, answers = result.summary, run.answers
    blocks = capture.meta.get("num_gpu_blocks")
    makespan = answers.makespan
    pairs = {
        "throughput": (
            float(answers.output.sum()) / makespan if makespan > 0 else None,
            summary["throughput"]["output_tokens_per_s"],
        ),
        "makespan": (makespan, summary["duration_s"]),
        "kv_blocks": (blocks, summary["memory"]["num_gpu_blocks"]),
        "finished": (len(answers.at), summary["outcomes"]["finished"]),
        "preemptions": (run.preemptions, summary["preemptions"]),
        "prefix_hit_tokens": (int(answers.cached.sum()), summary["prefix_cache"]["hit_tokens"]),
    }
    return {name: Pair(_number(theirs), _number(ours)) for name, (theirs, ours) in pairs.items()}


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and isfinite(value) else None
