"""Plain records that every room shares: trajectories and their turns, and the types of numeric columns.

This package imports nothing of ours but errors, so that the decision core can run without the simulator.
"""

from steelyard.records.columns import Floats, Ints
from steelyard.records.trajectory import OUTCOMES, Outcome, Trajectory, Turn

__all__ = ["OUTCOMES", "Floats", "Ints", "Outcome", "Trajectory", "Turn"]
