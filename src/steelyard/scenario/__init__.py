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
from steelyard.scenario.autoscale import AutoscaleSpec
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
from steelyard.scenario.dynamics import ChangeSpec, CrashSpec, LinkSpec, SlowSpec
from steelyard.scenario.engine import EngineSpec
from steelyard.scenario.fleet import FleetSpec, PoolSpec, Role, RouterName, TransferSpec
from steelyard.scenario.load import json_schema, load_scenario, scenario_from_dict
from steelyard.scenario.scenario import CostSpec, ModelRef, Scenario
from steelyard.scenario.slo import PercentileLimit, SloSpec
from steelyard.scenario.speculation import DraftMethod, SpeculativeSpec
from steelyard.scenario.tiers import TierSpec
from steelyard.scenario.topology import TopologySpec
from steelyard.scenario.workload import (
    AcceptSpec,
    ChoicePriority,
    FixedPriority,
    MixSpec,
    PrefixSpec,
    PrioritySpec,
    SessionSpec,
    StageSpec,
    TraceSpec,
    WorkloadSpec,
)

__all__ = [
    "AcceptSpec",
    "ArrivalsSpec",
    "AutoscaleSpec",
    "BurstArrivals",
    "ChangeSpec",
    "ChoicePriority",
    "ClosedArrivals",
    "ConstantArrivals",
    "CostSpec",
    "CrashSpec",
    "DraftMethod",
    "EmpiricalTokens",
    "EngineSpec",
    "ExponentialSeconds",
    "FixedPriority",
    "FixedSeconds",
    "FixedTokens",
    "FleetSpec",
    "GammaArrivals",
    "LinkSpec",
    "Lognormal",
    "MixSpec",
    "ModelRef",
    "PercentileLimit",
    "PoissonArrivals",
    "PoolSpec",
    "PrefixSpec",
    "PrioritySpec",
    "Role",
    "RouterName",
    "Scenario",
    "SecondsSpec",
    "SessionSpec",
    "SloSpec",
    "SlowSpec",
    "SpeculativeSpec",
    "StageSpec",
    "TierSpec",
    "TokensSpec",
    "TopologySpec",
    "TraceArrivals",
    "TraceSpec",
    "TransferSpec",
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
