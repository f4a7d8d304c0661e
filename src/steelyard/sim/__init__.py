"""From a scenario, or a prepared engine, to a result."""

from steelyard.sim.intervals import with_intervals
from steelyard.sim.prepared import Prepared, prepare
from steelyard.sim.result import Result
from steelyard.sim.run import draw_workload, simulate
from steelyard.sim.setup import FleetSetup, Setup, fleet_of, set_up
from steelyard.sim.summary import Summary

__all__ = [
    "FleetSetup",
    "Prepared",
    "Result",
    "Setup",
    "Summary",
    "draw_workload",
    "fleet_of",
    "prepare",
    "set_up",
    "simulate",
    "with_intervals",
]
