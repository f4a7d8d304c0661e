"""Trajectories of agents: turns of generated tokens with a tool call after each, generated or read from files."""

from steelyard.workload.trajectories.batch import TrajectoryBatch
from steelyard.workload.trajectories.drift import Learning
from steelyard.workload.trajectories.read import read_trajectories
from steelyard.workload.trajectories.tasks import Trajectories, trajectories_of
from steelyard.workload.trajectories.write import write_trajectories

__all__ = [
    "Learning",
    "Trajectories",
    "TrajectoryBatch",
    "read_trajectories",
    "trajectories_of",
    "write_trajectories",
]
