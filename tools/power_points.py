"""What operators draw, and how much slower they are at the power limit.

    python tools/power_points.py measure OUT.jsonl     # on a GPU with torch and vLLM, two minutes
    python tools/power_points.py costs POINTS.jsonl    # the costs of `cost/power.py` from them

Each operator rests, runs for some milliseconds (`burst_us`) and then for a second, of which the last part counts: its
time (`us`), and the mean power and clock from the GPU's own counters. Decodes of attention are of one length.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from steelyard.cost.power import PowerCosts
from steelyard.files.jsontext import json_lines, required
from steelyard.hardware import find_gpu

Point = dict[str, Any]

_HEADS = {"heads": 32, "kv_heads": 8, "dim": 128}
_TOKEN_BYTES = 4096  # of one layer's cache with these heads
_PAIR_FLOPS = 4 * 32 * 128
_MATRICES = ((6144, 4096), (28672, 4096), (4096, 14336))  # of Llama-3.1-8B: outputs, inputs
_ROWS = (1, 32, 64, 128, 192, 256, 512, 2048, 8192)
_DECODES = ((8, 400), (16, 4000), (64, 128), (64, 400), (64, 1400), (256, 128), (256, 400), (256, 1400), (512, 700))
_COPIED = 1 << 28  # bytes
_REST, _HEAD, _SECONDS = 0.35, 0.25, 0.9  # seconds of rest, until the mean begins, and of the run
_BURST, _CHUNK = 3e-3, 20e-3  # seconds timed at once
_PACE = 0.01  # seconds between two readings of the clock
_FULL, _LOWERED = 0.997, 0.97  # share of the highest clock: from which it counts as that, and up to which as lowered


@dataclass(frozen=True)
class Measured:
    """One operator."""

    point: Point
    burst: float  # seconds at the highest clock
    seconds: float  # at the clock that the GPU keeps up
    watts: float
    mhz: float


def points() -> Iterator[Point]:
    """What is measured."""
    yield {"op": "tiny"}
    yield from ({"op": "gemm", "m": m, "n": n, "k": k} for m in _ROWS for n, k in _MATRICES)
    yield from ({"op": "attention", **_HEADS, "new": 1, "requests": n, "keys": keys} for n, keys in _DECODES)
    yield from ({"op": "attention", **_HEADS, "new": n, "requests": 1, "keys": n} for n in (512, 2048, 8192))
    yield from ({"op": "gumbel", "m": m, "vocab": 128256} for m in (64, 256))
    yield from ({"op": "gated_act", "m": m, "width": 14336} for m in (256, 8192))
    yield from ({"op": "norm", "m": m, "width": 4096} for m in (256, 8192))
    yield {"op": "copy", "bytes": _COPIED}
    layer = {"op": "layer", "cached": 512, "hidden": 4096, **_HEADS, "inter": 14336}
    yield from ({**layer, "m": m} for m in (1, 64, 128, 256, 512))


def read_points(path: Path) -> list[Measured]:
    """Measured operators of a file."""
    found = []
    for where, row in json_lines(path, None):
        burst, us, watts, mhz = (float(required(row, key, where)) for key in ("burst_us", "us", "watts", "mhz"))
        found.append(Measured(required(row, "point", where), 1e-6 * burst, 1e-6 * us, watts, mhz))
    return found


def costs_of(measured: Sequence[Measured], gpu: str = "h200") -> PowerCosts:
    """The costs of `cost/power.py`: of work at the highest clock, then how it changes at lower ones."""
    highest = max(each.mhz for each in measured)
    idle = next(each.watts for each in measured if each.point["op"] == "tiny")
    copy = next(each for each in measured if each.point.get("bytes") == _COPIED)
    byte = _joules(copy, idle) / (2 * _COPIED)
    matrices = [each for each in measured if each.point["op"] == "gemm"]
    few = [each for each in matrices if each.point["m"] in (32, 64)]
    flop = mean((_joules(each, idle) - byte * _moved(each.point)) / _flops(each.point) for each in few)
    lowered = [each for each in matrices if each.mhz < _LOWERED * highest]
    full = [flop * _flops(each.point) + byte * _moved(each.point) for each in lowered]
    settling = mean(
        (1.0 - _joules(each, idle) / joules) / (highest / each.mhz - 1.0)
        for each, joules in zip(lowered, full, strict=True)
    )
    attention = [each for each in measured if each.point["op"] == "attention"]
    decodes = [each for each in attention if each.point["new"] == 1]
    steady = [each for each in decodes if each.mhz >= _FULL * highest]
    bound = [each for each in decodes if each.mhz < _FULL * highest]
    prompt = max((each for each in attention if each.point["requests"] == 1), key=lambda each: int(each.point["new"]))
    peak = find_gpu(gpu).peak("bf16")
    return PowerCosts(
        idle=idle,
        flop=flop,
        byte=byte,
        cached_byte=mean(_joules(each, idle) / _cached(each.point) for each in steady),
        settling=settling,
        attention_clocked=mean((each.seconds / each.burst - 1) / (highest / each.mhz - 1) for each in bound),
        prompt_peak=_PAIR_FLOPS * prompt.point["new"] ** 2 / 2 / prompt.seconds / peak,
        limited=mean(each.seconds / each.burst for each in matrices if _flops(each.point) / each.burst > 0.7 * peak),
    )


def _joules(each: Measured, idle: float) -> float:
    """Beyond idle."""
    return (each.watts - idle) * each.seconds


def _flops(p: Point) -> float:
    return float(2 * p["m"] * p["n"] * p["k"])


def _moved(p: Point) -> float:
    return float(2 * (p["n"] * p["k"] + p["m"] * (p["n"] + p["k"])))


def _cached(p: Point) -> float:
    return float(_TOKEN_BYTES * p["requests"] * p["keys"])


class Gauge:
    """The GPU's counters."""

    def __init__(self) -> None:
        from vllm.third_party import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        self._clocks: list[tuple[float, float]] = []
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            clock = float(self._nvml.nvmlDeviceGetClockInfo(self._gpu, self._nvml.NVML_CLOCK_SM))
            self._clocks.append((time.monotonic(), clock))
            time.sleep(_PACE)

    def joules(self) -> float:
        """Since the driver was loaded. The counter moves every few hundredths of a second."""
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu)) / 1e3

    def mhz(self, since: float, until: float) -> float:
        """The mean clock."""
        return mean(clock for at, clock in self._clocks if since < at < until)


