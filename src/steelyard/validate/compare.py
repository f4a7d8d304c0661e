"""Replays of captured workloads, and how far they are from what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.cost import graph_plan
from steelyard.scenario import CostSpec
from steelyard.sim import Result, simulate
from steelyard.sim.intervals import STATED, figures, intervals
from steelyard.sim.spread import PERCENTILES, spread_of
from steelyard.sim.summary import FirstUseFigures, Interval, Summary
from steelyard.validate.capture import Capture, CapturedRun, Load, read_capture_folder
from steelyard.validate.settings import gpu_of, scenario_of, unheeded
from steelyard.validate.steps import kernel_by_kernel, read_steps

LATENCIES = ("ttft", "tpot", "e2e")
_STALL_SECONDS = 0.5
STATISTICS = ("mean", *(f"p{p}" for p in PERCENTILES))

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """A figure as measured and as simulated; None where one side has no such figure.

    ``interval`` is where the simulation says that the truth most likely lies.
    """

    measured: float | None
    simulated: float | None
    interval: Interval | None = None

    @property
    def error(self) -> float | None:
        """Simulated over measured, less one; None where that has no meaning."""
        if self.measured is None or self.simulated is None:
            return None
        if self.measured == 0:
            return 0.0 if self.simulated == 0 else None
        return self.simulated / self.measured - 1

    @property
    def inside(self) -> bool | None:
        """Whether the truth lies in the interval; None where either is not known."""
        if self.interval is None or self.measured is None:
            return None
        return self.interval[0] <= self.measured <= self.interval[1]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        figures: dict[str, Any] = {"measured": self.measured, "simulated": self.simulated, "error": self.error}
        if self.interval is not None:
            figures |= {"interval": list(self.interval), "inside": self.inside}
        return figures


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

    @property
    def stated(self) -> list[bool]:
        """Of every figure with an interval, whether the truth lies in it."""
        pairs = [*(pair for pairs in self.latency.values() for pair in pairs.values()), *self.figures.values()]
        return [pair.inside for pair in pairs if pair.inside is not None]

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

    @property
    def coverage(self) -> tuple[int, int]:
        """How many figures lie in the interval stated for them, and how many there are."""
        stated = [inside for each in self.workloads for inside in each.stated]
        return sum(stated), len(stated)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        inside, of = self.coverage
        return {
            "capture": str(self.folder),
            "gpu": self.gpu,
            "workloads": [each.as_dict() for each in self.workloads],
            "coverage": {"stated": STATED, "inside": inside, "of": of},
        }


def validate(
    folder: Path,
    *,
    gpu: str | None = None,
    given_cache: bool = False,
    cost: CostSpec | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Replay every workload of a capture folder from what was known before it ran, and compare.

    What earlier workloads left in the engine (kernels they were the first to need) is simulated too; with
    ``given_cache`` that, and what each prompt found in the prefix cache, is taken from the record.
    ``progress`` is called with (workloads replayed, workloads in all).
    """
    capture = read_capture_folder(folder)
    name = gpu_of(capture, gpu)
    compared: list[Comparison] = []
    ran: set[int] = set()
    for run in capture.runs:
        result = simulate(scenario_of(capture, run, name, given_cache=given_cache, cost=cost, warm_up=ran))
        if result.summary.compiled_on_first_use is not None:
            ran |= _ran(run, result, given_cache)
        compared.append(compare_run(capture, run, result, intervals(result)))
        if progress is not None:
            progress(len(compared), len(capture.runs))
    return Validation(folder, name, tuple(compared))


def compare_run(
    capture: Capture, run: CapturedRun, result: Result, stated: Mapping[str, Interval] | None = None
) -> Comparison:
    """A captured workload beside its simulation, and the intervals ``stated`` for its figures."""
    widths = _widths(result, stated or {})
    requests = result.requests
    finished = requests["status"] == "finished"
    late = requests["taken"] - requests["arrival"]  # the recording client's clock starts when it gets round to sending
    simulated = {"ttft": requests["ttft"] - late, "tpot": requests["tpot"], "e2e": requests["e2e"] - late}
    measured = {"ttft": run.answers.ttft, "tpot": run.answers.tpot, "e2e": run.answers.e2e}
    samples = {name: (_known(measured[name]), _known(simulated[name][finished])) for name in LATENCIES}
    steps = result.steps
    return Comparison(
        name=run.name,
        latency={name: _statistics(name, *pair, widths) for name, pair in samples.items()},
        figures=_figures(capture, run, result, widths),
        samples=samples,
        load=(run.load, Load(steps["start"], steps["end"], steps["running"], steps["waiting"])),
        provenance=result.summary.provenance.to_dict(),
        notes=(*unheeded(capture), *_stalls(run.load, result.summary), *result.notes),
    )


