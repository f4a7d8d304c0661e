"""Steelyard weighs an LLM serving fleet before it is built.

>>> from steelyard import load_scenario, simulate
>>> result = simulate(load_scenario("scenario.yaml"))
>>> print(result.summary.ttft.p95)

Names are imported when they are first used, so that `import steelyard` and the command line cost next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from steelyard.errors import UserError

if TYPE_CHECKING:
    from steelyard.scenario import Scenario, load_posttrain, load_scenario, posttrain_from_dict, scenario_from_dict
    from steelyard.scenario.posttrain import PosttrainScenario
    from steelyard.sim import Result, simulate

__version__ = "0.1.0"

__all__ = [
    "PosttrainScenario",
    "Result",
    "Scenario",
    "UserError",
    "__version__",
    "load_posttrain",
    "load_scenario",
    "posttrain_from_dict",
    "scenario_from_dict",
    "simulate",
]

_HOME = {
    **dict.fromkeys(("Result", "simulate"), "steelyard.sim"),
    **dict.fromkeys(("Scenario", "load_scenario", "scenario_from_dict"), "steelyard.scenario"),
    **dict.fromkeys(("load_posttrain", "posttrain_from_dict"), "steelyard.scenario"),
    "PosttrainScenario": "steelyard.scenario.posttrain",
}


def __getattr__(name: str) -> Any:
    """A public name on its first use (PEP 562); from then on it is an ordinary one."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOME[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
