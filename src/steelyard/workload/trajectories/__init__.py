"""Agents at work: turns of generated tokens with a tool call after each, wherever they come from."""

from steelyard.workload.trajectories.batch import Batch
from steelyard.workload.trajectories.drift import Learning
from steelyard.workload.trajectories.read import read_trajectories
from steelyard.workload.trajectories.tasks import Trajectories, trajectories_of
from steelyard.workload.trajectories.write import write_trajectories

__all__ = [
    "Batch",
    "Learning",
    "Trajectories",
    "read_trajectories",
    "trajectories_of",
    "write_trajectories",
]
