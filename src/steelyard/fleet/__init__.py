"""Many engines, and the drivers that run a workload through them."""

from steelyard.fleet.desk import Desk, Models
from steelyard.fleet.fleet import run_fleet

__all__ = ["Desk", "Models", "run_fleet"]
