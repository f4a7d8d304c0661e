"""How long and how much: operators to seconds and bytes, compiled to tables."""

from steelyard.cost.compiled import CompiledCost, compile_cost
from steelyard.cost.graphs import GraphPlan, default_capture_sizes, graph_plan
from steelyard.cost.memory import MemoryPlan, plan_memory
from steelyard.cost.roofline import Roofline
from steelyard.cost.source import PROVENANCES, CostSource, Provenance
from steelyard.cost.work import Stretches, Work, work_of

__all__ = [
    "PROVENANCES",
    "CompiledCost",
    "CostSource",
    "GraphPlan",
    "MemoryPlan",
    "Provenance",
    "Roofline",
    "Stretches",
    "Work",
    "compile_cost",
    "default_capture_sizes",
    "graph_plan",
    "plan_memory",
    "work_of",
]
