"""How long and how much: operators to seconds and bytes, compiled to tables."""

from steelyard.cost.bundle import Bundle, shipped_bundle
from steelyard.cost.compile import compile_cost, compile_stages
from steelyard.cost.compiled import CompiledCost, RankBatch, Stretches
from steelyard.cost.graphs import GraphPlan, default_capture_sizes, graph_plan
from steelyard.cost.host import HostTerms, read_terms
from steelyard.cost.measured import MeasuredSource
from steelyard.cost.memory import MemoryPlan, plan_memory
from steelyard.cost.roofline import Roofline
from steelyard.cost.source import PROVENANCES, CostSource, FirstOf, Provenance
from steelyard.cost.speculation import Draft, SpeculativeCost, compile_speculative, find_draft
from steelyard.cost.step import RESTED, StepTime
from steelyard.cost.work import Work, work_of

__all__ = [
    "PROVENANCES",
    "RESTED",
    "Bundle",
    "CompiledCost",
    "CostSource",
    "Draft",
    "FirstOf",
    "GraphPlan",
    "HostTerms",
    "MeasuredSource",
    "MemoryPlan",
    "Provenance",
    "RankBatch",
    "Roofline",
    "SpeculativeCost",
    "StepTime",
    "Stretches",
    "Work",
    "compile_cost",
    "compile_speculative",
    "compile_stages",
    "default_capture_sizes",
    "find_draft",
    "graph_plan",
    "plan_memory",
    "read_terms",
    "shipped_bundle",
    "work_of",
]
