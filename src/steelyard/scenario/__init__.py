"""What a user writes: one file that says everything a run depends on."""

from steelyard.scenario.arrivals import (
    ArrivalsSpec,
    BurstArrivals,
    ClosedArrivals,
    ConstantArrivals,
    GammaArrivals,
    PoissonArrivals,
    TraceArrivals,
    VaryingArrivals,
    Wave,
)
from steelyard.scenario.distributions import (
    EmpiricalTokens,
    ExponentialSeconds,
    FixedSeconds,
    FixedTokens,
    Lognormal,
    SecondsSpec,
    TokensSpec,
    UniformSeconds,
    UniformTokens,
    ZipfTokens,
)
from steelyard.scenario.engine import EngineSpec
from steelyard.scenario.fleet import FleetSpec, PoolSpec, RouterName
from steelyard.scenario.load import json_schema, load_scenario, scenario_from_dict
from steelyard.scenario.scenario import CostSpec, ModelRef, Scenario
from steelyard.scenario.slo import PercentileLimit, SloSpec
from steelyard.scenario.workload import (
    AcceptSpec,
    ChoicePriority,
    FixedPriority,
    MixSpec,
    PrefixSpec,
    PrioritySpec,
    SessionSpec,
    TraceSpec,
    WorkloadSpec,
)

__all__ = [
    "AcceptSpec",
    "ArrivalsSpec",
    "BurstArrivals",
    "ChoicePriority",
    "ClosedArrivals",
    "ConstantArrivals",
    "CostSpec",
    "EmpiricalTokens",
    "EngineSpec",
    "ExponentialSeconds",
    "FixedPriority",
    "FixedSeconds",
    "FixedTokens",
    "FleetSpec",
    "GammaArrivals",
    "Lognormal",
    "MixSpec",
    "ModelRef",
    "PercentileLimit",
    "PoissonArrivals",
    "PoolSpec",
    "PrefixSpec",
    "PrioritySpec",
    "RouterName",
    "Scenario",
    "SecondsSpec",
    "SessionSpec",
    "SloSpec",
    "TokensSpec",
    "TraceArrivals",
    "TraceSpec",
    "UniformSeconds",
    "UniformTokens",
    "VaryingArrivals",
    "Wave",
    "WorkloadSpec",
    "ZipfTokens",
    "json_schema",
    "load_scenario",
    "scenario_from_dict",
]
