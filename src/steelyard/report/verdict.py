"""A run in sentences: the workload, the outcome, whether the limits hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from steelyard.cost.silicon import SYSTEMS, package_folder
from steelyard.report.loads import unserved_reasons
from steelyard.words import count, percent, plural, seconds, significant

if TYPE_CHECKING:
    from steelyard.sim import Result, Summary
    from steelyard.sim.summary import Provenance

METRICS = {
    "ttft": ("TTFT", "time to first token"),
    "attft": ("aTTFT", "submission to first token of the visible answer"),
    "tpot": ("TPOT", "time per output token"),
    "itl": ("ITL", "time between tokens"),
    "e2e": ("End to end", "submission to last token"),
    "queue": ("Queue", "wait before the first step"),
}
PERCENTILES = ("mean", "p50", "p90", "p95", "p99", "max")


@dataclass(frozen=True)
class Limit:
    """One limit on a percentile (`METRIC_pNN`) and the run's value, in seconds."""

    name: str
    limit: float
    value: float | None
    met: bool
    unserved: int = 0

    @property
    def label(self) -> str:
        """`TTFT p95`."""
        return self.label_of(self.name)

    @staticmethod
    def label_of(name: str) -> str:
        """`TTFT p95` of `ttft_p95`."""
        metric, _, percentile = name.partition("_")
        short = METRICS[metric][0] if metric in METRICS else metric
        return f"{short} {percentile}"

    @property
    def finding(self) -> str:
        """`31.2 ms, limit 1.00 s`, and how many requests were not served."""
        value = "never" if self.value is None and self.unserved else seconds(self.value)
        late = f"; {plural(self.unserved, 'request')} not served count as never" if self.unserved else ""
        return f"{value}, limit {seconds(self.limit)}{late}"


def metrics(summary: Summary) -> dict[str, tuple[str, str]]:
    """Metrics to show. aTTFT is left out if no request has hidden rounds, since it then equals TTFT."""
    alike = summary.attft == summary.ttft
    return {name: words for name, words in METRICS.items() if name != "attft" or not alike}


def limits(summary: Summary) -> list[Limit]:
    """The limits on the run's percentiles in the order they were given."""
    return [Limit(name, found.limit, found.value, found.met, found.unserved) for name, found in summary.slo.items()]


def fleet_line(summary: Summary) -> str:
    """`llama-3.1-8b on 8 × H100, 4 replicas of 2 GPUs`."""
    gpus, replicas = summary.gpus, summary.replicas
    line = f"{summary.model} on {count(gpus)} × {summary.gpu}, {plural(replicas, 'replica')}"
    if len(summary.pools) > 1:
        return f"{line}: " + ", ".join(f"{pool.name} {count(pool.replicas)}" for pool in summary.pools)
    return line if gpus == replicas else f"{line} of {plural(gpus // replicas, 'GPU')}"


def workload_line(result: Result) -> str:
    """`2,000 requests at 24.0 a second, 768 tokens in and 192 out`, read off the requests themselves."""
    requests = result.requests
    total = len(requests["arrival"])
    arrivals = requests["arrival"][np.isfinite(requests["arrival"])]
    span = float(np.ptp(arrivals)) if len(arrivals) else 0.0
    asked = plural(total, "request")
    if span > 0:
        asked += f" at {significant((len(arrivals) - 1) / span)} a second"
    elif total > 1:
        asked += " at once"
    if not total:
        return asked
    prompt, output = requests["prompt"], requests["output"]
    kind = "median " if np.ptp(prompt) or np.ptp(output) else ""
    tokens_in, tokens_out = count(float(np.median(prompt))), count(float(np.median(output)))
    return f"{asked}, {kind}{tokens_in} tokens in and {tokens_out} out"


