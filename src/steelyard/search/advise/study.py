"""Tunes every policy on the first half of the trace, and judges it on the second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, nextafter
from pathlib import Path

import numpy as np

from steelyard.errors import UserError
from steelyard.scenario import Scenario
from steelyard.search.advise.advice import AdviceRow, FleetAdvice, RowKind, in_order
from steelyard.search.advise.judge import Column, Judgement, ServedTraffic, best, judge, missed
from steelyard.search.advise.oracle import oracle_schedule
from steelyard.search.advise.policies import Bounds, PolicySettings, RuleMaker, all_candidates, described
from steelyard.search.advise.pool import AdvisedPool, between, read_traffic
from steelyard.search.advise.runs import RunMeter, run_fixed, run_policy, run_schedule
from steelyard.search.advise.settings import AdviseSettings
from steelyard.workload import Workload

Progress = Callable[[int, int], None]

_AROUND = 2  # fixed sizes to show on each side of the one that tuning chose
_BUCKETS = 240  # of the figures over time


def advise(scenario: Scenario, trace: Path, settings: AdviseSettings, progress: Progress | None = None) -> FleetAdvice:
    """What fixed fleets and autoscaling policies would have cost for this trace, and missed."""
    pool = AdvisedPool.of(scenario, trace, settings.speed)
    one = pool.fixed(1)
    work, whole = read_traffic(one, trace, settings)
    span = float(np.nanmax(work.at))
    study = _Study(pool, work, span / 2, nextafter(span, inf), one.gpus, one.pools[0].price_per_hour, settings)
    return study.run(trace, whole, progress or (lambda done, total: None))


@dataclass(frozen=True)
class _Study:
    pool: AdvisedPool
    work: Workload
    split: float  # second at which tuning ends and judging starts
    end: float
    gpus: int  # of a replica
    price: float
    settings: AdviseSettings

    def run(self, trace: Path, whole: float, progress: Progress) -> FleetAdvice:
        """Tune, judge, and put in order."""
        size = self._smallest()
        most = self.settings.most or max(2 * size, self.settings.least)
        bounds = Bounds(size, self.settings.least, most, self.settings.startup)
        todo = list(all_candidates(self.settings.policies, bounds, self.split))
        sizes = self._sizes(size, most)
        meter = RunMeter(self.settings.workers, len(todo) + len(sizes) + 4, progress)
        rows = self._policies(RuleMaker.of(self.pool, bounds), todo, meter)
        fixed = dict(zip(sizes, meter.all(partial(run_fixed, self.pool, self.work), sizes), strict=True))
        shown = [n for n in sizes if n == size or ("none" in self.settings.policies and abs(n - size) <= _AROUND)]
        rows += [self._row(f"fixed {n}", "fixed", "", len(shown), fixed[n]) for n in shown]
        if "oracle" in self.settings.policies:
            rows.append(self._oracle(fixed, bounds))
        return self._advice(trace, whole, bounds, rows)

    def _smallest(self) -> int:
        """The smallest fixed fleet that keeps the limits in the first half."""
        first, most = between(self.work, 0.0, self.split), self.settings.most_fixed
        size = below = self.settings.least
        while not (found := self._judged(run_fixed(self.pool, first, size), 0.0, self.split)).meets:
            if size >= most:
                raise self._hopeless(found, size)
            below, size = size, min(2 * size, most)
        while size - below > 1:
            middle = (size + below) // 2
            met = self._judged(run_fixed(self.pool, first, middle), 0.0, self.split).meets
            below, size = (below, middle) if met else (middle, size)
        return size

    def _hopeless(self, found: Judgement, size: int) -> UserError:
        name, over = next((name, each) for name, each in found.limits.items() if not each.met)
        got = "too many were not served" if over.value is None else f"{over.value:.3g} s"
        return UserError(
            f"{self.pool.scenario.source}: slo.{name}: {over.limit:g} s is not kept by {size} replicas in the first "
            f"half of the trace ({got}); raise the limit, or give more with --max"
        )

    def _sizes(self, size: int, most: int) -> list[int]:
        """Fixed sizes to run: those around the chosen one, and all below it where the oracle asks for them."""
        least = self.settings.least
        low = least if "oracle" in self.settings.policies else max(least, size - _AROUND)
        return list(range(low, max(size, min(most, size + _AROUND)) + 1))

    def _policies(
        self, rules: RuleMaker, todo: Sequence[tuple[str, PolicySettings]], meter: RunMeter
    ) -> list[AdviceRow]:
        """Each policy with its best settings on the first half, run over the whole trace."""
        first = between(self.work, 0.0, self.split)
        tuned = meter.all(partial(run_policy, rules, first), [each for _, each in todo])
        judged = [self._judged(run, 0.0, self.split) for run in tuned]
        chosen: list[tuple[str, PolicySettings, int]] = []
        for policy in dict.fromkeys(name for name, _ in todo):
            places = [i for i, (name, _) in enumerate(todo) if name == policy]
            place = places[best([judged[i] for i in places])]
            chosen.append((policy, todo[place][1], len(places)))
        runs = meter.all(partial(run_policy, rules, self.work), [each for _, each, _ in chosen])
        return [
            self._row(policy, "policy", described(each), tried, run)
            for (policy, each, tried), run in zip(chosen, runs, strict=True)
        ]

    def _oracle(self, fixed: dict[int, ServedTraffic], bounds: Bounds) -> AdviceRow:
        """The bound: it knows the future, and its first replicas are there from the start."""
        schedule = oracle_schedule(fixed, self.pool.limits, self.end, bounds.startup)
        fleet = self.pool.scaled(schedule[0][1], bounds.least, max(bounds.most, *fixed), bounds.startup)
        run = run_schedule(fleet, self.work, schedule, bounds.startup)
        return self._row("oracle", "bound", "knows the future", 0, run)

    def _row(self, name: str, kind: RowKind, setting: str, tried: int, run: ServedTraffic) -> AdviceRow:
        over = missed(run.requests, self.pool.scenario.slo)
        return AdviceRow(
            name=name,
            kind=kind,
            setting=setting,
            tried=tried,
            tuned=self._judged(run, 0.0, self.split),
            judged=self._judged(run, self.split, self.end),
            held=run.held,
            misses=tuple(self._by_bucket(run.requests["arrival"], over).tolist()),
        )

    def _judged(self, run: ServedTraffic, start: float, end: float) -> Judgement:
        return judge(run, self.pool.scenario.slo, start, end, self.gpus, self.price)

    def _by_bucket(self, arrival: Column, weights: Column | None = None) -> Column:
        """Requests that came in each bucket of the figures, or those of them that were missed."""
        came = np.isfinite(arrival)
        place = np.minimum((arrival[came] / self.end * _BUCKETS).astype(np.int64), _BUCKETS - 1)
        return np.bincount(place, None if weights is None else weights[came], minlength=_BUCKETS)

    def _advice(self, trace: Path, whole: float, bounds: Bounds, rows: list[AdviceRow]) -> FleetAdvice:
        return FleetAdvice(
            trace=trace.name,
            scenario=self.pool.scenario.name,
            requests=len(self.work),
            seconds=self.end,
            whole_seconds=whole,
            speed=self.settings.speed,
            gpu=self.pool.pool.gpu,
            gpus_per_replica=self.gpus,
            usd_per_gpu_hour=self.price,
            startup=bounds.startup,
            least=bounds.least,
            most=bounds.most,
            split=self.split,
            bucket=self.end / _BUCKETS,
            arrivals=tuple(self._by_bucket(self.work.at).tolist()),
            chosen_fixed=f"fixed {bounds.begins}",
            rows=in_order(rows),
        )
