"""Cross-validation of calibration: each captured run in turn is predicted from the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.cost import HostTerms
from steelyard.errors import UserError
from steelyard.sim import simulate
from steelyard.validate.calibrate import Calibration, Evidence, calibrate, evidence, ran_before
from steelyard.validate.capture import Capture, CapturedRun, read_capture_folder
from steelyard.validate.compare import WorkloadComparison, compare_run
from steelyard.validate.settings import gpu_of, scenario_of

_ROUNDS = 2  # the second separates host and GPU with the terms of the first


@dataclass(frozen=True)
class Source:
    """One captured run, and the GPU it ran on."""

    capture: Capture
    run: CapturedRun
    gpu: str

    @property
    def name(self) -> str:
        """The run's folder as given, and its name."""
        return f"{self.capture.folder}/{self.run.name}"


@dataclass(frozen=True)
class Crossed:
    """The calibration from all runs, and each run as the others predict it (or why they cannot)."""

    calibration: Calibration
    sources: tuple[Source, ...]
    held_out: dict[str, WorkloadComparison | str]

    def as_dict(self) -> dict[str, Any]:
        """The content of a calibration file."""
        return {
            **self.calibration.as_dict(),
            "captures": [source.name for source in self.sources],
            "cross_validated": {
                name: found if isinstance(found, str) else {key: pair.error for key, pair in headline(found).items()}
                for name, found in self.held_out.items()
            },
        }


def headline(found: WorkloadComparison) -> dict[str, Any]:
    """The main figures of a comparison."""
    means = {metric: found.latency[metric]["mean"] for metric in ("ttft", "tpot", "e2e")}
    return {**means, "throughput": found.figures["throughput"]}


def read_sources(folders: Sequence[Path], gpu: str | None) -> tuple[Source, ...]:
    """Every run of the given capture folders."""
    captures = [read_capture_folder(folder) for folder in folders]
    return tuple(Source(capture, run, gpu_of(capture, gpu)) for capture in captures for run in capture.runs)


def cross_calibrate(sources: Sequence[Source], progress: Callable[[int, int], None] | None = None) -> Crossed:
    """Calibrate on all runs, and on all but each one to predict that one."""
    calibration = _fit(sources)
    held_out: dict[str, WorkloadComparison | str] = {}
    if len(sources) > 1:
        for i, source in enumerate(sources):
            held_out[source.name] = _predicted(source, [other for other in sources if other is not source])
            if progress is not None:
                progress(i + 1, len(sources))
    return Crossed(calibration, tuple(sources), held_out)


def _fit(sources: Sequence[Source]) -> Calibration:
    terms = HostTerms()
    for _ in range(_ROUNDS):
        found: list[Evidence] = [evidence(each.capture, each.run, each.gpu, terms) for each in sources]
        calibration = calibrate(found)
        terms = calibration.terms
    return calibration


def _predicted(source: Source, others: Sequence[Source]) -> WorkloadComparison | str:
    try:
        terms = _fit(others).terms
    except UserError as error:
        return str(error)
    cached = source.run.answers.cached  # the cache of earlier runs does not depend on the host
    given = cached is not None and bool(cached.any())
    ran = ran_before(source.capture, source.run, source.gpu)  # nor do kernels that earlier runs compiled
    scenario = scenario_of(source.capture, source.run, source.gpu, given_cache=given, warm_up=ran)
    return compare_run(source.capture, source.run, simulate(scenario, host=terms))
