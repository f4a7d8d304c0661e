"""Fits the host terms to captures of a user's own engine.

Everything else about a step is predicted from operators, but a GPU profile does not know the host. Each term is
something that an engine does, and is fitted where it can be observed: launches in steps whose launch the engine waited
for, client delays in requests that found an idle engine and in tokens after their step's result.

The constants below are chosen; docs/calibration.md says how fits with them come out on held-out runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from steelyard.cost import HostTerms, SpeculativeCost, graph_plan
from steelyard.cost.host import HINDERED, Launch
from steelyard.errors import UserError
from steelyard.sim.setup import set_up
from steelyard.validate.capture import Capture, CapturedRun
from steelyard.validate.settings import scenario_of
from steelyard.validate.steps import HostWait, RecordedStep, host_waits, kernel_by_kernel, read_steps

Floats = NDArray[np.float64]

_LAUNCH_TERMS = ("step", "request", "prompt", "pieces", "eager", "experts")
_FEWEST = 5  # observations of a term, below which it keeps its default
_STALL = 1.8  # times the median of its kind: above, it is a stall, such as a kernel compiled on first use
_UNLIKE = 0.1  # relative spread of compile times that tile sizes do not explain
_VAGUE = 0.4  # relative standard error above which the captures do not determine a term
_TOGETHER = 0.9  # correlation of two estimates above which only their sum is determined
_IDLE = 5e-3  # a request that finds the engine idle for so long is scheduled at once
_SCATTER = 0.05  # smallest relative scatter of launch times
_DRIFT = 0.08  # relative change of launch times from one run of the same engine to the next
_SPREAD = {"request": 0.4, "prompt": 0.4}  # relative spread of a term from host to host
_USUAL_SPREAD = 0.2  # of the other terms
_MINOR = ("prompt",)  # keeps its default instead of causing a refusal
_SHOWS = {
    "request": "steps with few and with many requests",
    "pieces": "short prompts among running requests",
    "eager": "prompts longer than the largest captured size",
    "experts": "prompts longer than the largest captured size",
    "step": "decode steps right behind prompts",
}


@dataclass(frozen=True)
class Fit:
    """A fitted term: seconds, standard error, and number of observations."""

    seconds: float
    error: float
    observations: int


@dataclass(frozen=True)
class Calibration:
    """The terms of a host. Terms that the captures do not determine keep their defaults."""

    terms: HostTerms
    fits: dict[str, Fit]

    @property
    def kept(self) -> tuple[str, ...]:
        """Terms that were not fitted."""
        return tuple(term.name for term in fields(HostTerms) if term.name not in self.fits)

    def as_dict(self) -> dict[str, object]:
        """JSON-ready; `steelyard.cost.read_terms` reads ``terms`` back."""
        return {
            "terms": asdict(self.terms),
            "fitted": {name: asdict(fit) for name, fit in self.fits.items()},
            "kept": list(self.kept),
        }


@dataclass(frozen=True)
class Evidence:
    """Observations of one captured run: waits for the host, requests that found an idle engine, delays of tokens."""

    engine: str  # the captured one
    waits: tuple[tuple[HostWait, Launch], ...]
    layers: int
    expert_layers: int
    ingests: tuple[tuple[int, float], ...]  # (prompt tokens, seconds until the scheduler saw it)
    outputs: tuple[tuple[float, float], ...]  # (requests of the step, mean seconds until clients saw its tokens)


def evidence(capture: Capture, run: CapturedRun, gpu: str, terms: HostTerms) -> Evidence:
    """Read one run of a capture; ``terms`` are a first guess that separates host and GPU."""
    scenario = scenario_of(capture, run, gpu, warm_up=ran_before(capture, run, gpu))
    engine = set_up(scenario, terms).pools[0]
    cost = engine.cost
    if isinstance(cost, SpeculativeCost):
        raise UserError(f"{scenario.source}: an engine with drafts cannot be calibrated; use a capture without")
    steps = read_steps(run.stepped)
    _check_sizes(run, steps, engine.limits.max_num_batched_tokens)
    waits = tuple((wait, wait.step.launch(cost.graphs)) for wait in host_waits(steps, cost) if _undisturbed(wait, run))
    return Evidence(
        engine=str(capture.folder),
        waits=waits,
        layers=cost.host.layers,
        expert_layers=cost.host.expert_layers,
        ingests=tuple(_ingests(steps, run)),
        outputs=tuple(_outputs(steps, run)),
    )


def _undisturbed(wait: HostWait, run: CapturedRun) -> bool:
    """Whether no request arrived meanwhile: the engine's process also reads requests, which delays launches.

    Compile times are so much longer that this does not matter for them.
    """
    at = run.answers.at
    return bool(wait.kernels) or not np.any((at >= wait.since) & (at < wait.since + wait.seconds))


def _check_sizes(run: CapturedRun, steps: Sequence[RecordedStep], most: int) -> None:
    largest = max((step.tokens for step in steps), default=0)
    if largest > most:
        raise UserError(f"{run.stepped}: a step of {largest:,} tokens, but max_num_batched_tokens is {most:,}")


def ran_before(capture: Capture, run: CapturedRun, gpu: str) -> set[int]:
    """Tokens of the steps that the engine had run kernel by kernel before a workload."""
    graphs = graph_plan(scenario_of(capture, run, gpu).engine)
    return {tokens for each in capture.before(run) for tokens in kernel_by_kernel(read_steps(each.stepped), graphs)}


def calibrate(found: Sequence[Evidence]) -> Calibration:
    """Fit the terms that the evidence determines; refuses if it only determines the sum of two."""
    fits = _launches(found)
    step = fits.get("step")
    if step is not None:  # observed with sampling included, which no record separates
        fits["step"] = replace(step, seconds=max(step.seconds - HostTerms().sample, 0.0))
    fits |= _compiling(found) | _ingest(found) | _output(found)
    values = {name: fit.seconds for name, fit in fits.items()}
    return Calibration(replace(HostTerms(), **values), fits)


# -- launches -----------------------------------------------------------------------------------------------------


def _launches(found: Sequence[Evidence]) -> dict[str, Fit]:
    rows, seconds, kinds = _observations(found)
    if len(rows) < _FEWEST:
        raise UserError(
            f"the captures hold {len(rows)} steps whose launch the engine waited for, and {_FEWEST} are needed: "
            "capture more prompts, of different lengths, some of them while other requests are being answered"
        )
    table, times, of_kind = np.array(rows), np.array(seconds), np.array(kinds)
    seen = np.count_nonzero(table, axis=0)
    fitted = [i for i, count in enumerate(seen) if count >= _FEWEST]
    defaults = np.array([asdict(HostTerms())[name] for name in _LAUNCH_TERMS])
    defaults[0] += HostTerms().sample
    spread = defaults * [_SPREAD.get(name, _USUAL_SPREAD) for name in _LAUNCH_TERMS]
    _check_known(table, times, of_kind, fitted, defaults)
    rest = [i for i in range(len(_LAUNCH_TERMS)) if i not in fitted]
    apart = _USUAL_SPREAD if len({each.engine for each in found}) > 1 else 0.0
    known = Known(defaults[fitted], spread[fitted], float(np.hypot(_DRIFT, apart)))
    solution, covariance = _weighted(table[:, fitted], times, table[:, rest] @ defaults[rest], of_kind, known)
    errors = np.sqrt(np.diag(covariance))
    return {
        _LAUNCH_TERMS[i]: Fit(max(float(value), 0.0), float(error), int(seen[i]))
        for i, value, error in zip(fitted, solution, errors, strict=True)
    }


def _check_known(
    table: Floats, times: Floats, of_kind: NDArray[np.str_], fitted: Sequence[int], defaults: Floats
) -> None:
    """Refuse captures that by themselves only determine the sum of two terms; terms lost in scatter may stay vague."""
    fitted = list(fitted)
    while fitted:
        rest = [i for i in range(len(_LAUNCH_TERMS)) if i not in fitted]
        solution, covariance = _weighted(table[:, fitted], times, table[:, rest] @ defaults[rest], of_kind)
        names = [_LAUNCH_TERMS[i] for i in fitted]
        errors = np.sqrt(np.diag(covariance))
        vague = int(np.argmax(errors / np.maximum(solution, 1e-9)))
        if errors[vague] <= _VAGUE * solution[vague]:
            return
        if names[vague] not in _MINOR:
            _check_apart(vague, names, solution, covariance)
        del fitted[vague]


def _observations(found: Sequence[Evidence]) -> tuple[list[list[float]], list[float], list[str]]:
    rows: list[list[float]] = []
    seconds: list[float] = []
    kinds: list[str] = []
    for run, each in enumerate(found):
        for kind in ("whole", "pieces", "eager"):
            waits = [wait for wait, how in each.waits if how == kind and not wait.kernels]
            if not waits:
                continue
            most = _STALL * float(np.median([wait.seconds for wait in waits]))
            for wait in waits:
                if wait.seconds <= most:
                    rows.append([1.0, wait.step.requests, len(wait.step.chunks), *_launched(each, kind, wait.alone)])
                    seconds.append(wait.seconds)
                    kinds.append(f"{kind} of {run}")
    return rows, seconds, kinds


def _compiling(found: Sequence[Evidence]) -> dict[str, Fit]:
    """What the first use of a kernel adds to a launch, from launches that stalled."""
    waits = [wait for each in found for wait, _ in each.waits if wait.kernels]
    stalls = [
        (wait.seconds - wait.predicted) / wait.kernels for wait in waits if wait.seconds > _STALL * wait.predicted
    ]
    if not stalls:
        return {}
    mean = float(np.mean(stalls))
    return {"compile": Fit(mean, _UNLIKE * mean / len(stalls) ** 0.5, len(stalls))}


def _launched(found: Evidence, kind: str, alone: bool) -> tuple[float, float, float]:
    """Layers launched piecewise, kernel by kernel, and kernel by kernel with experts."""
    if kind == "pieces":
        return found.layers, 0.0, 0.0
    share = 0.0 if kind == "whole" else 1.0 - HINDERED if alone else 1.0
    return 0.0, share * (found.layers - found.expert_layers), share * found.expert_layers


def _check_apart(vague: int, names: Sequence[str], solution: Floats, covariance: Floats) -> None:
    """Refuse a term of which the captures only determine the sum with another."""
    errors = np.sqrt(np.diag(covariance))
    together = np.abs(covariance[vague]) / (errors[vague] * np.maximum(errors, 1e-12))
    together[[vague, *(i for i, name in enumerate(names) if name in _MINOR)]] = 0.0
    other = int(np.argmax(together))
    if len(names) > 1 and together[other] < _TOGETHER:
        return
    raise UserError(
        f"the captures cannot tell {names[vague]} from {names[other]} ({solution[vague] * 1e3:.3f} ms, give or take "
        f"{errors[vague] * 1e3:.3f}): their steps are too much alike; capture as well {_SHOWS[names[vague]]}, and "
        f"{_SHOWS[names[other]]}"
    )


@dataclass(frozen=True)
class Known:
    """Prior knowledge of terms from other hosts: their mean and spread, and the relative difference between runs."""

    mean: Floats
    spread: Floats
    drift: float


def _weighted(
    design: Floats, times: Floats, less: Floats, kinds: NDArray[np.str_], known: Known | None = None
) -> tuple[Floats, Floats]:
    """Weighted least squares and the covariance of the terms; slow kinds of launch scatter more and weigh less.

    ``less`` is the part of each launch that is due to terms which are not fitted.

    What is ``known`` of other hosts counts like one more observation of each term. Launches of one kind in one run are
    slow or fast together, especially across engines, so their mean counts as one observation, however many there are.
    This keeps a few extreme or many similar observations from moving a term beyond any host's value.
    """
    own = np.zeros(design.shape[1]) if known is None else 1.0 / known.spread
    mean = np.zeros(design.shape[1]) if known is None else known.mean
    columns = np.column_stack([design, times - less])
    whitened, solution = columns / np.mean(times), np.zeros(design.shape[1])
    for _ in range(5):
        rows = np.vstack([whitened, np.column_stack([np.diag(own), own * mean])])
        solution = np.linalg.lstsq(rows[:, :-1], rows[:, -1], rcond=None)[0].astype(np.float64)
        residual = times - less - design @ solution
        for kind in np.unique(kinds):
            of_kind = kinds == kind
            usual, count = float(np.mean(times[of_kind])), int(np.count_nonzero(of_kind))
            scatter = max(float(np.std(residual[of_kind])), _SCATTER * usual)
            drift = 0.0 if known is None else known.drift * usual
            common = (1.0 - scatter / np.hypot(scatter, np.sqrt(count) * drift)) * np.mean(columns[of_kind], axis=0)
            whitened[of_kind] = (columns[of_kind] - common) / scatter
    information = whitened[:, :-1].T @ whitened[:, :-1] + np.diag(own**2)
    barely = (
        1e-12 * np.trace(information) * np.eye(len(information))
    )  # regularises undetermined terms, which get a large error
    covariance: Floats = np.linalg.inv(information + barely)
    return solution, covariance


# -- clients ------------------------------------------------------------------------------------------------------


def _ingests(steps: Sequence[RecordedStep], run: CapturedRun) -> list[tuple[int, float]]:
    """Delays of requests that arrived while nothing ran: the next step is scheduled when the scheduler sees them."""
    starts = np.array([step.scheduled for step in steps])
    ends = np.maximum.accumulate(np.array([step.updated for step in steps]))
    found = []
    for at in run.answers.at.tolist():
        following = int(np.searchsorted(starts, at))
        idle = following == 0 or ends[following - 1] < at - _IDLE
        if following < len(steps) and idle and following > 0:
            step = steps[following]
            if len(step.chunks) == 1:
                found.append((step.chunks[0][0] + step.chunks[0][1], step.scheduled - at))
    return found


def _outputs(steps: Sequence[RecordedStep], run: CapturedRun) -> list[tuple[float, float]]:
    """Delays of first and last tokens after their step's result, step by step."""
    ends = np.array([step.updated for step in steps])
    shown = np.concatenate([run.answers.at + run.answers.ttft, run.answers.at + run.answers.e2e])
    at = np.searchsorted(ends, shown) - 1
    known = at >= 0
    delays: dict[int, list[float]] = {}
    for index, delay in zip(at[known].tolist(), (shown[known] - ends[at[known]]).tolist(), strict=True):
        delays.setdefault(index, []).append(delay)
    return [(float(steps[index].requests), float(np.mean(each))) for index, each in delays.items()]


