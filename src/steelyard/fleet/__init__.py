"""Many engines: routers, and the driver that runs a workload through them."""

from steelyard.fleet.desk import Desk, Models
from steelyard.fleet.fleet import run_fleet
from steelyard.fleet.routers import Router, RouterSettings, make_router

__all__ = ["Desk", "Models", "Router", "RouterSettings", "make_router", "run_fleet"]
