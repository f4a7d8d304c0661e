"""Kinds of engines and units that fleets are made of: every combination of a role's choices that can work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, Literal, NamedTuple

from steelyard.errors import NoRoom, UserError
from steelyard.scenario import Scenario, scenario_from_dict
from steelyard.scenario.search import PoolChoices, SearchScenario
from steelyard.sim.setup import FleetSetup, set_up

Pool = dict[str, Any]
Fate = Literal["works", "no room", "refused"]
"""What becomes of a combination. It is refused if degrees do not divide, or if settings contradict each other."""
_NEAR = {"allgather_reducescatter": "", "deepep_low_latency": " ll", "deepep_high_throughput": " ht"}
MOST_KINDS = 20_000  # of a role; each is prepared, which takes some hundredths of a second


MARGIN = 1.3  # a simulated capacity may be above its estimate by this factor; chosen
MARGIN_ALONE = 1.15  # and above that of a few engines of its kinds alone; chosen


class Rating(NamedTuple):
    """What one engine can serve, in requests per second: an upper bound, an estimate, and what a few engines carried
    alone at each level of the limits (empty if they were not simulated)."""

    bound: float
    estimate: float
    alone: tuple[float, ...] = ()

    def likely(self, level: int) -> float:
        """What it should carry in a fleet."""
        return self.alone[level] if self.alone else self.estimate

    def at_best(self, level: int) -> float:
        """What it may carry in a fleet, with a margin."""
        return self.alone[level] * MARGIN_ALONE if self.alone else self.estimate * MARGIN


Ratings = Mapping[str, Rating]
"""By part of a request."""


@dataclass(frozen=True)
class Kind:
    """One engine or unit: its pools with one engine or unit each, and what it takes."""

    role: str  # serve, prefill, decode or unit
    name: str
    pools: tuple[Pool, ...]
    micro_batches: int
    gpus: int
    usd_per_hour: float
    watts: float
    ratings: Ratings

    def times(self, count: int) -> list[Pool]:
        """The pools of ``count`` of them."""
        return [{**pool, "replicas": pool["replicas"] * count} for pool in self.pools]


Key = tuple[str, str | None]  # a role and a quantization


@dataclass
class Kinds:
    """Those of a role that work, and how many do not."""

    role: str
    found: list[Kind] = field(default_factory=list)
    sizes: Counter[tuple[Fate, int]] = field(default_factory=Counter)  # all combinations, by fate and GPUs

    def add(self, made: Kind | tuple[Fate, int]) -> None:
        """Count a combination, and keep it if it works."""
        if isinstance(made, Kind):
            self.found.append(made)
            self.sizes["works", made.gpus] += 1
        else:
            self.sizes[made] += 1


def recipes(scenario: SearchScenario, role: str, quantization: str | None) -> Iterator[KindRecipe]:
    """All combinations of a role's choices. Units are made of attention and ffn choices together."""
    if role == "unit":
        for pools, micro in _units(scenario):
            yield KindRecipe(role, pools, micro, quantization)
        return
    for pool in _alone(scenario, role):
        yield KindRecipe(role, pool, 0, quantization)


@dataclass(frozen=True)
class KindRecipe:
    """A combination of choices, which may not work."""

    role: str
    pools: tuple[Pool, ...]
    micro_batches: int
    quantization: str | None

    def made(self, scenario: SearchScenario, rate: Callable[[FleetSetup], Ratings]) -> Kind | tuple[Fate, int]:
        """The kind with its ratings; or why there is none, and its GPUs.

        Its tables are not kept: they take hundreds of megabytes if there are hundreds of kinds.
        """
        spec = scenario.search
        fleet: dict[str, Any] = {"pools": [_on_its_own(pool) for pool in self.pools]}
        if self.micro_batches:
            fleet["afd"] = spec.units(1, self.micro_batches)
        if spec.topology is not None:
            fleet["topology"] = spec.topology
        try:
            setup = set_up(as_scenario(scenario, fleet, self.quantization))
        except UserError as error:
            return "no room" if isinstance(error, NoRoom) else "refused", _gpus(self.pools)
        unit = self.role == "unit"
        return Kind(
            self.role,
            _unit_name(self.pools, self.micro_batches) if unit else _name(scenario, self.role, self.pools[0]),
            self.pools,
            self.micro_batches,
            setup.gpus,
            usd_per_hour=sum(each.gpus * each.price_per_hour for each in setup.pools),
            watts=float(sum(each.gpus * each.gpu.tdp_watts for each in setup.pools)),
            ratings=rate(setup),
        )


def as_scenario(scenario: SearchScenario, fleet: dict[str, Any], quantization: str | None = None) -> Scenario:
    """The serving scenario of a fleet."""
    model = scenario.model.model_dump(exclude_unset=True)
    if quantization is not None:
        model["quantization"] = quantization
    written = {
        "name": scenario.name,
        "model": model,
        "fleet": fleet,
        "engine": scenario.engine.model_dump(exclude_unset=True),
        "workload": scenario.workload.model_dump(exclude_unset=True),
        "slo": scenario.slo.model_dump(exclude_unset=True),
        "cost": scenario.cost.model_dump(exclude_unset=True),
        "seed": scenario.seed,
    }
    return scenario_from_dict(written, scenario.source, base_dir=scenario.base_dir)


