"""The GPU catalog: what each can compute, hold and move, and what it costs."""

from steelyard.hardware.catalog import describe, find_gpu, gpu_names
from steelyard.hardware.gpu import DTYPES, Gpu, check_fits_node

__all__ = ["DTYPES", "Gpu", "check_fits_node", "describe", "find_gpu", "gpu_names"]
