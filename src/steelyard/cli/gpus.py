"""``steelyard gpus``"""

from __future__ import annotations

from rich.table import Table

from steelyard.cli.console import out
from steelyard.hardware import find_gpu, gpu_names


def command() -> None:
    """List the GPUs of the catalog."""
    table = Table(box=None, pad_edge=False)
    for heading in ("gpu", "memory", "bandwidth", "bf16 dense", "fp8 dense", "link", "$/hour"):
        table.add_column(heading, justify="left" if heading == "gpu" else "right")
    for name in gpu_names():
        gpu = find_gpu(name)
        fp8 = gpu.flops.get("fp8")
        table.add_row(
            name,
            f"{gpu.memory_gb} GB",
            f"{gpu.memory_bandwidth / 1e12:.2f} TB/s",
            f"{gpu.flops['bf16'] / 1e12:.0f} TFLOP/s",
            f"{fp8 / 1e12:.0f} TFLOP/s" if fp8 else "–",
            f"{gpu.peer_bandwidth / 1e9:.0f} GB/s",
            f"{gpu.price_per_hour:.2f}",
        )
    out.print(table)
