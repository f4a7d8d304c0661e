"""A scenario under other loads: the same requests in the same order, closer together or further apart."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from steelyard.errors import UserError
from steelyard.records import Floats
from steelyard.scenario import (
    ConstantArrivals,
    GammaArrivals,
    MixSpec,
    PoissonArrivals,
    Scenario,
    TraceArrivals,
    VaryingArrivals,
    Wave,
)
from steelyard.scenario.arrivals import ArrivalsSpec
from steelyard.workload import build_workload

_STEADY = PoissonArrivals | GammaArrivals | ConstantArrivals


@dataclass(frozen=True)
class Load:
    """A scenario whose rate can be chosen.

    Rates are arrivals per second over the whole fleet: requests, or sessions. In a mix all workloads keep their
    proportions. A trace is played faster or slower.
    """

    scenario: Scenario

    def __post_init__(self) -> None:
        for i, spec in enumerate(self.scenario.workload.workloads()):
            if not isinstance(spec.arrivals, _STEADY | VaryingArrivals | TraceArrivals):
                kind = "none" if spec.arrivals is None else spec.arrivals.kind
                raise UserError(
                    f"{self.scenario.source}: workload.mix[{i}].arrivals: {kind} arrivals have no rate that could be "
                    "raised; use poisson, gamma, constant, varying, or a trace"
                )

    @cached_property
    def own(self) -> float:
        """The scenario's own rate; of varying arrivals and traces, the mean."""
        scenario = self.scenario
        total = 0.0
        for i, (spec, share) in enumerate(zip(scenario.workload.workloads(), scenario.workload.shares(), strict=True)):
            if isinstance(spec.arrivals, _STEADY):
                total += share * spec.arrivals.rate
            else:
                alone = MixSpec(mix=(spec.model_copy(update={"share": None}),))
                work = build_workload(alone, scenario.seed, scenario.base_dir)
                first = work.at[work.after < 0]
                if len(first) < 2 or first.max() <= first.min():
                    where = f"{scenario.source}: workload.mix[{i}].arrivals"
                    raise UserError(f"{where}: too few arrivals to have a rate")
                total += share * float((len(first) - 1) / (first.max() - first.min()))
        return total

    def unit_arrivals(self, requests: int) -> Floats:
        """When each of so many requests arrives at a rate of 1."""
        scenario = self.at(1.0, requests)
        work = build_workload(scenario.workload, scenario.seed, scenario.base_dir)
        return np.sort(work.at[work.after < 0])

    def at(self, rate: float, requests: int | None = None) -> Scenario:
        """The scenario at another rate, and with another number of requests where they are drawn."""
        factor = rate / self.own
        mix = self.scenario.workload
        written = mix.model_dump(exclude_unset=True)
        if mix.arrivals is not None:
            written["arrivals"] = _faster(mix.arrivals, factor)
        for spec, each in zip(mix.mix, written["mix"], strict=True):
            if spec.arrivals is not None:
                each["arrivals"] = _faster(spec.arrivals, factor)
            elif spec.trace is not None:
                each["arrivals"] = {"kind": "trace", "scale": factor}
        return self.scenario.replace(workload=written if requests is None else _longer(mix, written, requests))


def _faster(arrivals: ArrivalsSpec, factor: float) -> dict[str, Any]:
    written = arrivals.model_dump(exclude_unset=True)
    if isinstance(arrivals, _STEADY):
        return {**written, "rate": arrivals.rate * factor}
    if isinstance(arrivals, TraceArrivals):
        return {**written, "scale": arrivals.scale * factor}
    if isinstance(arrivals, VaryingArrivals):
        profile = arrivals.profile
        if isinstance(profile, Wave):
            scaled = {"mean": profile.mean * factor, "amplitude": profile.amplitude * factor}
            return {**written, "profile": {**written["profile"], **scaled}}
        return {**written, "profile": [[second, rate * factor] for second, rate in profile]}
    return written


def _longer(mix: MixSpec, written: dict[str, Any], requests: int) -> dict[str, Any]:
    """As many requests in all, instead of what the workloads say. Traces keep theirs."""
    drawn = [spec for spec in mix.workloads() if spec.trace is None]
    own = sum(share * (spec.requests or 0) for share, spec in zip(mix.shares(), mix.workloads(), strict=True))
    for spec, each in zip(mix.mix, written["mix"], strict=True):
        if spec.trace is None and spec.requests is not None and own:
            each["requests"] = max(1, round(spec.requests * requests / own))
            each.pop("duration", None)
        elif spec.trace is None:
            each.pop("duration", None)
    if drawn and (mix.requests is not None or mix.duration is not None):
        written["requests"] = requests if not mix.requests or not own else max(1, round(mix.requests * requests / own))
        written.pop("duration", None)
    return written