def _ingest(found: Sequence[Evidence]) -> dict[str, Fit]:
    pairs = [pair for each in found for pair in each.ingests]
    fits = _line(pairs)
    if fits is None or fits[1].error > _VAGUE * fits[1].seconds:
        return {}
    base, slope = fits
    known = HostTerms()  # a request that finds an idle engine shows the sum of three delays
    return {"ingest": replace(base, seconds=max(base.seconds - known.submit - known.wake, 0.0)), "ingest_token": slope}


def _output(found: Sequence[Evidence]) -> dict[str, Fit]:
    fits = _line([pair for each in found for pair in each.outputs])
    return {} if fits is None else {"output": fits[0], "output_request": fits[1]}


def _line(pairs: Sequence[tuple[float, float]]) -> tuple[Fit, Fit] | None:
    """A linear fit without stalls; None if there are too few points or all have the same x."""
    if len(pairs) < 2 * _FEWEST:
        return None
    x, y = np.array(pairs, dtype=np.float64).T
    usual = np.abs(x - x.mean()) <= 2 * x.std()
    if not usual.any():
        return None
    keep = y <= _STALL * np.median(y[usual])
    x, y = x[keep], y[keep]
    if x.std() < 0.05 * max(float(x.mean()), 1.0):
        return None
    design = np.column_stack([np.ones_like(x), x])
    solution, *_ = np.linalg.lstsq(design, y, rcond=None)
    residual = float(np.var(y - design @ solution))
    errors = np.sqrt(np.diag(residual * np.linalg.pinv(design.T @ design)))
    base, slope = (max(float(value), 0.0) for value in solution)
    return Fit(base, float(errors[0]), len(x)), Fit(slope, float(errors[1]), len(x))
