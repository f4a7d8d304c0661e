"""One serving engine: scheduler, paged KV cache with prefix caching, step loop."""

from steelyard.engine.content import BlockNames, Chain, extend
from steelyard.engine.engine import Engine
from steelyard.engine.limits import Limits
from steelyard.engine.log import BriefLog, EngineLog
from steelyard.engine.observer import StepObserver
from steelyard.engine.pipeline import Pipeline
from steelyard.engine.request import ABORTED, FINISHED, LOST, REJECTED, Request
from steelyard.engine.step_cost import StepCost

__all__ = [
    "ABORTED",
    "FINISHED",
    "LOST",
    "REJECTED",
    "BlockNames",
    "BriefLog",
    "Chain",
    "Engine",
    "EngineLog",
    "Limits",
    "Pipeline",
    "Request",
    "StepCost",
    "StepObserver",
    "extend",
]
