"""Simulates a few engines of a kind without the other side of a fleet: what each carries within the limits on its part.

How long first tokens take follows from queues at prefill engines, and what decode engines carry from how their ranks
fill up. No simple formula tells either. A fleet of two kinds carries about as much as the scarcer of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from steelyard.scenario import Scenario, SloSpec
from steelyard.scenario.search import SearchScenario
from steelyard.search.capacity import largest_rate, nearby
from steelyard.search.kinds import Key, Kind, Kinds, as_scenario
from steelyard.search.loads import Load
from steelyard.sim.setup import set_up

_GPUS = {"prefill": 64, "decode": 32}  # of engines that are simulated together: more share their load better
_FEWEST = 200  # requests of such a simulation
_BUSY = 0.85  # share of its estimate at which a kind's largest rate is first looked for
_PLENTY = 2.0  # times the prefill engines that decode engines need
_HOPELESS = 0.5  # kinds whose estimate for what they cost is below this share of the best are not simulated
_METRICS = {"prefill": ("ttft",), "decode": ("tpot", "itl")}  # limits on each part of a request


@dataclass(frozen=True)
class AloneTask:
    """A kind to be simulated alone: for which part of a request, at which levels, behind which prefill engines."""

    kind: Kind
    part: str
    quantization: str | None
    levels: tuple[SloSpec, ...]
    gpus: int  # of the whole fleet
    feeder: Kind | None = None

    @property
    def together(self) -> int:
        """How many engines are simulated."""
        return max(1, min(_GPUS[self.part], self.gpus) // self.kind.gpus)

    def key(self) -> list[object]:
        """What its result depends on, beside the search."""
        fed = None if self.feeder is None else [self.feeder.pools, self.feeder.ratings["prefill"].estimate]
        limits = [slo.model_dump(mode="json") for slo in self.levels]
        return ["alone", self.kind.pools, self.kind.micro_batches, self.part, self.quantization, limits, fed]


def try_alone(
    kinds: dict[Key, Kinds],
    levels: tuple[SloSpec, ...],
    gpus: int,
    simulate: Callable[[Sequence[AloneTask]], Sequence[tuple[float, ...]]],
) -> None:
    """Rate kinds that may be part of a good fleet: first those that prefill, the best of which then feed the others."""
    for parts in ({"prefill": "prefill"}, {"decode": "decode", "unit": "decode"}):
        tasks: list[AloneTask] = []
        for (role, quantization), found in kinds.items():
            feeding = kinds.get(("prefill", quantization))
            feeder = None if feeding is None else _best_feeder(feeding.found)
            if role in parts and feeder is not None:
                fed_by = None if role == "prefill" else feeder
                some = _hopeful(found.found, parts[role])
                tasks += [AloneTask(kind, parts[role], quantization, levels, gpus, fed_by) for kind in some]
        rates = _of_the_first(tasks, simulate(tasks))
        rated = {(id(task.kind), task.part): each for task, each in zip(tasks, rates, strict=True)}
        for found in kinds.values():
            found.found = [_with_rates(kind, rated) for kind in found.found]


def _of_the_first(tasks: Sequence[AloneTask], rates: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Rates, of kinds that did exactly the same only those of the first. They differ in a setting that did not matter
    at the largest load within the limits, such as a limit on requests that was not reached."""
    seen: set[tuple[object, ...]] = set()
    found: list[tuple[float, ...]] = []
    for task, each in zip(tasks, rates, strict=True):
        pools = [{name: value for name, value in pool.items() if name != "engine"} for pool in task.kind.pools]
        rounded = tuple(f"{rate:.6g}" for rate in each)  # rates are found on one scale, up to rounding
        same = (task.part, task.quantization, repr(pools), task.kind.micro_batches, rounded)
        found.append((0.0,) * len(each) if same in seen else each)
        seen.add(same)
    return found


def _with_rates(kind: Kind, rated: dict[tuple[int, str], tuple[float, ...]]) -> Kind:
    ratings = {
        part: each._replace(alone=rated.get((id(kind), part), each.alone)) for part, each in kind.ratings.items()
    }
    return replace(kind, ratings=ratings)


def _hopeful(kinds: Sequence[Kind], part: str) -> list[Kind]:
    """Kinds that may be part of a good fleet, by their estimates per GPU, dollar or watt."""
    costs: tuple[Callable[[Kind], float], ...] = (
        lambda kind: kind.gpus,
        lambda kind: kind.usd_per_hour,
        lambda kind: kind.watts,
    )
    found: set[int] = set()
    for cost in costs:
        worth = [kind.ratings[part].estimate / max(cost(kind), 1e-9) for kind in kinds]
        best = max(worth, default=0.0)
        found |= {i for i, each in enumerate(worth) if 0 < _HOPELESS * best <= each}
    return [kinds[i] for i in sorted(found)]


def _best_feeder(kinds: Iterable[Kind]) -> Kind | None:
    """The prefill kind that has most prompts per second of a GPU."""
    return max(kinds, key=lambda kind: kind.ratings["prefill"].estimate / kind.gpus, default=None)


def rate_alone(scenario: SearchScenario, task: AloneTask) -> list[float]:
    """Requests per second of one engine of a kind, by level. Empty if no limit is on its part of a request."""
    found: dict[tuple[tuple[str, float], ...], float] = {}
    rates: list[float] = []
    fleet = as_scenario(scenario, _fleet(scenario, task), task.quantization)
    setup = set_up(fleet)
    for slo in task.levels:
        limits = tuple((each.name, each.seconds) for each in slo.on_run() if each.metric in _METRICS[task.part])
        if not limits:
            return []
        if limits not in found:
            near = nearby(_BUSY * task.together * task.kind.ratings[task.part].estimate)
            alone = _prompts_only(fleet) if task.part == "prefill" else fleet
            load = Load(alone.replace(slo=SloSpec(**dict(limits))))
            requests = max(_FEWEST, round(near * scenario.search.seconds / 2))
            found[limits] = largest_rate(setup, load, requests=requests, near=near).rate / task.together
        rates.append(found[limits])
    return rates


def _fleet(scenario: SearchScenario, task: AloneTask) -> dict[str, Any]:
    """The engines, and before decode engines enough others for their prompts."""
    spec, kind = scenario.search, task.kind
    fleet: dict[str, Any] = {"pools": kind.times(task.together), "router": "least-outstanding"}
    if task.part == "prefill":
        fleet["pools"] = [{**pool, "role": "serve"} for pool in fleet["pools"]]
    else:
        assert task.feeder is not None
        needed = task.together * kind.ratings["decode"].estimate / task.feeder.ratings["prefill"].estimate
        fleet["pools"] = [*task.feeder.times(max(1, ceil(_PLENTY * needed))), *fleet["pools"]]
        fleet["transfer"] = spec.transfer.model_dump(exclude_unset=True)
    if kind.micro_batches:
        fleet["afd"] = spec.units(task.together, kind.micro_batches)
    if spec.topology is not None:
        fleet["topology"] = spec.topology.model_dump(exclude_unset=True)
    return fleet


def _prompts_only(scenario: Scenario) -> Scenario:
    mix = scenario.workload.model_dump(exclude_unset=True)
    mix["mix"] = [{**each, "output": 1} if each.get("output") is not None else each for each in mix["mix"]]
    return scenario.replace(workload=mix)
