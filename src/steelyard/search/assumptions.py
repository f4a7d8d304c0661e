"""What an answer rests on: each assumption of a scenario, moved down and up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from steelyard.cost import HostTerms
from steelyard.errors import UserError
from steelyard.scenario import ConstantArrivals, GammaArrivals, PoissonArrivals, Scenario, TokensSpec, WorkloadSpec
from steelyard.scenario.arrivals import ArrivalsSpec
from steelyard.scenario.distributions import EmpiricalTokens, FixedTokens, Lognormal, UniformTokens, ZipfTokens
from steelyard.sim.intervals import perturbations
from steelyard.sim.setup import FleetSetup

_SHARE = 0.2  # by which lengths, limits and shared prefixes are moved
_MEMORY = 0.05  # by which the share of GPU memory is moved
_MOST_MEMORY = 0.99
_SCALED: Mapping[type, tuple[str, ...]] = {
    FixedTokens: ("tokens",),
    UniformTokens: ("min", "max"),
    ZipfTokens: ("min", "max"),
    Lognormal: ("median", "mean", "p95", "min", "max"),
}


@dataclass(frozen=True)
class Variant:
    """A scenario with one assumption moved, and how far in words."""

    said: str
    scenario: Scenario
    factors: Mapping[str, float] = field(default_factory=dict)  # on times of operator families
    host: HostTerms | None = None


@dataclass(frozen=True)
class Assumption:
    """One assumption and its moves, the lower first. There is only one where the other makes no sense."""

    name: str
    moves: tuple[Variant, ...]


def assumptions(scenario: Scenario, setup: FleetSetup) -> Iterator[Assumption]:
    """All that can be moved in this scenario."""
    yield from _costs(scenario, setup)
    yield from _lengths(scenario)
    yield from _burstiness(scenario)
    yield from _sharing(scenario)
    yield from _limits(scenario)
    yield from _memory(scenario)


def _costs(scenario: Scenario, setup: FleetSetup) -> Iterator[Assumption]:
    """Each cost by its stated error. Lower costs come first."""
    for change in perturbations(scenario, seeds=0):
        if change.host is not None:
            own, more = asdict(setup.host), asdict(change.host)
            less = replace(setup.host, **{name: own[name] ** 2 / more[name] if more[name] else 0.0 for name in own})
            share = max(more[name] / own[name] - 1 for name in own if own[name])
            moves = Variant(f"{-share:+.0%}", scenario, host=less), Variant(f"{share:+.0%}", scenario, host=change.host)
            yield Assumption("host times", moves)
            continue
        inverse = {name: 1 / factor for name, factor in change.factors.items()}
        share = max(change.factors.values()) - 1
        lower, higher = f"{-share:+.0%}", f"{share:+.0%}"
        name = "step times" if change.name == "step" else f"{change.name} times"
        yield Assumption(name, (Variant(lower, scenario, inverse), Variant(higher, scenario, change.factors)))


def _lengths(scenario: Scenario) -> Iterator[Assumption]:
    for name in ("prompt", "output"):

        def scaled(spec: WorkloadSpec, each: dict[str, Any], factor: float, name: str = name) -> bool:
            tokens = spec.prompt if name == "prompt" else spec.output
            longer = None if tokens is None else _times(tokens, factor)
            if longer is not None:
                each[name] = longer
            return longer is not None

        yield from _by_share(f"{name} lengths", scenario, scaled)


def _by_share(
    name: str, scenario: Scenario, change: Callable[[WorkloadSpec, dict[str, Any], float], bool]
) -> Iterator[Assumption]:
    """An assumption of workloads, moved by a share of it; none if no workload has it."""
    moves = []
    for factor in (1 - _SHARE, 1 + _SHARE):
        written = scenario.workload.model_dump(exclude_unset=True)
        changed = 0
        for spec, each in zip(scenario.workload.mix, written["mix"], strict=True):
            changed += change(spec, each, factor)
        if changed:
            moves += _moved(f"{factor - 1:+.0%}", scenario, workload=written)
    if moves:
        yield Assumption(name, tuple(moves))


def _times(tokens: TokensSpec, factor: float) -> dict[str, Any] | None:
    """A distribution of lengths, all of them longer; None for lengths from a file."""
    written = tokens.model_dump(exclude_unset=True)
    if isinstance(tokens, EmpiricalTokens):
        if tokens.file is not None:
            return None
        if tokens.values is not None:
            return {**written, "values": [_whole(each * factor) for each in tokens.values]}
        bins = [(_whole(low * factor), _whole(high * factor), weight) for low, high, weight in tokens.histogram or ()]
        return {**written, "histogram": bins}
    whole = not isinstance(tokens, Lognormal)
    for key in _SCALED[type(tokens)]:
        if written.get(key) is not None:
            written[key] = _whole(written[key] * factor) if whole else written[key] * factor
    return written


def _whole(tokens: float) -> int:
    return max(1, round(tokens))


def _burstiness(scenario: Scenario) -> Iterator[Assumption]:
    moves = []
    for factor in (0.5, 2.0):
        mix = scenario.workload
        written = mix.model_dump(exclude_unset=True)
        found = [(mix.arrivals, written), *zip((spec.arrivals for spec in mix.mix), written["mix"], strict=True)]
        said = ""
        for arrivals, place in found:
            changed = _burstier(arrivals, factor)
            if changed is not None:
                place["arrivals"] = changed
                said = f"cv {changed['cv']:g}"
        if said:
            moves += _moved(said, scenario, workload=written)
    if moves:
        yield Assumption("burstiness of arrivals", tuple(moves))


def _burstier(arrivals: ArrivalsSpec | None, factor: float) -> dict[str, Any] | None:
    if isinstance(arrivals, PoissonArrivals):
        return {"kind": "gamma", "rate": arrivals.rate, "cv": factor}
    if isinstance(arrivals, GammaArrivals):
        return {"kind": "gamma", "rate": arrivals.rate, "cv": arrivals.cv * factor}
    if isinstance(arrivals, ConstantArrivals) and factor > 1:
        return {"kind": "gamma", "rate": arrivals.rate, "cv": 1.0}
    return None


def _sharing(scenario: Scenario) -> Iterator[Assumption]:
    """Prompts whose shared prefix is shorter or longer, at the same length in all; and no prefix-cache hits at all."""

    def scaled(spec: WorkloadSpec, each: dict[str, Any], factor: float) -> bool:
        if spec.prefix is not None:
            each["prefix"] = {
                **spec.prefix.model_dump(exclude_unset=True),
                "tokens": _whole(spec.prefix.tokens * factor),
            }
        return spec.prefix is not None

    yield from _by_share("shared prefix", scenario, scaled)
    shares = any(spec.prefix or spec.session or spec.plan for spec in scenario.workload.mix)
    held = any(stage.kv == "held" for spec in scenario.workload.mix for stage in spec.plan or ())
    if shares and not held and all(scenario.engine_of(pool).enable_prefix_caching for pool in scenario.fleet.pools):
        moves = _with_engine("none", scenario, "enable_prefix_caching", False)
        if moves:
            yield Assumption("prefix-cache hits", tuple(moves))


def _limits(scenario: Scenario) -> Iterator[Assumption]:
    written = scenario.slo.model_dump(exclude_unset=True)
    for limit in scenario.slo.on_run():
        moves = []
        for factor in (1 - _SHARE, 1 + _SHARE):
            moves += _moved(f"{factor - 1:+.0%}", scenario, slo={**written, limit.name: limit.seconds * factor})
        yield Assumption(f"limit {limit.name}", tuple(moves))


def _memory(scenario: Scenario) -> Iterator[Assumption]:
    own = scenario.engine.gpu_memory_utilization
    values = [value for value in (own - _MEMORY, min(_MOST_MEMORY, own + _MEMORY)) if 0 < value != own]
    moves = [
        each for value in values for each in _with_engine(f"{value:.2f}", scenario, "gpu_memory_utilization", value)
    ]
    yield Assumption("gpu_memory_utilization", tuple(moves))


def _with_engine(said: str, scenario: Scenario, key: str, value: object) -> list[Variant]:
    """A setting of the scenario's engines, and of those pools that have their own."""
    engine = {**scenario.engine.model_dump(exclude_unset=True), key: value}
    fleet = scenario.fleet.model_dump(exclude_unset=True)
    for pool in fleet["pools"]:
        if key in (pool.get("engine") or {}):
            pool["engine"][key] = value
    return _moved(said, scenario, engine=engine, fleet=fleet)


def _moved(said: str, scenario: Scenario, **changes: Any) -> list[Variant]:
    """The scenario with some keys replaced; nothing if that makes no sense, such as cache tiers without a cache."""
    try:
        return [Variant(said, scenario.replace(**changes))]
    except UserError:
        return []
