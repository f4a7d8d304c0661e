"""The figures of a run that people look at first."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.cost import PROVENANCES, Stretches
from steelyard.engine import EngineLog
from steelyard.scenario import SloSpec
from steelyard.sim.gaps import TokenGaps
from steelyard.sim.setup import FleetSetup, Setup
from steelyard.sim.units import on_one, stalled

Column = NDArray[Any]
PERCENTILES = (50, 90, 95, 99)


def summarise(
    setup: FleetSetup,
    requests: dict[str, Column],
    gaps: TokenGaps,
    logs: list[EngineLog],
    there: Sequence[float] | None = None,
) -> dict[str, Any]:
    """All headline figures, JSON-ready. Where pools differ, those of the engines are of the pools that answer.

    ``there`` is the share of its replicas that each pool had on average, where they come and go.
    """
    scenario, answers = setup.scenario, setup.answers[0]
    finished = requests["status"] == "finished"
    latencies = {name: describe(requests[name][finished]) for name in ("ttft", "attft", "tpot", "e2e", "queue")}
    latencies["itl"] = describe_gaps(gaps)
    start, end = span(requests)
    duration = end - start
    counts = {s: int((requests["status"] == s).sum()) for s in ("finished", "rejected", "aborted")}
    prompt, output = int(requests["prompt"][finished].sum()), int(requests["output"][finished].sum())
    there = there or [1.0] * len(setup.pools)
    gpus = [each.gpus * share for each, share in zip(setup.pools, there, strict=True)]
    gpu_hours = duration * sum(gpus) / 3600
    price = sum(count * each.price_per_hour for count, each in zip(gpus, setup.pools, strict=True)) / sum(gpus)
    pools = _pools(setup, logs, duration, there)
    return {
        "name": scenario.name,
        "seed": scenario.seed,
        "steelyard": version("steelyard"),
        "model": " + ".join(dict.fromkeys(each.model.name for each in setup.pools)),
        "gpu": " + ".join(dict.fromkeys(each.gpu.name for each in setup.pools)),
        "gpus": setup.gpus,
        "replicas": len(logs),
        "tp": answers.pool.tp,
        "layout": str(answers.layout),
        "requests": len(requests["id"]),
        "outcomes": counts,
        "steps": sum(log.ran for log in logs),
        "duration_s": duration,
        **{name: latencies[name] for name in ("ttft", "attft", "tpot", "itl", "e2e", "queue")},
        "throughput": _throughput(duration, counts["finished"], prompt, output, sum(gpus)),
        "goodput": _goodput(scenario.slo, requests, finished, duration),
        "slo": _slo(scenario.slo, requests, finished, gaps),
        "preemptions": int(requests["preemptions"].sum()),
        "prefix_cache": _prefix_cache(requests),
        **_whole(pools, gpus, setup.pools.index(answers)),
        "gpu_hours": gpu_hours,
        "cost": _cost(price, gpu_hours, prompt, output),
        "memory": answers.memory.summary(),
        "sources": {name: source for each in setup.pools for name, source in sorted(each.cost.chosen.items())},
        "pools": pools,
        "intervals": None,
    }


def _pools(setup: FleetSetup, logs: list[EngineLog], duration: float, there: Sequence[float]) -> list[dict[str, Any]]:
    """What each pool is and how busy it was."""
    found = []
    first = 0
    own: list[EngineLog] = []
    for each, share in zip(setup.pools, there, strict=True):
        pool = each.pool
        if pool.role != "ffn":  # that works, and counts as busy, in the steps of the attention pool before it
            own = logs[first : first + each.ranks]
        found.append(
            {
                "name": pool.name,
                "role": pool.role,
                "gpu": each.gpu.name,
                "gpus": each.gpus,
                "replicas": each.ranks,
                "first_replica": first,
                "tp": pool.tp,
                "layout": str(each.layout),
                "steps": sum(log.ran for log in own),
                **_use(each, own, duration * share),
                **stalled(each, own),
            }
        )
        first += each.ranks
    return found


def _whole(pools: list[dict[str, Any]], gpus: list[float], answers: int) -> dict[str, Any]:
    """The fleet's use, by GPUs; its blocks are those of the pool that answers."""

    def mean(values: list[float]) -> float:
        return sum(value * count for value, count in zip(values, gpus, strict=True)) / sum(gpus)

    return {
        "kv": pools[answers]["kv"],
        **{name: mean([pool[name] for pool in pools]) for name in ("mfu", "mbu", "busy")},
        "provenance": {kind: mean([pool["provenance"][kind] for pool in pools]) for kind in PROVENANCES},
    }


def describe(values: Column) -> dict[str, float | int | None]:
    """Mean and percentiles of what happened; null where nothing did."""
    values = values[np.isfinite(values)]
    if not len(values):
        return {"mean": None, **{f"p{p}": None for p in PERCENTILES}, "max": None, "count": 0}
    levels = np.percentile(values, PERCENTILES)
    return {
        "mean": float(values.mean()),
        **{f"p{p}": float(level) for p, level in zip(PERCENTILES, levels, strict=True)},
        "max": float(values.max()),
        "count": len(values),
    }


def describe_gaps(gaps: TokenGaps) -> dict[str, float | int | None]:
    """The same of the gaps between tokens."""
    if not gaps.total:
        return describe(np.empty(0))
    levels = gaps.percentiles(PERCENTILES)
    return {
        "mean": gaps.mean,
        **{f"p{p}": level for p, level in zip(PERCENTILES, levels, strict=True)},
        "max": gaps.longest,
        "count": gaps.total,
    }


