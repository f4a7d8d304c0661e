"""Charts of a run: `Result.plot`."""

from steelyard.sim.plots.plots import ResultPlots

__all__ = ["ResultPlots"]
