"""Many engines, and the driver that runs a workload through them."""

from steelyard.fleet.desk import Desk, Models
from steelyard.fleet.fleet import run_fleet

__all__ = ["Desk", "Models", "run_fleet"]
