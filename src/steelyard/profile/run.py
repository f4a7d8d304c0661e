"""Measures a list of points and writes each as it is done, so that an interrupted run can be resumed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from steelyard.files.writing import appending, writing_to
from steelyard.profile.kernels import KERNELS, VLLM, experts_kernel, layer_parts
from steelyard.profile.memory import arena
from steelyard.profile.resume import Point, key_of, points_done
from steelyard.profile.timer import Call, kernel_time, launched_time

_LAUNCH_TOO = ("tiny", "gemm", "attention", "moe", "norm")  # families whose launch-inclusive time is kept as well
_LAUNCH_ROWS = (1, 64)  # at which launches are timed
_LAUNCH_CACHED = 1024  # tokens of the cache
_SETTLE_SECONDS = 0.1  # warm-up of a point unlike the previous one: clocks take tens of milliseconds (docs/profiles.md)
_COMPILING = 0.1  # seconds of a first call above which it compiled a kernel instead of just loading it; chosen
_LIGHT_ROWS, _STEP = 64, 8  # rows up to which the load is light, and the factor in rows that makes another load; chosen


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


def measure(
    points: Iterable[tuple[Point, bool]], out: Path, deadline_s: float, progress: Callable[[int], None] | None = None
) -> int:
    """Measure every point that the file lacks, until the time is up; returns how many were added.

    Each point comes with whether it is held out, to measure how well the others predict it.
    """
    done = points_done(out, about())
    began = time.monotonic()
    added = 0
    before: Point = {}
    with writing_to(out), appending(out, alone=True) as file:
        for point, held_out in points:
            if key_of(point) in done:
                continue
            if time.monotonic() - began > deadline_s:
                break
            row = _measured(point, 0.0 if _alike(point, before) else _SETTLE_SECONDS)
            before = point
            flag = {"held_out": True} if held_out else {}
            file.write(json.dumps({"point": point, **flag, **row}, separators=(",", ":")) + "\n")
            file.flush()
            if "error" in row:
                torch.cuda.synchronize()  # an error that the GPU does not recover from ends the run here
                torch.cuda.empty_cache()
            added += 1
            if progress is not None:
                progress(added)
    return added


def _measured(point: Point, settle_s: float) -> dict[str, Any]:
    arena().reset()
    try:
        calls = KERNELS[point["op"]](point)
        first = _seconds(calls[0])
        kernel = kernel_time(calls, settle_s)
        row: dict[str, Any] = {"us": round(kernel.seconds * 1e6, 4), "spread": round(kernel.spread, 4)}
        if point["op"] == "layer":
            row["apart_us"] = round(sum(kernel_time(part).seconds for part in layer_parts(point)) * 1e6, 4)
        if point["op"] == "moe":
            row["kernel"] = experts_kernel(point)
            if first > _COMPILING:
                row["compile_s"] = round(first, 4)
        if _with_launch(point):
            row["launch_us"] = round(launched_time(calls).seconds * 1e6, 4)
        return row
    except Exception as error:  # a kernel's failure is recorded, and the next point measured
        return {"error": f"{type(error).__name__}: {str(error)[:200]}"}


def _seconds(call: Call) -> float:
    """Seconds of a single call."""
    began = time.monotonic()
    call()
    torch.cuda.synchronize()
    return time.monotonic() - began


def _alike(point: Point, other: Point) -> bool:
    """Whether two points of a family load the GPU similarly, by their rows or their shape."""
    if point["op"] != other.get("op"):
        return False
    if "m" in point:
        low, high = sorted(max(_LIGHT_ROWS, each["m"]) for each in (point, other))
        return bool(high <= _STEP * low)
    return all(point.get(key) == other.get(key) for key in ("heads", "kv_heads", "dim"))


def _with_launch(point: Point) -> bool:
    """Whether to time launches too: they hardly depend on sizes, so a few points of each family suffice."""
    few = sum(point["keys"]) <= _LAUNCH_CACHED if "keys" in point else point.get("m", 1) in _LAUNCH_ROWS
    return point["op"] in _LAUNCH_TOO and few
