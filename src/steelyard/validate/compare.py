"""Replays captured workloads and compares them with the measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.cost import graph_plan
from steelyard.hardware import find_gpu
from steelyard.scenario import CostSpec, Scenario
from steelyard.sim import Result, simulate
from steelyard.sim.intervals import STATED, figures, intervals
from steelyard.sim.models import find_served
from steelyard.sim.spread import PERCENTILES, spread_of
from steelyard.sim.summary import FirstUseFigures, Interval, Summary
from steelyard.validate.capture import Capture, CapturedRun, QueueLoad, read_capture_folder
from steelyard.validate.expert_routing import has_experts, routing_notes
from steelyard.validate.settings import gpu_of, scenario_of, unsupported_arguments
from steelyard.validate.steps import kernel_by_kernel, read_steps

LATENCIES = ("ttft", "tpot", "e2e")
_STALL_SECONDS = 0.5  # of a launch that compiles a kernel, which takes about a second; chosen
STATISTICS = ("mean", *(f"p{p}" for p in PERCENTILES))

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """A figure as measured and as simulated; None if one side lacks it.

    ``interval`` is the interval that the simulation states for it.
    """

    measured: float | None
    simulated: float | None
    interval: Interval | None = None

    @property
    def error(self) -> float | None:
        """Simulated over measured, less one; None if undefined."""
        if self.measured is None or self.simulated is None:
            return None
        if self.measured == 0:
            return 0.0 if self.simulated == 0 else None
        return self.simulated / self.measured - 1

    @property
    def inside(self) -> bool | None:
        """Whether the measured value lies in the interval; None if either is unknown."""
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
class WorkloadComparison:
    """One workload, measured and simulated: figures, and the columns behind them."""

    name: str
    latency: dict[str, dict[str, Pair]]  # by metric and statistic
    figures: dict[str, Pair]
    samples: dict[str, tuple[Floats, Floats]] = field(repr=False)  # by metric: measured, simulated
    load: tuple[QueueLoad, QueueLoad] = field(repr=False)
    provenance: dict[str, float]
    scenario: Scenario = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def stated(self) -> list[bool]:
        """For every figure with an interval, whether the measured value lies in it."""
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
    """All workloads of a capture folder against our prediction."""

    folder: Path
    gpu: str
    engine: str  # that was recorded, with its version; empty if the capture does not say
    workloads: tuple[WorkloadComparison, ...]

    @property
    def coverage(self) -> tuple[int, int]:
        """How many figures lie in their stated interval, and how many have one."""
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

    Kernels that earlier workloads caused the engine to compile are simulated, too; with ``given_cache`` these, and the
    cached tokens of each prompt, are taken from the record. ``progress`` is called with (workloads replayed, workloads
    in all).
    """
    capture = read_capture_folder(folder)
    name = gpu_of(capture, gpu)
    compared: list[WorkloadComparison] = []
    for run, result in replayed(capture, name, given_cache, cost):
        compared.append(compare_run(capture, run, result, intervals(result)))
        if progress is not None:
            progress(len(compared), len(capture.runs))
    return Validation(folder, name, capture.engine, tuple(compared))


def replayed(
    capture: Capture,
    gpu: str,
    given_cache: bool,
    cost: CostSpec | None = None,
    simulated: Callable[[Scenario], Result] = simulate,
) -> Iterator[tuple[CapturedRun, Result]]:
    """The workloads of a capture in order, each with its simulation."""
    ran: set[int] = set()
    for run in capture.runs:
        result = simulated(scenario_of(capture, run, gpu, given_cache=given_cache, cost=cost, warm_up=ran))
        if result.summary.compiled_on_first_use is not None:
            ran |= _ran(run, result, given_cache)
        yield run, result


def compare_run(
    capture: Capture, run: CapturedRun, result: Result, stated: Mapping[str, Interval] | None = None
) -> WorkloadComparison:
    """A captured workload and its simulation, with the intervals ``stated`` for its figures."""
    widths = _widths(result, stated or {})
    requests = result.requests
    finished = requests["status"] == "finished"
    late = requests["taken"] - requests["arrival"]  # the recording client's clock starts when it sends
    simulated = {"ttft": requests["ttft"] - late, "tpot": requests["tpot"], "e2e": requests["e2e"] - late}
    measured = {"ttft": run.answers.ttft, "tpot": run.answers.tpot, "e2e": run.answers.e2e}
    samples = {name: (_known(measured[name]), _known(simulated[name][finished])) for name in LATENCIES}
    steps = result.steps
    return WorkloadComparison(
        name=run.name,
        latency={name: _statistics(name, *pair, widths) for name, pair in samples.items()},
        figures=_figures(capture, run, result, widths),
        samples=samples,
        load=(run.load, QueueLoad(steps["start"], steps["end"], steps["running"], steps["waiting"])),
        provenance=result.summary.provenance.to_dict(),
        scenario=result.scenario,
        notes=(
            *unsupported_arguments(capture),
            *_routing(capture, run, result.scenario),
            *_links(result.scenario),
            *_stalls(run.load, result.summary),
            *result.notes,
        ),
    )


def _routing(capture: Capture, run: CapturedRun, scenario: Scenario) -> list[str]:
    """Notes on how the capture's experts were routed; benches have no steps to tell it by."""
    (pool,) = scenario.fleet.pools
    model = find_served(scenario.model, scenario.base_dir, scenario.source).spec
    if not has_experts(model):
        return []
    steps = read_steps(run.stepped) if run.load.by_step else []
    return routing_notes(capture, model, steps, find_gpu(pool.gpu), pool.tp)


def _links(scenario: Scenario) -> list[str]:
    """A note where GPUs are linked by PCIe alone, and a capture does not say how far that reaches."""
    (pool,) = scenario.fleet.pools
    gpu, said = find_gpu(pool.gpu), scenario.fleet.topology
    if pool.tp * pool.pp * pool.dp == 1 or gpu.nvlink_bandwidth or (said is not None and said.peer_access is not None):
        return []
    usual = "reach each other's memory" if gpu.peer_access else "send through the host's memory"
    return [f"whether GPUs reach each other's memory over PCIe is not recorded (peer_access): they {usual} here"]


def _ran(run: CapturedRun, result: Result, recorded: bool) -> set[int]:
    """Tokens of the steps that ran kernel by kernel in a workload, as recorded or simulated."""
    graphs, steps = graph_plan(result.scenario.engine), result.steps
    if recorded:
        return kernel_by_kernel(read_steps(run.stepped), graphs)
    tokens, decode_only = steps["n_decode"] + steps["prefill_tokens"], steps["prefill_requests"] == 0
    kinds = set(zip(tokens.tolist(), decode_only.tolist(), strict=True))
    return {count for count, alone in kinds if graphs.launch(count, decode_only=alone) == "eager"}


def _stalls(load: QueueLoad, summary: Summary) -> list[str]:
    """Notes on launches of half a second and more, in which an engine compiles kernels, and how many were simulated."""
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
        f"{found.kernels} of {found.seconds:.1f} s predicted (kernels compiled on first use)"
    ]


def _known(values: Floats) -> Floats:
    return values[np.isfinite(values)]


def _widths(result: Result, stated: Mapping[str, Interval]) -> dict[str, Interval]:
    """Intervals relative to their figures, since validation computes some figures differently from the summary."""
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
    """Figures of a workload as a whole."""
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