def count_kinds(scenario: SearchScenario, role: str) -> int:
    """How many combinations there are, without looking at them."""
    spec = scenario.search
    if role == "unit":
        assert spec.attention is not None and spec.ffn is not None
        return _count(spec.attention) * _count(spec.ffn) * len(spec.micro_batches)
    choices = spec.of(role)
    assert choices is not None
    return _count(choices)


def _count(choices: PoolChoices) -> int:
    return prod(len(values) for values in _axes(choices).values())


def _axes(choices: PoolChoices) -> dict[str, tuple[Any, ...]]:
    own = {
        "gpu": choices.gpu,
        "tp": choices.tp,
        "pp": choices.pp,
        "dp": choices.dp,
        "expert_parallel": choices.expert_parallel,
        "redundant_experts": choices.redundant_experts,
        "all2all": choices.all2all,
        "instances": choices.instances,
    }
    engine = {
        f"engine.{key}": tuple(value) if isinstance(value, list) else (value,) for key, value in choices.engine.items()
    }
    return {**own, **engine}


def _alone(scenario: SearchScenario, role: str) -> Iterator[tuple[Pool]]:
    choices = scenario.search.of(role)
    assert choices is not None
    for pool in _combined(choices, role):
        yield (pool,)


def _units(scenario: SearchScenario) -> Iterator[tuple[tuple[Pool, Pool], int]]:
    attention, ffn = scenario.search.attention, scenario.search.ffn
    assert attention is not None and ffn is not None
    for near, behind, micro in product(
        list(_combined(attention, "attention")), list(_combined(ffn, "ffn")), scenario.search.micro_batches
    ):
        yield (near, behind), micro


def _combined(choices: PoolChoices, role: str) -> Iterator[Pool]:
    axes = _axes(choices)
    for values in product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        pool = {key: value for key, value in chosen.items() if not key.startswith("engine.")}
        engine = {key.removeprefix("engine."): value for key, value in chosen.items() if key.startswith("engine.")}
        pool |= {"role": role, "replicas": pool.pop("instances")}
        if role not in ("attention", "ffn"):
            pool["replicas"] = 1
        if pool["dp"] == 1:  # no other rank to send tokens to: all backends are the same engine
            if pool["all2all"] != choices.all2all[0]:
                continue
            pool["all2all"] = "allgather_reducescatter"
        if choices.gpus is not None and pool["tp"] * pool["pp"] * pool["dp"] not in choices.gpus:
            continue
        if choices.price_per_hour is not None:
            pool["price_per_hour"] = choices.price_per_hour
        if engine:
            pool["engine"] = engine
        yield pool


def _gpus(pools: tuple[Pool, ...]) -> int:
    return sum(prod(int(pool[key]) for key in ("replicas", "tp", "pp", "dp")) for pool in pools)


def _on_its_own(pool: Pool) -> Pool:
    """A prefill or decode engine as one that does both, since a fleet needs both."""
    return {**pool, "role": "serve"} if pool["role"] in ("prefill", "decode") else pool


def _name(scenario: SearchScenario, role: str, pool: Pool) -> str:
    tp, pp, dp = pool["tp"], pool["pp"], pool["dp"]
    parts = [f"TP{tp}"] * (tp > 1) + [f"PP{pp}"] * (pp > 1) + [f"DP{dp}"] * (dp > 1)
    if pool["expert_parallel"]:
        parts.append(f"EP{tp * dp}{_NEAR[pool['all2all']]}")
    choices = scenario.search.of(role)
    assert choices is not None
    if len(choices.gpu) > 1:
        parts.insert(0, pool["gpu"])
    if len(choices.redundant_experts) > 1:
        parts.append(f"+{pool['redundant_experts']} experts")
    told = [f"{key} {_short(pool['engine'][key])}" for key, value in choices.engine.items() if isinstance(value, list)]
    return ", ".join([" ".join(parts) or "TP1", *told])


def _unit_name(pools: tuple[Pool, ...], micro: int) -> str:
    near, behind = pools
    tp = "" if near["tp"] == 1 else f"TP{near['tp']} "
    gpus = f" {near['gpu']}" if near["gpu"] != behind["gpu"] else ""
    other = f" {behind['gpu']}" if near["gpu"] != behind["gpu"] else ""
    seats = near.get("engine", {}).get("max_num_seqs")
    told = f", {seats} seats" if seats else ""
    return f"{near['replicas']} x {tp}attention{gpus} : {behind['replicas']} FFN{other}, {micro} micro-batches{told}"


def _short(value: Any) -> str:
    return value.get("method", "on") if isinstance(value, dict) else str(value)