def span(requests: dict[str, Column]) -> tuple[float, float]:
    """First submission to last end."""
    arrivals = requests["arrival"][np.isfinite(requests["arrival"])]
    ends = requests["finish"][np.isfinite(requests["finish"])]
    if not len(arrivals) or not len(ends):
        return 0.0, 0.0
    return float(arrivals.min()), float(ends.max())


def _throughput(duration: float, finished: int, prompt: int, output: int, gpus: float) -> dict[str, float]:
    per = 1 / duration if duration > 0 else 0.0
    return {
        "requests_per_s": finished * per,
        "input_tokens_per_s": prompt * per,
        "output_tokens_per_s": output * per,
        "total_tokens_per_s": (prompt + output) * per,
        "output_tokens_per_s_per_gpu": output * per / gpus,
        "total_tokens_per_s_per_gpu": (prompt + output) * per / gpus,
    }


def _goodput(slo: SloSpec, requests: dict[str, Column], finished: Column, duration: float) -> dict[str, Any]:
    """Requests that met every per-request limit; null when the scenario sets none."""
    limits = slo.per_request()
    if not limits:
        return {"requests_per_s": None, "share": None}
    good = finished.copy()
    for metric, limit in limits.items():
        value = requests[metric]
        good &= ~(value > limit)  # an output of one token has no tpot and cannot miss it
    count = int(good.sum())
    return {"requests_per_s": count / duration if duration > 0 else 0.0, "share": count / len(good)}


def _slo(slo: SloSpec, requests: dict[str, Column], finished: Column, gaps: TokenGaps) -> dict[str, dict[str, Any]]:
    verdicts: dict[str, dict[str, Any]] = {}
    for limit in slo.percentiles():
        value: float | None = None
        if limit.metric == "itl":
            value = gaps.percentiles([limit.percentile])[0] if gaps.total else None
        else:
            seen = requests[limit.metric][finished]
            seen = seen[np.isfinite(seen)]
            value = float(np.percentile(seen, limit.percentile)) if len(seen) else None
        met = value is not None and value <= limit.seconds
        verdicts[limit.name] = {"limit": limit.seconds, "value": value, "met": met}
    return verdicts


def _prefix_cache(requests: dict[str, Column]) -> dict[str, float | int]:
    served = np.isfinite(requests["scheduled"])
    hits, prompts = int(requests["cached"][served].sum()), int(requests["prompt"][served].sum())
    return {"hit_rate": hits / prompts if prompts else 0.0, "hit_tokens": hits, "prompt_tokens": prompts}


def _use(setup: Setup, logs: list[EngineLog], duration: float) -> dict[str, Any]:
    """How busy GPUs and KV blocks were, weighted by time; idle time counts as unused."""
    total = setup.limits.blocks
    busy = held = 0.0
    fewest = total
    tables = []
    for log in logs:
        if not len(log.ends):
            continue
        rows = log.stretches()
        ran = rows["n_decode"] + rows["prefill_requests"] > 0
        tables.append({name: column[ran] for name, column in rows.items()})
        took = log.end[rows["step"] + rows["steps"] - 1] - log.start()[rows["step"]]
        busy += float(took.sum())
        free = (rows["free_blocks"] + rows["free_after"]) / 2
        held += float(((total - free) * took).sum())
        fewest = min(fewest, int(rows["free_blocks"].min()), int(rows["free_after"].min()))
    done = _work_done(tables)
    room = duration * len(logs)
    return {
        "kv": {
            "blocks_per_replica": total,
            "block_size": setup.limits.block_size,
            "mean_use": held / (total * room) if total and room > 0 else 0.0,
            "peak_use": 1 - fewest / total if total else 0.0,
        },
        "mfu": setup.work.seconds_at_peak(done) / room if room > 0 else 0.0,
        "mbu": setup.work.bytes(done) / (setup.gpu.memory_bandwidth * room) if room > 0 else 0.0,
        "busy": busy / room if room > 0 else 0.0,
        "provenance": _shares(setup.cost.by_provenance(on_one(done, setup.spread))),
    }


def _work_done(tables: list[dict[str, Column]]) -> Stretches:
    def column(name: str) -> Column:
        return np.concatenate([table[name] for table in tables]) if tables else np.empty(0, dtype=np.int64)

    steps, decodes = column("steps"), column("n_decode")
    return Stretches(
        steps=steps,
        decodes=decodes,
        decode_keys=column("kv_decode") * steps + decodes * (steps * (steps - 1) // 2),
        prefill_tokens=column("prefill_tokens"),
        prefill_requests=column("prefill_requests"),
        prefill_pairs=column("prefill_pairs"),
    )


def _shares(seconds: Column) -> dict[str, float]:
    """What share of the GPU's time each kind of figure stands for."""
    total = float(seconds.sum())
    return {name: float(part) / total if total else 0.0 for name, part in zip(PROVENANCES, seconds, strict=True)}


def _cost(price: float, gpu_hours: float, prompt: int, output: int) -> dict[str, float | None]:
    usd = price * gpu_hours
    return {
        "usd_per_gpu_hour": price,
        "usd": usd,
        "usd_per_million_tokens": usd / (prompt + output) * 1e6 if prompt + output else None,
        "usd_per_million_output_tokens": usd / output * 1e6 if output else None,
    }
