"""Answers of `steelyard capacity`, in words and as JSON. The first line is the answer."""

from __future__ import annotations

from steelyard.scenario import Scenario
from steelyard.search.capacity import Capacity, FleetSize
from steelyard.words import plural, seconds

_APART = 0.02  # share by which a longer run may differ before the answer says so


def capacity_lines(found: Capacity, scenario: Scenario) -> list[str]:
    """The answer, what ends it, and how sure it is."""
    if not found.rate or found.found.outcome is None:
        return [f"no rate: even a single request at a time misses {found.binds}"]
    outcome = found.found.outcome
    low, high = found.interval or (found.rate, found.rate)
    tokens = found.rate * outcome.output_tokens
    first = (
        f"{found.rate:.3g} requests/s on {plural(found.gpus, 'GPU')} ({low:.3g} to {high:.3g} with 90 % certainty): "
        f"{tokens:,.0f} output tokens/s, {tokens / found.gpus:,.0f} per GPU"
    )
    lines = [first, f"binds: {_binds(found.binds)}; at this rate {_values(found, scenario)}"]
    if found.longer is not None and abs(found.longer / found.rate - 1) > _APART:
        lines.append(
            f"the scenario has too few requests for a steady answer: with four times as many it is {found.longer:.3g} "
            "requests/s"
        )
    if found.seeds:
        lines.append(f"other seeds: {', '.join(f'{rate:.3g}' for rate in found.seeds)}")
    if found.costs:
        changes = sorted(found.costs.items(), key=lambda each: each[1])
        told = ", ".join(f"{name} {rate / found.rate - 1:+.1%}" for name, rate in changes)
        lines.append(f"if a cost were higher by its stated error: {told}")
    return lines


def capacity_figures(found: Capacity) -> dict[str, object]:
    """All figures of the answer."""
    outcome = found.found.outcome
    return {
        "rate": found.rate,
        "output_tokens_per_s": 0.0 if outcome is None else found.rate * outcome.output_tokens,
        "gpus": found.gpus,
        "binds": found.binds,
        "interval": None if found.interval is None else list(found.interval),
        "values": {} if outcome is None else dict(outcome.values),
        "longer": found.longer,
        "seeds": list(found.seeds),
        "costs": found.costs,
        "simulations": found.found.tried,
    }


def fleet_lines(found: FleetSize, scenario: Scenario) -> list[str]:
    """The answer, and what one copy less would miss."""
    if not found.copies:
        return [f"no fleet of these proportions carries {found.rate:g} requests/s: {_binds(found.binds)} is missed"]
    pools = " + ".join(f"{count} x {name}" for name, count in found.pools.items())
    first = (
        f"{pools} ({plural(found.gpus, 'GPU')}, ${found.usd_per_hour:,.2f} an hour) carries {found.rate:g} requests/s"
    )
    less = f"one less misses {_binds(found.binds)}" if found.binds else "it is the smallest there is"
    return [first, less]


def fleet_figures(found: FleetSize) -> dict[str, object]:
    """All figures of the answer."""
    return {
        "rate": found.rate,
        "pools": found.pools,
        "gpus": found.gpus,
        "usd_per_hour": found.usd_per_hour,
        "binds": found.binds,
    }


def _binds(name: str) -> str:
    return "the queue, which grows" if name == "overload" else name


def _values(found: Capacity, scenario: Scenario) -> str:
    assert found.found.outcome is not None
    values = found.found.outcome.values
    told = (
        f"{limit.name} is {seconds(values[limit.name])} of {seconds(limit.seconds)}" for limit in scenario.slo.on_run()
    )
    return ", ".join(told)
