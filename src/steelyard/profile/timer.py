"""GPU time of a call: kernels alone (replayed from a CUDA graph) and with their launches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

Call = Callable[[], object]

_GROUPS = 5  # timed groups, of which the median counts
_GROUP_SECONDS = 0.5e-3  # each at least this long, so that the clock's grain does not matter
_STEADY = 0.02  # spread of the groups that is good enough
_TRIES = 3  # before the steadiest is taken


@dataclass(frozen=True)
class Timing:
    """Seconds of one call; ``spread`` is the range of the timed groups over their median."""

    seconds: float
    spread: float


def kernel_time(calls: Sequence[Call], settle_s: float = 0.0) -> Timing:
    """One call inside a captured graph. Give several calls on different data, so that no cache stays warm.

    A GPU at its power limit lowers its clocks within some tens of milliseconds, by up to a quarter, and raises them as
    slowly. So calls unlike the previous ones must first run for a while (``settle_s``).
    """
    graph = _captured(calls, _anchor().pool())
    _settle(graph.replay, settle_s)
    timing = _steady(graph.replay)
    graph.reset()
    return Timing(timing.seconds / len(calls), timing.spread)


@contextmanager
def replayed(calls: Sequence[Call]) -> Iterator[Callable[[int], float]]:
    """A captured graph of the calls, as a function from repeats to the seconds of one."""
    graph = _captured(calls, _anchor().pool())
    try:
        yield lambda repeats: _timed(graph.replay, repeats) / repeats
    finally:
        graph.reset()


def launched_time(calls: Sequence[Call]) -> Timing:
    """One call launched by the host, back to back: the longer of kernel and launch."""

    def all_calls() -> None:
        for call in calls:
            call()

    timing = _steady(all_calls)
    return Timing(timing.seconds / len(calls), timing.spread)


def _captured(calls: Sequence[Call], *pool: Any) -> Any:
    """A graph of the calls; each runs once before, since many kernels are chosen or compiled on first use.

    `torch.cuda.graph` would first free all cached memory, which takes longer than most measurements.
    """
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(_stream()):
        for call in calls:
            call()
        torch.cuda.synchronize()
        graph.capture_begin(*pool)
        try:
            for call in calls:
                call()
        finally:
            graph.capture_end()
    torch.cuda.synchronize()
    return graph


def _settle(run: Callable[[], object], seconds: float) -> None:
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        run()
        torch.cuda.synchronize()


@cache
def _stream() -> Any:
    return torch.cuda.Stream()


@cache
def _anchor() -> Any:
    """A graph that is never reset, so that the memory shared by all graphs is not freed between them."""
    x = torch.zeros(1, device="cuda")
    return _captured([lambda: x.add_(1.0)])


def _steady(run: Callable[[], object]) -> Timing:
    """Repeat until the groups agree; returns the best of a few tries."""
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
