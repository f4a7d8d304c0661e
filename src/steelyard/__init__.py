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
    from steelyard.scenario.search import SearchScenario
    from steelyard.scenario.search_loading import load_search
    from steelyard.search.search import SearchResult, find_fleets
    from steelyard.search.sweep_result import SweepResult, sweep
    from steelyard.sim import Prepared, Result, Summary, draw_workload, fleet_of, prepare, set_up, simulate
    from steelyard.version import __version__

__all__ = [
    "PosttrainScenario",
    "Prepared",
    "Result",
    "Scenario",
    "SearchResult",
    "SearchScenario",
    "Summary",
    "SweepResult",
    "UserError",
    "__version__",
    "draw_workload",
    "find_fleets",
    "fleet_of",
    "load_posttrain",
    "load_scenario",
    "load_search",
    "posttrain_from_dict",
    "prepare",
    "scenario_from_dict",
    "set_up",
    "simulate",
    "sweep",
]

__getattr__ = lazily(
    __name__,
    {
        **dict.fromkeys(
            ("Prepared", "Result", "Summary", "draw_workload", "fleet_of", "prepare", "set_up", "simulate"),
            "steelyard.sim",
        ),
        **dict.fromkeys(("Scenario", "load_scenario", "scenario_from_dict"), "steelyard.scenario"),
        **dict.fromkeys(("load_posttrain", "posttrain_from_dict"), "steelyard.scenario.posttrain_loading"),
        "PosttrainScenario": "steelyard.scenario.posttrain",
        "SearchScenario": "steelyard.scenario.search",
        "load_search": "steelyard.scenario.search_loading",
        **dict.fromkeys(("SearchResult", "find_fleets"), "steelyard.search.search"),
        **dict.fromkeys(("SweepResult", "sweep"), "steelyard.search.sweep_result"),
        "__version__": "steelyard.version",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
