"""Steelyard weighs an LLM serving fleet before it is built.

from steelyard import Scenario, load_scenario, simulate
result = simulate(load_scenario("scenario.yaml"))
print(result.summary["ttft"]["p95"])
"""

from steelyard.errors import UserError
from steelyard.scenario import Scenario, load_scenario, scenario_from_dict
from steelyard.sim import Result, simulate

__all__ = ["Result", "Scenario", "UserError", "load_scenario", "scenario_from_dict", "simulate"]
