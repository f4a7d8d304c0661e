"""One kind of GPU: compute, memory and links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from steelyard.errors import UserError

DTYPES = ("bf16", "fp16", "fp8", "int8", "fp4")


@dataclass(frozen=True)
class Gpu:
    """One catalog entry; `gpus.yaml` says what each figure means and where it comes from.

    Bandwidths are bytes/s, links per direction; flops are dense peaks per tensor-core dtype.
    """

    name: str
    full_name: str
    vendor: str
    memory_gb: int
    memory_bytes: int
    memory_bandwidth: float
    flops: Mapping[str, float] = field(hash=False)
    sms: int
    l2_bytes: int
    nvlink_bandwidth: float
    nvls_share: float
    pcie_bandwidth: float
    peer_access: bool
    nic_bandwidth: float
    gpus_per_node: int
    price_per_hour: float
    tdp_watts: int

    def peak(self, dtype: str) -> float:
        """Dense operations/s in a dtype.

        A GPU without it (an A100 asked for fp8) unpacks the weights and multiplies in bf16, so
        that is the rate it reaches.
        """
        if dtype not in DTYPES:
            raise ValueError(f"unknown tensor-core dtype {dtype!r}; one of {', '.join(DTYPES)}")
        return self.flops.get(dtype, self.flops["bf16"])

    @property
    def peer_bandwidth(self) -> float:
        """Bytes/s per direction to another GPU of the node: over NVLink, or PCIe where there is none."""
        return self.nvlink_bandwidth or self.pcie_bandwidth


def check_fits_node(gpu: Gpu, tp: int) -> None:
    """Tensor parallelism communicates twice per layer: refuse a group that does not fit one node."""
    if tp > gpu.gpus_per_node:
        raise UserError(
            f"{tp} GPUs do not fit one node of {gpu.full_name}; "
            f"tp can be at most {gpu.gpus_per_node}, the GPUs that share its fast links"
        )
