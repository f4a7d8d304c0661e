"""How requests were served, in the whole run and in its steady window: throughput, cost, limits."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

import numpy as np

from steelyard.engine import EngineLog
from steelyard.records import Floats
from steelyard.scenario import Scenario, SloSpec
from steelyard.sim.gaps import TokenGaps
from steelyard.sim.spread import Column, percentiles, spread_of
from steelyard.sim.steady import ends, sampling_interval, steady_window
from steelyard.sim.summary import Cost, Goodput, LimitVerdict, Steady, Throughput, Unsteady
from steelyard.workload import Workload


def throughput_of(seconds: float, finished: int, prompt: int, output: int, gpus: float) -> Throughput:
    """Requests and tokens per second, in all and per GPU."""
    per = 1 / seconds if seconds > 0 else 0.0
    return Throughput(
        requests_per_s=finished * per,
        input_tokens_per_s=prompt * per,
        output_tokens_per_s=output * per,
        total_tokens_per_s=(prompt + output) * per,
        output_tokens_per_s_per_gpu=output * per / gpus,
        total_tokens_per_s_per_gpu=(prompt + output) * per / gpus,
    )


def cost_of(price: float, gpu_hours: float, prompt: int, output: int) -> Cost:
    """US dollars for GPU hours at a price per hour, in all and per million tokens."""
    usd = price * gpu_hours
    return Cost(
        usd_per_gpu_hour=price,
        usd=usd,
        usd_per_million_tokens=usd / (prompt + output) * 1e6 if prompt + output else None,
        usd_per_million_output_tokens=usd / output * 1e6 if output else None,
    )


def goodput_of(slo: SloSpec, requests: dict[str, Column], seconds: float) -> Goodput:
    """Requests that finished and met every per-request limit; None if the scenario has no such limit."""
    limits = slo.per_request()
    if not limits:
        return Goodput(requests_per_s=None, share=None)
    good = requests["status"] == "finished"
    for metric, limit in limits.items():
        good &= ~(requests[metric] > limit)  # an output of one token has no tpot, and meets any limit
    count = int(good.sum())
    return Goodput(requests_per_s=count / seconds if seconds > 0 else 0.0, share=count / max(len(good), 1))


def verdicts(slo: SloSpec, requests: dict[str, Column], gaps: TokenGaps) -> dict[str, LimitVerdict]:
    """The verdict on each limit of the run, by its name. A request that did not finish counts as infinitely late."""
    finished = requests["status"] == "finished"
    found: dict[str, LimitVerdict] = {}
    for limit in slo.on_run():
        if limit.metric == "itl":
            value = _gap(gaps, limit.percentile, int((requests["output"][~finished] - 1).sum()))
            unserved = int((~finished).sum())
        else:
            counted = finished | _has_metric(requests, limit.metric)
            values = np.where(finished, requests[limit.metric], np.inf)[counted]
            values = values[~np.isnan(values)]
            value = _level(values, limit.percentile)
            unserved = int(np.isinf(values).sum())
        met = value is not None and value <= limit.seconds
        found[limit.name] = LimitVerdict(limit=limit.seconds, value=value, met=met, unserved=unserved)
    return found


def steady_figures(
    scenario: Scenario,
    workload: Workload,
    requests: dict[str, Column],
    logs: Sequence[EngineLog],
    gpus: float,
    price: float,
) -> Steady | Unsteady:
    """Figures of the steady window, or why there is none."""
    window = steady_window(scenario, workload, requests, logs)
    if isinstance(window, Unsteady):
        return window
    at = ends(requests)
    inside = (at > window.start) & (at <= window.end)
    finished = requests["status"] == "finished"
    ended = {name: requests[name][inside] for name in ("status", "ttft", "attft", "tpot", "e2e")}
    done = {name: requests[name][inside & finished] for name in ("prompt", "output", "ttft", "tpot", "e2e")}
    came, left, tokens = (requests[name][finished] for name in ("arrival", "finish", "output"))
    prompt, output = int(done["prompt"].sum()), int(done["output"].sum())
    cost = cost_of(price, window.seconds * gpus / 3600, prompt, output)
    return Steady(
        start_s=window.start,
        end_s=window.end,
        seconds=window.seconds,
        requests=len(ended["status"]),
        throughput=throughput_of(window.seconds, len(done["prompt"]), prompt, output, gpus),
        goodput=goodput_of(scenario.slo, ended, window.seconds),
        usd_per_million_tokens=cost.usd_per_million_tokens,
        usd_per_million_output_tokens=cost.usd_per_million_output_tokens,
        ttft=spread_of(done["ttft"]),
        tpot=spread_of(done["tpot"]),
        e2e=spread_of(done["e2e"]),
        sampling={
            "requests_per_s": sampling_interval(came, left, None, window),
            "output_tokens_per_s": sampling_interval(came, left, tokens, window),
        },
    )


def _has_metric(requests: dict[str, Column], metric: str) -> Column:
    """Requests to which a metric applies: an output of one token has no tpot, a hidden round no attft."""
    if metric == "tpot":
        return np.asarray(requests["output"] > 1)
    if metric == "attft":
        return np.asarray(requests["phase"] == "visible")
    return np.ones(len(requests["id"]), dtype=bool)


def _level(values: Floats, percent: float | None) -> float | None:
    """A percentile by linear interpolation, or the mean; None if there are no values or it is infinite."""
    if not len(values):
        return None
    if percent is None:
        return float(values.mean()) if np.isfinite(values).all() else None
    if np.isfinite(values).all():
        return percentiles(values, [percent])[0]
    ordered = np.sort(values)
    place = percent / 100 * (len(values) - 1)
    below, above = ordered[floor(place)], ordered[min(floor(place) + 1, len(values) - 1)]
    share = place - floor(place)
    if np.isinf(above) and (share > 0 or np.isinf(below)):
        return None
    return float(below if share == 0 else below + share * (above - below))


def _gap(gaps: TokenGaps, percent: float | None, missing: int) -> float | None:
    """A percentile of the gaps between tokens, or their mean; ``missing`` gaps count as infinite."""
    if not gaps.total:
        return None
    if percent is None:
        return None if missing else gaps.mean
    among = percent * (gaps.total + missing) / gaps.total
    return gaps.percentiles([among])[0] if among <= 100 else None
