"""What-if: a scenario with the settings of sliders. Which sliders there are depends on the fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from steelyard.errors import UserError
from steelyard.scenario import PoolSpec, Scenario
from steelyard.search.loads import Load

RATES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # of the curves, as shares of the scenario's own rate; chosen
_DEGREES = (1, 2, 4, 8)
_MOST_REPLICAS = 64  # on a slider; chosen, since larger fleets take longer than a second
_MOST_SEATS = 4096


@dataclass(frozen=True)
class Knobs:
    """The settings of all sliders. Those that a fleet does not have are None and leave it as it is."""

    rate: float
    replicas: int | None = None
    prefill: int | None = None  # replicas that only compute prompts; 0: all do both
    tp: int | None = None
    seats: int | None = None  # engine.max_num_seqs

    @classmethod
    def of(cls, scenario: Scenario) -> Knobs:
        """The scenario's own settings."""
        rate, seats = Load(scenario).own, _seats(scenario)
        pools = scenario.fleet.pools
        if scenario.dynamics or any(each.autoscale for each in pools):
            return cls(rate, seats=seats)
        if [each.role for each in pools] == ["serve"]:
            return cls(rate, pools[0].replicas, 0, pools[0].tp, seats)
        if sorted(each.role for each in pools) == ["decode", "prefill"]:
            prefill, decode = sorted(pools, key=lambda each: each.role == "decode")
            tp = prefill.tp if prefill.tp == decode.tp else None
            return cls(rate, prefill.replicas + decode.replicas, prefill.replicas, tp, seats)
        return cls(rate, seats=seats)

    @classmethod
    def read(cls, given: dict[str, Any], scenario: Scenario) -> Knobs:
        """Settings from the page. Raises UserError for those that the fleet does not have."""
        own = cls.of(scenario)
        rate = _number(given, "rate", own.rate, 1e-6, 1e6)
        assert rate is not None
        replicas = _whole(given, "replicas", own.replicas, 1, _MOST_REPLICAS)
        tp = _whole(given, "tp", own.tp, 1, max(_DEGREES))
        seats = _whole(given, "seats", own.seats, 1, _MOST_SEATS)
        prefill = _whole(given, "prefill", own.prefill, 0, _MOST_REPLICAS)
        if prefill is not None and replicas is not None and prefill and prefill >= replicas:
            raise UserError(f"prefill: {prefill} of {replicas} replicas leaves none to decode")
        return cls(rate, replicas, prefill, tp, seats)

    def fleet_key(self) -> tuple[int | None, ...]:
        """All but the rate: what engines depend on."""
        return self.replicas, self.prefill, self.tp, self.seats

    def to_dict(self) -> dict[str, float | None]:
        """Ready for JSON."""
        return {
            "rate": self.rate,
            "replicas": self.replicas,
            "prefill": self.prefill,
            "tp": self.tp,
            "seats": self.seats,
        }


def ranges(scenario: Scenario) -> dict[str, Any]:
    """What each slider goes through, for the sliders that this fleet has."""
    own = Knobs.of(scenario)
    found: dict[str, Any] = {"rate": [own.rate * RATES[0], own.rate * RATES[-1]], "seats": _powers(own.seats or 256)}
    if own.replicas is not None:
        found["replicas"] = [1, max(own.replicas, min(_MOST_REPLICAS, max(16, 2 * own.replicas)))]
        found["together"] = _can_be_together(scenario)
    if own.tp is not None:
        found["tp"] = sorted({*_DEGREES, own.tp})
    return found


def reshaped(scenario: Scenario, knobs: Knobs) -> Scenario:
    """The scenario with the settings of sliders, but for the rate."""
    own = Knobs.of(scenario)
    changes: dict[str, Any] = {}
    written = scenario.model_dump(exclude_unset=True)
    if knobs.seats != own.seats:
        changes["engine"] = {**written.get("engine", {}), "max_num_seqs": knobs.seats}
    if knobs.fleet_key()[:3] != own.fleet_key()[:3] or (knobs.seats != own.seats and _own_seats(scenario)):
        changes["fleet"] = _fleet(scenario, written["fleet"], knobs, own)
    return scenario.replace(**changes) if changes else scenario


def _fleet(scenario: Scenario, written: dict[str, Any], knobs: Knobs, own: Knobs) -> dict[str, Any]:
    pools = [dict(each) for each in written["pools"]]
    if knobs.replicas is not None and knobs.prefill is not None:
        by_role = {each.role: place for place, each in enumerate(scenario.fleet.pools)}
        first, last = pools[by_role.get("prefill", 0)], pools[by_role.get("decode", 0)]
        if knobs.prefill:
            pools = [_pool(first, "prefill", knobs.prefill), _pool(last, "decode", knobs.replicas - knobs.prefill)]
        else:
            if own.prefill and not _can_be_together(scenario):
                raise UserError("prefill: these pools differ, so their work cannot be done by one kind of engine")
            pools = [_pool(first, "serve", knobs.replicas)]
    for each in pools:
        if knobs.tp is not None:
            each["tp"] = knobs.tp
        if knobs.seats != own.seats and "max_num_seqs" in each.get("engine", {}):
            each["engine"] = {**each["engine"], "max_num_seqs": knobs.seats}
    fleet = {**written, "pools": pools}
    if not knobs.prefill:
        for key in ("transfer", "decode_router"):
            fleet.pop(key, None)
    return fleet


def _pool(like: dict[str, Any], role: str, replicas: int) -> dict[str, Any]:
    kept = {key: value for key, value in like.items() if key not in ("name", "weight")}
    return {**kept, "role": role, "replicas": replicas}


def _can_be_together(scenario: Scenario) -> bool:
    """Whether prefill and decode engines are of one kind, or the fleet has but one."""
    kinds = {_kind(each) for each in scenario.fleet.pools}
    return len(kinds) == 1


def _kind(pool: PoolSpec) -> str:
    return repr(pool.model_copy(update={"name": "", "role": "serve", "replicas": 1, "weight": None}))


def _seats(scenario: Scenario) -> int | None:
    """The batch limit, if all engines have the same."""
    found = {scenario.engine_of(each).max_num_seqs for each in scenario.fleet.pools}
    return found.pop() if len(found) == 1 else None


def _own_seats(scenario: Scenario) -> bool:
    return any(each.engine is not None for each in scenario.fleet.pools)


def _powers(own: int) -> list[int]:
    return sorted({*(1 << power for power in range(3, 11)), own})


def _number(given: dict[str, Any], key: str, own: float | None, low: float, high: float) -> float | None:
    value = given.get(key, own)
    if value is None or own is None:
        return own
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise UserError(f"{key}: must be a number from {low:g} to {high:g} (found {str(value)[:40]!r})")
    return float(value)


def _whole(given: dict[str, Any], key: str, own: int | None, low: int, high: int) -> int | None:
    value = _number(given, key, own, low, max(high, own or 0))
    if value is not None and value != int(value):
        raise UserError(f"{key}: must be a whole number (found {value:g})")
    return None if value is None else int(value)
