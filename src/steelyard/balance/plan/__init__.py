"""Planners split GPUs between training and rollout, choose the training layout and the rollout replicas."""

from steelyard.balance.plan.buckets import ByLength, Frontier, Rollout
from steelyard.balance.plan.change import LengthsChanged, Payback, Trigger, Triggers
from steelyard.balance.plan.forecast import predicted
from steelyard.balance.plan.libra import libra
from steelyard.balance.plan.makespan import Classes, ReplicaModel, makespans
from steelyard.balance.plan.measured import Measured
from steelyard.balance.plan.plain import OneAtATime, ProportionalPlanner, Searching, Static
from steelyard.balance.plan.search import Search, StageFactors
from steelyard.balance.plan.simulated import CLEAR, Simulate, Simulated, oracle
from steelyard.balance.plan.world import Bucket, Mode, Plan, Planner, PlannerState, TrainOption, World

__all__ = [
    "CLEAR",
    "Bucket",
    "ByLength",
    "Classes",
    "Frontier",
    "LengthsChanged",
    "Measured",
    "Mode",
    "OneAtATime",
    "Payback",
    "Plan",
    "Planner",
    "PlannerState",
    "ProportionalPlanner",
    "ReplicaModel",
    "Rollout",
    "Search",
    "Searching",
    "Simulate",
    "Simulated",
    "StageFactors",
    "Static",
    "TrainOption",
    "Trigger",
    "Triggers",
    "World",
    "libra",
    "makespans",
    "oracle",
    "predicted",
]
