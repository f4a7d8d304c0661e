"""GPU time of a call: kernels alone (replayed from a CUDA graph) and with their launches."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Call = Callable[[], object]

_GROUPS = 5  # timed groups, of which the median counts
_GROUP_SECONDS = 2e-3  # each at least this long, so that the clock's grain does not matter
_STEADY = 0.02  # spread of the groups that is good enough
_TRIES = 3


@dataclass(frozen=True)
class Timing:
    """Seconds of one call; ``spread`` is the range of the timed groups over their median."""

    seconds: float
    spread: float


def kernel_time(calls: Sequence[Call]) -> Timing:
    """One call inside a captured graph. Give several calls on different data, so that no cache stays warm."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    timing = _steady(graph.replay)
    graph.reset()
    return Timing(timing.seconds / len(calls), timing.spread)


def launched_time(calls: Sequence[Call]) -> Timing:
    """One call launched by the host, back to back: the longer of kernel and launch."""

    def all_calls() -> None:
        for call in calls:
            call()

    timing = _steady(all_calls)
    return Timing(timing.seconds / len(calls), timing.spread)


def _steady(run: Callable[[], object]) -> Timing:
    """Repeat until the groups agree, or give the best of a few tries."""
    run()
    torch.cuda.synchronize()
    repeats = max(1, int(_GROUP_SECONDS / max(_timed(run, 1), 1e-6)))
    best = Timing(float("inf"), float("inf"))
    for _ in range(_TRIES):
        groups = [_timed(run, repeats) / repeats for _ in range(_GROUPS)]
        middle = statistics.median(groups)
        spread = (max(groups) - min(groups)) / middle
        if spread < best.spread:
            best = Timing(middle, spread)
        if best.spread <= _STEADY:
            break
    return best


def _timed(run: Callable[[], object], repeats: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