def measure(out: Path) -> None:
    """Measure all points."""
    from steelyard.files.writing import appending
    from steelyard.profile.kernels import KERNELS
    from steelyard.profile.memory import arena

    gauge = Gauge()
    with appending(out) as file:
        for point in points():
            arena().reset()
            calls = KERNELS[point["op"]](_as_batch(point))
            row = _run(calls, gauge)
            file.write(json.dumps({"point": point, **row}, separators=(",", ":")) + "\n")
            file.flush()


def _as_batch(point: Point) -> Point:
    if point["op"] != "attention":
        return point
    n = point["requests"]
    return {**point, "queries": [point["new"]] * n, "keys": [point["keys"]] * n}


def _run(calls: Sequence[Any], gauge: Gauge) -> dict[str, float]:
    from steelyard.profile.timer import replayed

    with replayed(calls) as timed:
        time.sleep(_REST)
        once = timed(1)
        burst = min(timed(max(1, int(_BURST / once))) for _ in range(2))
        began = time.monotonic()
        times: list[float] = []
        start: tuple[float, float] | None = None
        while time.monotonic() - began < _SECONDS:
            if start is None and time.monotonic() - began > _HEAD:
                start = _ticked(gauge, timed)
            seconds = timed(max(1, int(_CHUNK / once)))
            if start is not None:
                times.append(seconds)
        end = _ticked(gauge, timed)
    assert start is not None
    return {
        "burst_us": round(1e6 * burst / len(calls), 3),
        "us": round(1e6 * mean(times) / len(calls), 3),
        "watts": round((end[1] - start[1]) / (end[0] - start[0]), 1),
        "mhz": round(gauge.mhz(start[0], end[0])),
    }


def _ticked(gauge: Gauge, timed: Any) -> tuple[float, float]:
    """The time and the joules when the counter moves next; the calls run on."""
    before = gauge.joules()
    while (now := gauge.joules()) == before:
        timed(1)
    return time.monotonic(), now


def main(command: str, path: Path) -> None:
    """Measure, or print the costs."""
    if command == "measure":
        measure(path)
    else:
        print(costs_of(read_points(path)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
