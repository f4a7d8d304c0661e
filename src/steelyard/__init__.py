"""Steelyard weighs an LLM serving fleet before it is built.

>>> from steelyard import load_scenario, simulate
>>> result = simulate(load_scenario("scenario.yaml"))
>>> print(result.summary.ttft.p95)
"""

from typing import TYPE_CHECKING

from steelyard.errors import UserError
from steelyard.lazy import lazily

if TYPE_CHECKING:
    from steelyard.scenario import Scenario, load_scenario, scenario_from_dict
    from steelyard.scenario.posttrain import PosttrainScenario
    from steelyard.scenario.posttrain_loading import load_posttrain, posttrain_from_dict
    from steelyard.sim import Prepared, Result, draw_workload, fleet_of, prepare, set_up, simulate

__version__ = "0.1.0"

__all__ = [
    "PosttrainScenario",
    "Prepared",
    "Result",
    "Scenario",
    "UserError",
    "__version__",
    "draw_workload",
    "fleet_of",
    "load_posttrain",
    "load_scenario",
    "posttrain_from_dict",
    "prepare",
    "scenario_from_dict",
    "set_up",
    "simulate",
]

__getattr__ = lazily(
    __name__,
    {
        **dict.fromkeys(
            ("Prepared", "Result", "draw_workload", "fleet_of", "prepare", "set_up", "simulate"), "steelyard.sim"
        ),
        **dict.fromkeys(("Scenario", "load_scenario", "scenario_from_dict"), "steelyard.scenario"),
        **dict.fromkeys(("load_posttrain", "posttrain_from_dict"), "steelyard.scenario.posttrain_loading"),
        "PosttrainScenario": "steelyard.scenario.posttrain",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
