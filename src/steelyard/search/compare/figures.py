"""The figures that are compared: where a summary has them, and which direction is better."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from steelyard.sim.summary import Summary

Unit = Literal["seconds", "rate", "share", "dollars", "count"]
Better = Literal["lower", "higher", "neither"]

LATENCIES = {"ttft": "TTFT", "attft": "aTTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "End to end"}
LEVELS = ("mean", "p50", "p95", "p99")


@dataclass(frozen=True)
class ComparedFigure:
    """One figure of a run, by its dotted name in summary.json."""

    name: str
    label: str
    group: str
    unit: Unit
    better: Better
    of: Callable[[Summary], float | None]
    setting: bool = False  # follows from the scenario alone, so that no seed changes it


def _latency(metric: str, level: str) -> ComparedFigure:
    def of(summary: Summary) -> float | None:
        return summary.latencies[metric].levels[level]

    return ComparedFigure(f"{metric}.{level}", f"{LATENCIES[metric]} {level}", "Latency", "seconds", "lower", of)


def _throughput(name: str, label: str) -> ComparedFigure:
    def of(summary: Summary) -> float | None:
        return float(summary.throughput.to_dict()[name])

    return ComparedFigure(f"throughput.{name}", label, "Throughput", "rate", "higher", of)


def _figures() -> Iterator[ComparedFigure]:
    figure = ComparedFigure
    yield from (_latency(metric, level) for metric in LATENCIES for level in LEVELS)
    yield _throughput("requests_per_s", "Requests/s")
    yield _throughput("output_tokens_per_s", "Output tokens/s")
    yield _throughput("output_tokens_per_s_per_gpu", "Output tokens/s per GPU")
    yield figure("steady.output_tokens_per_s", "Output tokens/s, steady", "Throughput", "rate", "higher", _steady_rate)
    yield figure("goodput.requests_per_s", "Goodput, requests/s", "Throughput", "rate", "higher", _good_rate)
    yield figure("goodput.share", "Goodput, share", "Throughput", "share", "higher", lambda s: s.goodput.share)
    yield figure("unserved", "Requests not served", "Throughput", "count", "lower", unserved)
    yield figure("gpus", "GPUs", "Cost", "count", "lower", lambda s: float(s.gpus), setting=True)
    yield figure(
        "cost.usd_per_million_tokens",
        "$ per M tokens",
        "Cost",
        "dollars",
        "lower",
        lambda s: s.cost.usd_per_million_tokens,
    )
    yield figure("steady.usd_per_million_tokens", "$ per M tokens, steady", "Cost", "dollars", "lower", _steady_price)
    yield figure("preemptions", "Preemptions", "Engines", "count", "lower", lambda s: float(s.preemptions))
    yield figure(
        "prefix_cache.hit_rate", "Prefix cache hits", "Engines", "share", "higher", lambda s: s.prefix_cache.hit_rate
    )
    yield figure("busy", "Engines busy", "Engines", "share", "neither", lambda s: s.busy)
    yield figure("mfu", "MFU", "Engines", "share", "neither", lambda s: s.mfu)
    yield figure("mbu", "MBU", "Engines", "share", "neither", lambda s: s.mbu)
    yield figure("kv.mean_use", "KV cache in use", "Engines", "share", "neither", lambda s: s.kv.mean_use)


def unserved(summary: Summary) -> float:
    """Requests that did not finish."""
    return float(summary.requests - summary.outcomes.finished)


def _good_rate(summary: Summary) -> float | None:
    return summary.goodput.requests_per_s


def _steady_rate(summary: Summary) -> float | None:
    return None if summary.steady is None else summary.steady.throughput.output_tokens_per_s


def _steady_price(summary: Summary) -> float | None:
    return None if summary.steady is None else summary.steady.usd_per_million_tokens


FIGURES = tuple(_figures())
BY_NAME = {each.name: each for each in FIGURES}


def values_of(summary: Summary) -> dict[str, float | None]:
    """All compared figures of a run. Without hidden rounds aTTFT is TTFT, and is left out."""
    found = {each.name: each.of(summary) for each in FIGURES}
    if summary.attft == summary.ttft:
        found |= {name: None for name in found if name.startswith("attft.")}
    return found
