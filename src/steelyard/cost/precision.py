"""How quantised weights change a matrix multiplication, beyond their bytes and the rate of the tensor cores.

If tensor cores multiply in 8 or 4 bits, a separate kernel first quantises the rows, and kernels reach a smaller share
of the higher peaks. Otherwise (16-bit arithmetic, or a GPU without the type) weights are unpacked in the kernel, which
costs some of both. The shares are relative to 16-bit kernels, from NVIDIA's tables of measured matrices on A100, H100
and B200 (`steelyard[silicon]`), rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.hardware import Gpu
from steelyard.model import Gemm, GroupedGemm


@dataclass(frozen=True)
class Precision:
    """Shares of the arithmetic and bandwidth that 16-bit kernels reach, and bytes of a value of a row as multiplied."""

    arithmetic: float
    memory: float
    row_bytes: float
    quantizes: bool = True


# From NVIDIA's tables, see above.
_SIXTEEN = Precision(1.0, 1.0, 2.0, quantizes=False)
_UNPACKED = Precision(0.93, 0.80, 2.0, quantizes=False)
_NATIVE = {
    "fp8": Precision(0.85, 0.90, 1.0),
    "int8": Precision(0.85, 0.90, 1.0),
    "fp4": Precision(0.63, 0.67, 0.5 + 1 / 16),
}


def precision_of(gemm: Gemm | GroupedGemm, gpu: Gpu) -> Precision:
    """How a GPU multiplies by these weights."""
    if gemm.weight_bytes == 2:
        return _SIXTEEN
    return _NATIVE[gemm.compute] if gemm.compute in _NATIVE and gemm.compute in gpu.flops else _UNPACKED