def outcome(summary: Summary) -> str:
    """What the fleet did with the workload, in one or two sentences."""
    finished = summary.outcomes.finished
    if not finished:
        return f"No request finished: of {count(summary.requests)}, {_lost(summary)}."
    rate = significant(summary.throughput.output_tokens_per_s)
    median, tail = seconds(summary.ttft.p50), seconds(summary.ttft.p95)
    if finished == 1:
        first = f"Its first token came after {median}."
    else:
        first = f"Half of them had their first token within {median}, 95 % within {tail}."
    text = (
        f"Served {plural(finished, 'request')} in {seconds(summary.duration_s)}, "
        f"writing {rate} tokens a second. {first}"
    )
    return f"{text} Not served: {_lost(summary)}." if finished < summary.requests else text


def slo_line(found: Sequence[Limit]) -> str:
    """Whether the limits hold. There must be at least one."""
    missed = sum(not limit.met for limit in found)
    every = {1: "its limit", 2: "both limits"}.get(len(found), f"all {len(found)} limits")
    if not missed:
        return f"Meets {every}."
    return f"Misses {every}." if missed == len(found) else f"Misses {missed} of {len(found)} limits."


def steady_line(summary: Summary) -> str:
    """The steady window, or why there is none."""
    steady = summary.steady
    if steady is None:
        return f"none: {summary.unsteady.reason}" if summary.unsteady else ""
    low, high = steady.sampling["requests_per_s"]
    return (
        f"{plural(steady.requests, 'request')} from {seconds(steady.start_s)} to {seconds(steady.end_s)}; "
        f"a long run would have {significant(low)} – {significant(high)} requests/s (90 % sure)"
    )


def bottleneck_line(summary: Summary) -> str:
    """What requests wait for, and what would help; empty where they hardly wait."""
    found = summary.bottleneck
    if found is None:
        return ""
    where = f" of {found.pool}" if found.pool and len(summary.pools) > 1 else ""
    waited = "" if found.cause == "link" else f"Requests wait {percent(found.waited)} of the time. "
    return f"{found.cause}{where}: {waited}{_capital(found.figure)}. Would help: {found.help}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def unserved_lines(result: Result, most: int) -> list[str]:
    """How many requests did not finish, and why, the most frequent reasons first."""
    reasons = unserved_reasons(result.requests)
    lines = [f"{count(number)} {status}{f': {why}' if why else ''}" for status, why, number in reasons[:most]]
    return lines + [f"and {count(len(reasons) - most)} more reasons in requests.parquet"] * (len(reasons) > most)


def _lost(summary: Summary) -> str:
    outcomes = summary.outcomes
    lost = {"rejected": outcomes.rejected, "aborted": outcomes.aborted, "unfinished": outcomes.unfinished}
    parts = [f"{count(number)} {kind}" for kind, number in lost.items() if number]
    return " and ".join(parts) or "none"


def sources_line(summary: Summary) -> str:
    """Number of operators by cost source, most first."""
    counts = Counter(summary.sources.values())
    return ", ".join(f"{source} ({count} operators)" for source, count in counts.most_common())


def silicon_line(result: Result) -> str:
    """A hint if most step times were not measured on the GPU and NVIDIA's tables cover it; else empty."""
    if result.scenario.cost.source in ("analytic", "transferred") or package_folder() is not None:
        return ""
    known = [pool.gpu for pool in result.summary.pools if pool.gpu in SYSTEMS and _elsewhere(pool.provenance) > 0.5]
    if not known:
        return ""
    gpus = " and ".join(dict.fromkeys(known))
    return (
        f"Most of this was not measured on {gpus}. NVIDIA has measured operators there: "
        "pip install 'steelyard[silicon]' brings its tables."
    )


def _elsewhere(provenance: Provenance) -> float:
    """The share that was not measured on the GPU."""
    return provenance.transferred + provenance.analytic


def first_uses_line(summary: Summary) -> str:
    """Kernels that fresh engines compiled while serving; empty if no engine is fresh."""
    found = summary.compiled_on_first_use
    if found is None:
        return ""
    return f"{plural(found.kernels, 'kernel')} compiled on first use; steps waited {seconds(found.seconds)} for that"