def _ran(run: CapturedRun, result: Result, recorded: bool) -> set[int]:
    """Tokens of the steps that a workload ran kernel by kernel, as recorded or as simulated."""
    graphs, steps = graph_plan(result.scenario.engine), result.steps
    if recorded:
        return kernel_by_kernel(read_steps(run.stepped), graphs)
    tokens, decode_only = steps["n_decode"] + steps["prefill_tokens"], steps["prefill_requests"] == 0
    kinds = set(zip(tokens.tolist(), decode_only.tolist(), strict=True))
    return {count for count, alone in kinds if graphs.launch(count, decode_only=alone) == "eager"}


def _stalls(load: Load, summary: Summary) -> list[str]:
    """Launches of half a second and more, in which an engine compiles a kernel, and how many were simulated."""
    in_flight = np.append(False, load.start[1:] < load.end[:-1])
    before, after = np.append(0.0, load.end[:-1]), np.append(load.start[1:], np.inf)
    # The result of a step waits for the launch of the next; with none in flight the next step does.
    took = np.where(in_flight, before, np.minimum(load.end, after)) - load.start
    stalls = took[(took > _STALL_SECONDS) & load.by_step]
    found = summary.compiled_on_first_use or FirstUseFigures(kernels=0, seconds=0.0)
    if not len(stalls) and not found.kernels:
        return []
    return [
        f"stalls in launches: {len(stalls)} of {stalls.sum():.1f} s in all in the capture, "
        f"{found.kernels} of {found.seconds:.1f} s foretold (kernels compiled on first use)"
    ]


def _known(values: Floats) -> Floats:
    return values[np.isfinite(values)]


def _widths(result: Result, stated: Mapping[str, Interval]) -> dict[str, Interval]:
    """Intervals as shares of the figures they belong to, which are not counted quite as the summary does."""
    base = figures(result.summary)
    return {name: (low / base[name], high / base[name]) for name, (low, high) in stated.items() if base[name]}


def _around(value: float | None, width: Interval | None) -> Interval | None:
    return None if value is None or width is None else (value * width[0], value * width[1])


def _statistics(metric: str, measured: Floats, simulated: Floats, widths: Mapping[str, Interval]) -> dict[str, Pair]:
    theirs, ours = spread_of(measured).levels, spread_of(simulated).levels
    return {
        name: Pair(theirs[name], ours[name], _around(ours[name], widths.get(f"{metric}.{name}"))) for name in STATISTICS
    }


def _figures(capture: Capture, run: CapturedRun, result: Result, widths: Mapping[str, Interval]) -> dict[str, Pair]:
    """What a workload has one of."""
    summary, answers = result.summary, run.answers
    blocks = capture.meta.get("num_gpu_blocks")
    makespan = answers.makespan
    pairs = {
        "throughput": (
            float(answers.output.sum()) / makespan if makespan > 0 else None,
            summary.throughput.output_tokens_per_s,
        ),
        "makespan": (makespan, summary.duration_s),
        "kv_blocks": (blocks, summary.memory.num_gpu_blocks),
        "finished": (len(answers.at), summary.outcomes.finished),
        "preemptions": (run.preemptions, summary.preemptions),
        "prefix_hit_tokens": (
            None if answers.cached is None else int(answers.cached.sum()),
            summary.prefix_cache.hit_tokens,
        ),
    }
    of = {"throughput": widths.get("throughput.output_tokens_per_s"), "makespan": widths.get("duration_s")}
    return {
        name: Pair(_number(theirs), _number(ours), _around(_number(ours), of.get(name)))
        for name, (theirs, ours) in pairs.items()
    }


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and isfinite(value) else None
