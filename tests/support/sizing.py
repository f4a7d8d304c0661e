"""Small serving scenarios for tests of sizing."""

from __future__ import annotations

from typing import Any

from steelyard.scenario import Scenario, scenario_from_dict

SMALL: dict[str, Any] = {
    "name": "small",
    "model": "llama-3.1-8b",
    "fleet": {"gpu": "h100", "replicas": 1},
    "cost": {"source": "analytic"},
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 8},
        "requests": 150,
        "prompt": {"kind": "lognormal", "median": 300, "p95": 1200},
        "output": {"kind": "uniform", "min": 10, "max": 60},
    },
    "slo": {"ttft_p95": 0.3, "tpot_p95": 0.03},
}
APART: dict[str, Any] = {
    **SMALL,
    "fleet": {"pools": [{"role": "prefill", "gpu": "h100", "replicas": 2}, {"role": "decode", "gpu": "h100"}]},
}


def small(**more: Any) -> Scenario:
    """A small scenario with some keys replaced."""
    return scenario_from_dict({**SMALL, **more}, "small.yaml")


def small_load(**more: Any) -> Scenario:
    """The same, with some keys of its workload replaced."""
    return small(workload={**SMALL["workload"], **more})
