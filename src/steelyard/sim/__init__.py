"""Virtual time: from a scenario to its result."""

from steelyard.sim.intervals import with_intervals
from steelyard.sim.result import Result
from steelyard.sim.run import simulate
from steelyard.sim.setup import FleetSetup, Setup, set_up
from steelyard.sim.summary import Summary

__all__ = ["FleetSetup", "Result", "Setup", "Summary", "set_up", "simulate", "with_intervals"]
