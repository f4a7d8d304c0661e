"""One serving engine: scheduler, paged KV cache with prefix caching, step loop."""

from steelyard.engine.content import BlockNames, Chain, extend
from steelyard.engine.engine import Engine, StepCost
from steelyard.engine.limits import Limits
from steelyard.engine.log import EngineLog, EngineRecord, expand
from steelyard.engine.request import ABORTED, FINISHED, REJECTED, Request

__all__ = [
    "ABORTED",
    "FINISHED",
    "REJECTED",
    "BlockNames",
    "Chain",
    "Engine",
    "EngineLog",
    "EngineRecord",
    "Limits",
    "Request",
    "StepCost",
    "expand",
    "extend",
]
