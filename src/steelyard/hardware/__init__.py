"""The GPU catalog, the topology of nodes and networks, and the start-up times of transfers."""

from steelyard.hardware.catalog import describe, find_gpu, gpu_names, is_known
from steelyard.hardware.gpu import DTYPES, Gpu, check_fits_node
from steelyard.hardware.topology import GpuLink, Span, Topology, slower, topology_of
from steelyard.hardware.transfers import CONNECTOR_START_SECONDS, HANDOVER_START_SECONDS

__all__ = [
    "CONNECTOR_START_SECONDS",
    "DTYPES",
    "HANDOVER_START_SECONDS",
    "Gpu",
    "GpuLink",
    "Span",
    "Topology",
    "check_fits_node",
    "describe",
    "find_gpu",
    "gpu_names",
    "is_known",
    "slower",
    "topology_of",
]
