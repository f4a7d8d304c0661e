"""Scenarios: one file that holds everything a run depends on."""

from typing import TYPE_CHECKING

from steelyard.lazy import lazily
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
from steelyard.scenario.model import FileRouting, ModelRef, RoutingSpec, UniformRouting, ZipfRouting
from steelyard.scenario.scenario import CostSpec, Scenario
from steelyard.scenario.sessions import PrefixSpec, SessionSpec, StageSpec
from steelyard.scenario.slo import RunLimit, SloSpec
from steelyard.scenario.speculation import DraftMethod, SpeculativeSpec
from steelyard.scenario.tiers import TierSpec
from steelyard.scenario.topology import TopologySpec
from steelyard.scenario.workload import (
    AcceptSpec,
    ChoicePriority,
    FixedPriority,
    MixSpec,
    PrioritySpec,
    TraceSpec,
    WorkloadSpec,
)

if TYPE_CHECKING:
    from steelyard.scenario.posttrain import PosttrainScenario
    from steelyard.scenario.posttrain_loading import load_posttrain, posttrain_from_dict, posttrain_schema

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
    "FileRouting",
    "FixedPriority",
    "FixedSeconds",
    "FixedTokens",
    "FleetSpec",
    "GammaArrivals",
    "LinkSpec",
    "Lognormal",
    "MixSpec",
    "ModelRef",
    "PoissonArrivals",
    "PoolSpec",
    "PosttrainScenario",
    "PrefixSpec",
    "PrioritySpec",
    "Role",
    "RouterName",
    "RoutingSpec",
    "RunLimit",
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
    "UniformRouting",
    "UniformSeconds",
    "UniformTokens",
    "VaryingArrivals",
    "Wave",
    "WorkloadSpec",
    "ZipfRouting",
    "ZipfTokens",
    "json_schema",
    "load_posttrain",
    "load_scenario",
    "posttrain_from_dict",
    "posttrain_schema",
    "scenario_from_dict",
]

__getattr__ = lazily(
    __name__,
    {
        **dict.fromkeys(
            ("load_posttrain", "posttrain_from_dict", "posttrain_schema"), "steelyard.scenario.posttrain_loading"
        ),
        "PosttrainScenario": "steelyard.scenario.posttrain",
    },
)
