"""How long and how much: operators to seconds and bytes, compiled to tables."""

from steelyard.cost.bundle import Bundle, shipped_bundle
from steelyard.cost.compiled import CompiledCost, Stretches, compile_cost
from steelyard.cost.graphs import GraphPlan, default_capture_sizes, graph_plan
from steelyard.cost.measured import Measured
from steelyard.cost.memory import MemoryPlan, plan_memory
from steelyard.cost.roofline import Roofline
from steelyard.cost.source import PROVENANCES, CostSource, FirstOf, Provenance
from steelyard.cost.work import Work, work_of

__all__ = [
    "PROVENANCES",
    "Bundle",
    "CompiledCost",
    "CostSource",
    "FirstOf",
    "GraphPlan",
    "Measured",
    "MemoryPlan",
    "Provenance",
    "Roofline",
    "Stretches",
    "Work",
    "compile_cost",
    "default_capture_sizes",
    "graph_plan",
    "plan_memory",
    "shipped_bundle",
    "work_of",
]
