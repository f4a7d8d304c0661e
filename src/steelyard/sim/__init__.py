"""Virtual time: from a scenario to its result."""

from steelyard.sim.result import Result
from steelyard.sim.setup import Setup, set_up
from steelyard.sim.run import simulate

__all__ = ["Result", "Setup", "set_up", "simulate"]
