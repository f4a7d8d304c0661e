"""Made-up results for the report's tests: a toy queue whose columns look like a real run's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from steelyard.scenario import scenario_from_dict
from steelyard.sim import Result
from steelyard.sim.gaps import TokenGaps
from steelyard.sim.summary import Cost, Outcomes, Summary

BLOCKS = 27_000
BLOCK_SIZE = 16
STEP_COLUMNS = [
    *("replica", "step", "start", "end", "n_decode", "kv_decode"),
    *("prefill_tokens", "prefill_requests", "running", "waiting", "free_blocks", "preempted"),
]


def make_result(
    requests: int = 240,
    replicas: int = 2,
    rate: float = 12.0,
    name: str = "sample",
    labels: tuple[str, ...] = ("chat",),
    output: int | None = None,
    reject: float = 0.02,
    slo: dict[str, dict[str, Any]] | None = None,
) -> Result:
    """A result of `requests` requests served round-robin; `reject` is the share turned away."""
    rng = np.random.default_rng([7, requests, replicas])
    table = _requests(rng, requests, replicas, rate, labels, output, reject)
    steps = [_serve(table, replica) for replica in range(replicas)]
    _finish(table)
    columns = {key: np.concatenate([part[key] for part in steps]) for key in steps[0]}
    gaps = np.sort((columns["end"] - columns["start"])[columns["n_decode"] > 0])
    return Result.of(
        scenario=scenario_from_dict(
            {
                "model": "llama-3.1-8b",
                "fleet": {"gpu": "h100", "replicas": replicas},
                "workload": {
                    "arrivals": {"kind": "poisson", "rate": rate},
                    "requests": requests,
                    "prompt": {"kind": "lognormal", "median": 400, "p95": 1800},
                    "output": {"kind": "lognormal", "median": 100, "p95": 270},
                },
            }
        ),
        summary=_summary(table, columns, gaps, replicas, name, slo),
        requests=table,
        steps=columns,
        gaps=TokenGaps(((gaps, np.full(len(gaps), 2, dtype=np.int64)),) if len(gaps) else ()),
        notes=["attention below 128 tokens is extrapolated"],
    )


def no_steps(result: Result) -> Result:
    """The same run as if nothing had been served: every request rejected, no step made."""
    for key, column in result.requests.items():
        if column.dtype.kind == "f" and key != "arrival":
            column[:] = np.nan
    result.requests["replica"][:] = -1
    result.requests["status"][:] = "rejected"
    result.requests["reason"][:] = "prompt of 99999 tokens is longer than max_model_len 8192"
    result.steps = {key: column[:0] for key, column in result.steps.items()}
    result.gaps = TokenGaps(())
    total = result.summary.requests
    summary = _summary(result.requests, result.steps, np.empty(0), 1, result.summary.name, None)
    result.summary = replace(
        summary,
        requests=total,
        outcomes=Outcomes(finished=0, rejected=total, aborted=0),
        cost=Cost(usd_per_gpu_hour=2.9, usd=0.0, usd_per_million_output_tokens=None, usd_per_million_tokens=None),
        mfu=float("nan"),
    )
    return result


def _requests(
    rng: np.random.Generator,
    n: int,
    replicas: int,
    rate: float,
    labels: tuple[str, ...],
    output: int | None,
    reject: float,
) -> dict[str, np.ndarray]:
    refused = rng.random(n) < reject
    empty = np.full(n, np.nan)
    return {
        "id": np.arange(n),
        "label": np.array([labels[i % len(labels)] for i in range(n)]),
        "phase": np.full(n, "visible", dtype=object),
        "replica": np.where(refused, -1, np.arange(n) % replicas),
        "arrival": np.cumsum(rng.exponential(1 / rate, n)),
        "prompt": np.clip(rng.lognormal(6.0, 0.9, n), 4, 8000).astype(np.int64),
        "output": np.full(n, output) if output else rng.lognormal(4.6, 0.6, n).clip(1, 600).astype(np.int64),
        "cached": rng.integers(0, 3, n) * BLOCK_SIZE,
        "preemptions": (rng.random(n) < 0.01).astype(np.int64),
        "retries": np.zeros(n, dtype=np.int64),
        "status": np.where(refused, "rejected", "finished").astype(object),
        "reason": np.where(refused, "prompt too long", "").astype(object),
        **{key: empty.copy() for key in ("scheduled", "first_token", "finish")},
        **{key: empty.copy() for key in ("queue", "ttft", "attft", "tpot", "e2e")},
    }


def _serve(table: dict[str, np.ndarray], replica: int) -> dict[str, np.ndarray]:
    """One replica, step by step: prefill waiting requests (up to 64 at once), decode the rest."""
    queue = np.flatnonzero(table["replica"] == replica).tolist()
    running: dict[int, int] = {}
    rows: list[tuple[float, ...]] = []
    clock = 0.0
    while queue or running:
        if not running:
            clock = max(clock, float(table["arrival"][queue[0]]))
        n_decode = len(running)
        joining = [i for i in queue[: max(0, 64 - n_decode)] if table["arrival"][i] <= clock][:4]
        queue = queue[len(joining) :]
        prefill = int(sum(table["prompt"][i] for i in joining))
        kv = int(sum(table["prompt"][i] + done for i, done in running.items()))
        end = clock + 0.0062 + 2e-5 * n_decode + 4e-8 * kv + 3.2e-5 * prefill
        table["scheduled"][joining] = clock
        table["first_token"][joining] = end
        running = {i: done + 1 for i, done in running.items()} | dict.fromkeys(joining, 1)
        waiting = sum(table["arrival"][i] <= clock for i in queue[:300])
        free = BLOCKS - 1 - (kv + prefill) // BLOCK_SIZE
        batch = (n_decode, kv, prefill, len(joining), len(running), waiting, free, 0)
        rows.append((replica, len(rows), clock, end, *batch))
        done = [i for i, made in running.items() if made >= table["output"][i]]
        table["finish"][done] = end
        for i in done:
            del running[i]
        clock = end
    table_of_rows = np.array(rows, dtype=np.float64).reshape(-1, len(STEP_COLUMNS))
    kinds = [np.float64 if name in ("start", "end") else np.int64 for name in STEP_COLUMNS]
    return {
        name: table_of_rows[:, index].astype(kind)
        for index, (name, kind) in enumerate(zip(STEP_COLUMNS, kinds, strict=True))
    }


def _finish(table: dict[str, np.ndarray]) -> None:
    table["taken"] = table["arrival"] + 0.0
    table["queue"] = table["scheduled"] - table["arrival"]
    table["ttft"] = table["attft"] = table["first_token"] - table["arrival"]
    table["e2e"] = table["finish"] - table["arrival"]
    several = np.where(table["output"] > 1, table["output"] - 1, np.nan)
    table["tpot"] = (table["finish"] - table["first_token"]) / several


def _spread_of(values: np.ndarray) -> dict[str, Any]:
    known = values[np.isfinite(values)]
    if not len(known):
        return {**dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "max"), float("nan")), "count": 0}
    p50, p90, p95, p99 = (float(v) for v in np.quantile(known, (0.5, 0.9, 0.95, 0.99)))
    mean, most = float(known.mean()), float(known.max())
    return {"mean": mean, "p50": p50, "p90": p90, "p95": p95, "p99": p99, "max": most, "count": len(known)}


def _summary(
    table: dict[str, np.ndarray],
    steps: dict[str, np.ndarray],
    gaps: np.ndarray,
    replicas: int,
    name: str,
    slo: dict[str, dict[str, Any]] | None,
) -> Summary:
    done = table["status"] == "finished"
    tokens_in, tokens_out = int(table["prompt"][done].sum()), int(table["output"][done].sum())
    duration = float(steps["end"].max()) if len(steps["end"]) else 0.0
    per = 1 / duration if duration else 0.0
    use = 1 - steps["free_blocks"] / BLOCKS
    latency = {metric: _spread_of(table[metric]) for metric in ("ttft", "attft", "tpot", "e2e", "queue")}
    hours = replicas * duration / 3600
    busy = {"mfu": 0.213, "mbu": 0.61, "busy": 0.94}
    provenance = {"measured": 0.62, "interpolated": 0.27, "extrapolated": 0.01, "transferred": 0.0, "analytic": 0.10}
    kv = {
        "blocks_per_replica": BLOCKS,
        "block_size": BLOCK_SIZE,
        "mean_use": float(use.mean()) if len(use) else 0.0,
        "peak_use": float(use.max()) if len(use) else 0.0,
    }
    pool = {
        "name": "serve",
        "role": "serve",
        "gpu": "H100-SXM-80GB",
        "gpus": replicas,
        "replicas": replicas,
        "first_replica": 0,
        "tp": 1,
        "layout": "tp=1",
        "steps": len(steps["end"]),
        "kv": kv,
        **busy,
        "provenance": provenance,
    }
    summary = {
        "name": name,
        "seed": 1,
        "steelyard": "0.1.0",
        "model": "llama-3.1-8b",
        "gpu": "H100-SXM-80GB",
        "gpus": replicas,
        "replicas": replicas,
        "tp": 1,
        "layout": "tp=1",
        "requests": len(done),
        "outcomes": {
            "finished": int(done.sum()),
            "rejected": int((~done).sum()),
            "aborted": 0,
        },
        "steps": len(steps["end"]),
        "duration_s": duration,
        "ttft": latency["ttft"],
        "attft": latency["attft"],
        "tpot": latency["tpot"],
        "itl": _spread_of(gaps),
        "e2e": latency["e2e"],
        "queue": latency["queue"],
        "throughput": {
            "requests_per_s": int(done.sum()) * per,
            "input_tokens_per_s": tokens_in * per,
            "output_tokens_per_s": tokens_out * per,
            "total_tokens_per_s": (tokens_in + tokens_out) * per,
            "output_tokens_per_s_per_gpu": tokens_out * per / replicas,
            "total_tokens_per_s_per_gpu": (tokens_in + tokens_out) * per / replicas,
        },
        "goodput": {"requests_per_s": 0.9 * int(done.sum()) * per, "share": 0.9 if slo else None},
        "slo": slo or {},
        "steady": None,
        "kv": kv,
        "prefix_cache": {"hit_rate": 0.043, "hit_tokens": 1234, "prompt_tokens": tokens_in},
        "preemptions": int(table["preemptions"].sum()),
        **busy,
        "gpu_hours": hours,
        "cost": {
            "usd_per_gpu_hour": 2.9,
            "usd": hours * 2.9,
            "usd_per_million_output_tokens": hours * 2.9e6 / max(tokens_out, 1),
            "usd_per_million_tokens": hours * 2.9e6 / max(tokens_in + tokens_out, 1),
        },
        "provenance": provenance,
        "memory": {
            "total_bytes": 85_899_345_920,
            "usable_bytes": 77_309_411_328,
            "weights_bytes": 16_060_522_496,
            "activation_bytes": 3_000_000_000,
            "runtime_bytes": 1_600_000_000,
            "kv_bytes": 56_623_104_000,
            "block_bytes": 2_097_152,
            "num_gpu_blocks": BLOCKS + 1,
        },
        "sources": {"qkv_proj": "profile of a GPU", "o_proj": "profile of a GPU", "allreduce": "roofline"},
        "pools": [pool],
        "intervals": None,
        "unsteady": {"reason": "too short"},
    }
    return Summary.from_dict(summary)
