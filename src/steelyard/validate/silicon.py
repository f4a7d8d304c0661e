"""Replays AIConfigurator's end-to-end points: errors by GPU and model, and the regret of decisions based on them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from steelyard.errors import UserError
from steelyard.sim import simulate
from steelyard.validate.rival import Rival, find_rival
from steelyard.validate.silicon_apart import drafted
from steelyard.validate.silicon_hosts import USUAL, RunHost, Times, fitted_hosts
from steelyard.validate.silicon_points import Point, read_points, scenario_of, why_not

Who = Literal["ours", "fitted", "theirs"]
SIDES: tuple[Who, ...] = ("ours", "fitted", "theirs")
METRICS = ("ttft", "tpot")


@dataclass(frozen=True)
class PointReplay:
    """A measured point, our prediction, ours with a host fitted on other models, and AIConfigurator's (None without
    one)."""

    point: Point
    ours: Times
    theirs: Times | None
    fitted: Times | None = None

    @property
    def measured(self) -> Times:
        return self.point.ttft, self.point.tpot

    def times(self, who: Who) -> Times | None:
        """One side's prediction, if it has one."""
        return {"ours": self.ours, "fitted": self.fitted, "theirs": self.theirs}[who]

    def predicted(self, who: Who) -> Times:
        """The same, where it must exist."""
        times = self.times(who)
        assert times is not None
        return times

    def throughput(self, times: Times) -> float:
        """Output tokens per second and GPU with these times, in a closed loop."""
        ttft, tpot = times
        point = self.point
        return point.concurrency * point.osl / (ttft + (point.osl - 1) * tpot) / point.gpus


