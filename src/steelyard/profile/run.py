"""Measure a list of points, one line each as it is done, so that an interrupted run goes on where it stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from steelyard.profile.kernels import KERNELS, VLLM
from steelyard.profile.timer import kernel_time, launched_time

Point = dict[str, Any]

_LAUNCH_TOO = ("tiny", "gemm", "attention", "moe", "norm")  # families whose launch-inclusive time is kept as well
_LAUNCH_ROWS = 64


def about() -> dict[str, Any]:
    """The machine a profile belongs to."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "memory_bytes": properties.total_memory,
        "sms": properties.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "vllm": None if VLLM is None else VLLM.__version__,
    }


def key_of(point: Point) -> str:
    """A point's identity in the file."""
    return json.dumps(point, sort_keys=True, separators=(",", ":"))


def measure(
    points: Iterable[Point], out: Path, deadline_s: float, progress: Callable[[int], None] | None = None
) -> int:
    """Measure every point that the file does not have yet, until the time is up; returns how many were added."""
    done = {key_of(json.loads(line)["point"]) for line in out.read_text().splitlines()} if out.exists() else set()
    began = time.monotonic()
    added = 0
    with out.open("a") as file:
        for point in points:
            if key_of(point) in done:
                continue
            if time.monotonic() - began > deadline_s:
                break
            file.write(json.dumps({"point": point, **_measured(point)}) + "\n")
            file.flush()
            added += 1
            if progress is not None:
                progress(added)
    return added


def _measured(point: Point) -> dict[str, Any]:
    try:
        calls = KERNELS[point["op"]](point)
        kernel = kernel_time(calls)
        row = {"us": round(kernel.seconds * 1e6, 4), "spread": round(kernel.spread, 4)}
        if point["op"] in _LAUNCH_TOO and point.get("m", 1) <= _LAUNCH_ROWS:
            row["launch_us"] = round(launched_time(calls).seconds * 1e6, 4)
        return row
    except (RuntimeError, AssertionError, ImportError, AttributeError, TypeError) as error:
        return {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    finally:
        torch.cuda.empty_cache()