@dataclass(frozen=True)
class Errors:
    """Errors of one side over some replays, by metric: predicted over measured, less one."""

    count: int
    median: dict[str, float]  # of the absolute errors
    mean: dict[str, float]
    bias: dict[str, float]  # median of the signed errors
    mean_bias: dict[str, float]

    @classmethod
    def of(cls, replays: Sequence[PointReplay], who: Who) -> Errors | None:
        """Errors of one side, or None without predictions."""
        answered = [each for each in replays if each.times(who) is not None]
        if not answered:
            return None
        ratios = np.array([each.predicted(who) for each in answered]) / np.array([each.measured for each in answered])
        signed = dict(zip(METRICS, (ratios - 1).T, strict=True))
        return cls(
            len(answered),
            median={metric: float(np.median(np.abs(each))) for metric, each in signed.items()},
            mean={metric: float(np.mean(np.abs(each))) for metric, each in signed.items()},
            bias={metric: float(np.median(each)) for metric, each in signed.items()},
            mean_bias={metric: float(np.mean(each)) for metric, each in signed.items()},
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, by metric."""
        return {
            "count": self.count,
            **{
                metric: {
                    "median": self.median[metric],
                    "mean": self.mean[metric],
                    "median_signed": self.bias[metric],
                    "mean_signed": self.mean_bias[metric],
                }
                for metric in METRICS
            },
        }


@dataclass(frozen=True)
class Regret:
    """How much measured throughput per GPU the chosen configurations lose, over groups with a choice.

    A group holds the measured configurations of one model, GPU, engine and pair of lengths. The one predicted to have
    the highest throughput is chosen, and compared with the best measured one. ``free`` chooses among all of a group,
    ``limited`` among those predicted to meet the group's median TPOT: a choice that misses it when measured is worth
    nothing, so all is lost. ``kept`` is the share of choices that do meet it.
    """

    groups: int
    free_mean: float
    free_worst: float
    limited_mean: float
    kept: float


@dataclass(frozen=True)
class SiliconValidation:
    """All replays, and the number of skipped points by reason."""

    source: str
    replays: tuple[PointReplay, ...]
    skipped: dict[str, int]
    rival: str

    def by_gpu(self) -> dict[tuple[Any, ...], list[PointReplay]]:
        """Replays by GPU and engine."""
        return group(self.replays, lambda point: (point.gpu, point.engine))

    def by_model(self) -> dict[tuple[Any, ...], list[PointReplay]]:
        """Replays by GPU, engine and model."""
        return group(self.replays, lambda point: (point.gpu, point.engine, point.model))

    @property
    def answered_by_both(self) -> list[PointReplay]:
        """The replays that both sides predicted."""
        return [each for each in self.replays if each.theirs is not None]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "source": self.source,
            "rival": self.rival,
            "skipped": self.skipped,
            "overall": _both(self.replays),
            "same_rows": _both(self.answered_by_both),
            "groups": [
                {"gpu": gpu, "engine": engine, "model": model, **_both(replays)}
                for (gpu, engine, model), replays in self.by_model().items()
            ],
            "regret": {who: vars(found) if found else None for who, found in self.regrets().items()},
            "points": [_point_dict(each) for each in self.replays],
        }

    def regrets(self) -> dict[Who, Regret | None]:
        """Regrets of both sides over the replays that both predicted, or of ours alone over all replays."""
        both = self.answered_by_both
        own = both or self.replays
        fitted = [each for each in own if each.fitted is not None]
        return {"ours": regret(own, "ours"), "fitted": regret(fitted, "fitted"), "theirs": regret(both, "theirs")}


def validate_silicon(
    *,
    source: str = "auto",
    gpus: Sequence[str] = (),
    rival: Rival | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SiliconValidation:
    """Replay all possible points, on the given GPUs (all by default), with a cost source.

    Repeated measurements count once. ``progress`` is called with (points processed, points in all).
    """
    rival = rival or find_rival()
    points = [point for point in read_points() if not gpus or point.gpu in gpus]
    skipped: Counter[str] = Counter()
    replays: list[PointReplay] = []
    simulated: dict[tuple[object, ...], Times | str] = {}
    seen: set[tuple[object, ...]] = set()
    with_drafts = drafted(points)
    for count, point in enumerate(points, 1):
        measurement = (*point.run, round(point.ttft, 5), round(point.tpot, 5))  # some are repeated with fewer digits
        reason = why_not(point) or ("the same measurement again" if measurement in seen else None)
        if reason is None and point.name in with_drafts:
            reason = "prefill and decode apart: with drafts, or not known to be without"
        seen.add(measurement)
        if reason is None:
            if point.run not in simulated:
                simulated[point.run] = _simulate(point, source)
            found = simulated[point.run]
            if isinstance(found, str):
                reason = found
            else:
                replays.append(PointReplay(point, found, rival.predict(point)))
        if reason is not None:
            skipped[reason] += 1
        if progress is not None:
            progress(count, len(points))
    replays = _with_fitted(replays, source)
    return SiliconValidation(source, tuple(replays), dict(skipped.most_common()), rival.note)


def _with_fitted(replays: Sequence[PointReplay], source: str) -> list[PointReplay]:
    """The same with predictions by hosts that were fitted on other models."""
    known: dict[tuple[object, ...], Times | None] = {}

    def simulated(point: Point, host: RunHost) -> Times | None:
        key = *point.run, host
        if key not in known:
            found = _simulate(point, source, host)
            known[key] = None if isinstance(found, str) else found
        return known[key]

    hosts = fitted_hosts([each.point for each in replays if each.point.aggregated], simulated)

    def fitted(point: Point) -> Times | None:
        return simulated(point, hosts[point.published, point.model]) if point.aggregated else None

    return [replace(each, fitted=fitted(each.point)) for each in replays]


def _simulate(point: Point, source: str, host: RunHost = USUAL) -> Times | str:
    """Our mean TTFT and TPOT, or why the point cannot be simulated."""
    try:
        result = simulate(host.delayed(scenario_of(point, source), point), host=host.terms)
    except UserError as error:
        return _reason(str(error))
    finished = result.requests["status"] == "finished"
    if not finished.any():
        return "no request finishes"
    ttft, tpot = (result.requests[metric][finished] for metric in METRICS)
    return float(np.nanmean(ttft)) + host.before(point), float(np.nanmean(tpot))


def _reason(message: str) -> str:
    """A refusal without the point's name and figures, so that equal ones are counted together."""
    for sign, reason in {
        "is not supported": "model not known",
        "neither in the catalog": "model not known",
        "does not fit": "does not fit the GPUs as we count",
        "quantised": "weights of another type than the model's",
        "different numbers of GPUs": "experts and attention over different numbers of GPUs",
    }.items():
        if sign in message:
            return reason
    return message


def group(
    replays: Iterable[PointReplay], key: Callable[[Point], tuple[Any, ...]]
) -> dict[tuple[Any, ...], list[PointReplay]]:
    """Replays by a key of their point, in order of the key."""
    groups: dict[tuple[Any, ...], list[PointReplay]] = defaultdict(list)
    for each in replays:
        groups[key(each.point)].append(each)
    return dict(sorted(groups.items()))


def regret(replays: Sequence[PointReplay], who: Who) -> Regret | None:
    """The regret of choosing by predictions, over groups of the same model, GPU, engine and lengths."""
    groups = group(replays, lambda point: (point.model, point.system, point.engine, point.isl, point.osl))
    choices = [each for each in groups.values() if len({replay.point.run for replay in each}) > 1]
    if not choices:
        return None
    free = [_given_away(each, each, who) for each in choices]
    limited, kept = zip(*(_under_limit(each, who) for each in choices), strict=True)
    return Regret(len(choices), float(np.mean(free)), max(free), float(np.mean(limited)), float(np.mean(kept)))


def _chosen(candidates: Sequence[PointReplay], who: Who) -> PointReplay:
    return max(candidates, key=lambda each: each.throughput(each.predicted(who)))


def _given_away(candidates: Sequence[PointReplay], allowed: Sequence[PointReplay], who: Who) -> float:
    """By which share the best predicted candidate falls short of the best allowed measured throughput."""
    chosen = _chosen(candidates, who)
    best = max(each.throughput(each.measured) for each in allowed)
    return max(0.0, 1.0 - chosen.throughput(chosen.measured) / best)


def _under_limit(replays: Sequence[PointReplay], who: Who) -> tuple[float, bool]:
    """The same under the group's median TPOT; if none is predicted to meet it, the fastest is chosen."""
    limit = float(np.median([each.measured[1] for each in replays]))
    fitting = [each for each in replays if each.predicted(who)[1] <= limit]
    candidates = fitting or [min(replays, key=lambda each: each.predicted(who)[1])]
    allowed = [each for each in replays if each.measured[1] <= limit]
    kept = _chosen(candidates, who).measured[1] <= limit
    return _given_away(candidates, allowed, who) if kept else 1.0, kept


def _both(replays: Sequence[PointReplay]) -> dict[str, Any]:
    found = {who: Errors.of(replays, who) for who in SIDES}
    return {who: None if each is None else each.as_dict() for who, each in found.items()}


def _point_dict(replay: PointReplay) -> dict[str, Any]:
    point = replay.point
    sides = {"measured": replay.measured, "ours": replay.ours, "fitted": replay.fitted, "theirs": replay.theirs}
    return {
        "name": point.name,
        "model": point.model,
        "gpu": point.gpu,
        "engine": point.engine,
        "version": point.version,
        "tp": point.layout.tp,
        "isl": point.isl,
        "osl": point.osl,
        "concurrency": point.concurrency,
        **{side: times and dict(zip(METRICS, times, strict=True)) for side, times in sides.items()},
    }
